//! `lspci -vvv` in a guest decodes every kind of function without a complaint.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::ops::Range;

use crate::guest_support::{LIMIT, Server, boot, logs, run, toolkit};
use nicforge_guest::{Function, GuestConfig};
use nicforge_machine::{build::build, description::parse};
use nicforge_nics::families;

/// One function of each kind.
const MACHINE: &str = r#"
name = "kinds"
[[pset]]
compute_nodes = 1
[[extoll]]
mesh = 2
vpids = 2
[[function]]
name = "fifo0"
kind = "slot-fifo"
[[function]]
name = "dma0"
kind = "dma-engine"
[[function]]
name = "send0"
kind = "addressed-send"
[[function]]
name = "gpio0"
kind = "idio-16"
"#;

/// Words in the output of `lspci` and its library for anything that they cannot decode.
const COMPLAINTS: [&str; 14] = [
    "lspci:",
    "pcilib:",
    "!!!",
    "access denied",
    "Unknown",
    "unknown",
    "chain broken",
    "chain looped",
    "[virtual]",
    "<unassigned>",
    "<ignored>",
    "invalid",
    "Invalid",
    "bogus",
];

#[test]
fn lspci_decodes_every_kind_of_function_without_a_complaint() {
    let logs = logs("guest_lspci");
    let server = Server::start(MACHINE, &logs);
    let (_, built) = build(&parse(MACHINE, "kinds.toml", &families()).unwrap()).unwrap();
    let mut config = GuestConfig::new("guest").boot_deadline(LIMIT);
    let mut names = Vec::new();

    for node in &built.nodes {
        // The admin attachment, if there is one, and the first user attachment.
        let admin = node.attachments.iter().find(|attachment| attachment.admin);
        for attachment in node.users().take(1).chain(admin) {
            let name = format!("{}.{}", node.name, attachment.name);
            let socket = server.socket(&name, attachment.admin);
            config = config.function(Function { name: name.clone(), socket, hotplug: false, user: true });
            names.push(name);
        }
    }

    let guest = boot(&toolkit(), config, &logs);
    let output = run(
        &guest,
        "IFS=,\nfor device in $NICFORGE_DEVICES; do\n\
         echo \"== ${device%%=*}\"\nlspci -nn -vvv -s \"${device#*=}\" 2>&1\ndone",
    );

    std::fs::write(logs.join("lspci.txt"), &output).unwrap();
    let sections: Vec<&str> = output.split("== ").skip(1).collect();

    assert_eq!(sections.len(), names.len(), "{output}");
    let mut memory = Vec::new();

    for (name, section) in names.iter().zip(sections) {
        assert!(section.starts_with(name.as_str()), "{section}");
        for complaint in COMPLAINTS {
            assert!(!section.contains(complaint), "{complaint:?} in\n{section}");
        }
        let bars = regions(section);
        assert!(!bars.is_empty(), "{section}");
        check_msix(section, &bars);
        memory.extend(bars.into_iter().filter(|bar| bar.is_memory).map(|bar| bar.range));
    }

    memory.sort_by_key(|range| range.start);
    for pair in memory.windows(2) {
        assert!(pair[0].end <= pair[1].start, "{pair:x?} overlap in\n{output}");
    }
}

/// A BAR, as `lspci` shows it.
struct Bar {
    number: u64,
    is_memory: bool,
    range: Range<u64>,
}

/// Parses lines such as `Region 0: Memory at febf0000 (32-bit, non-prefetchable) [size=16K]`.
fn regions(section: &str) -> Vec<Bar> {
    let regions = section.lines().filter_map(|line| line.trim().strip_prefix("Region "));
    regions
        .map(|line| {
            let (number, rest) = line.split_once(": ").unwrap();
            let (kind, rest) = rest.split_once(" at ").unwrap();
            let start = u64::from_str_radix(rest.split(' ').next().unwrap(), 16).unwrap();

            let size = rest.split_once("[size=").unwrap().1.trim_end_matches(']');
            let (digits, unit) = size.split_at(size.trim_end_matches(char::is_alphabetic).len());
            let unit = match unit {
                "" => 1,
                "K" => 1 << 10,
                "M" => 1 << 20,
                "G" => 1 << 30,
                other => panic!("unit {other} in {line}"),
            };

            let size: u64 = digits.parse::<u64>().unwrap() * unit;
            assert_eq!(start % size, 0, "{line}: not aligned to its size");
            Bar { number: number.parse().unwrap(), is_memory: kind == "Memory", range: start..start + size }
        })
        .collect()
}

/// Checks that the vector table and the pending bits are within their BARs, and do not overlap.
fn check_msix(section: &str, bars: &[Bar]) {
    let Some((_, msix)) = section.split_once("MSI-X: ") else { return };
    let number = |text: &str, key: &str, radix: u32| {
        let rest = text.split_once(key).unwrap().1;
        let end = rest.find(|character: char| !character.is_digit(radix)).unwrap_or(rest.len());
        u64::from_str_radix(&rest[..end], radix).unwrap()
    };

    let count = number(msix, "Count=", 10);
    let location = |key: &str, length: u64| {
        let text = msix.split_once(key).unwrap().1;
        let (bar, offset) = (number(text, "BAR=", 10), number(text, "offset=", 16));
        let size = bars.iter().find(|entry| entry.number == bar).unwrap().range.clone();
        assert!(offset + length <= size.end - size.start, "{key} ends outside of BAR {bar}\n{section}");
        (bar, offset..offset + length)
    };

    // A vector has 16 bytes in the table, and a bit in words of 64 pending bits.
    let (table, pending) =
        (location("Vector table: ", count * 16), location("PBA: ", count.div_ceil(64) * 8));
    let do_not_overlap =
        table.0 != pending.0 || table.1.end <= pending.1.start || pending.1.end <= table.1.start;

    assert!(do_not_overlap, "the MSI-X table and its pending bits overlap\n{section}");
}

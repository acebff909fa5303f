//! Machine files: any text, and TOML of the right shape with any values. An accepted file builds a
//! machine within the limits that works. A refused one is an error of one line.

use std::{collections::BTreeSet, fmt::Write};

use nicforge_hwi::tree::MAX_NODES;
use nicforge_machine::{build::build, description::parse};
use nicforge_nics::families;

use crate::input::Input;

/// Compute nodes of a machine that is always built. Of larger ones, one in 16 is built.
const SMALL: u32 = 64;

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let text = match input.below(4) {
        0 => String::from_utf8_lossy(input.rest()).into_owned(),
        _ => well_formed_file(&mut input),
    };
    let plan = match parse(&text, "fuzz.toml", &families()) {
        Ok(plan) => plan,
        Err(error) => {
            let shown = error.to_string();
            assert!(shown.starts_with("fuzz.toml"), "{shown}");
            return;
        }
    };

    let of_role = |role: &str| plan.nodes().iter().filter(|node| node.role.name() == role).count() as u32;
    let compute = of_role("compute");
    assert!(compute + of_role("io") <= MAX_NODES);

    if compute > SMALL && input.below(16) > 0 {
        return;
    }

    // These devices are not built, because building them opens files that the text names.
    if ["virtio-blk", "virtio-console"].iter().any(|kind| text.contains(kind)) {
        return;
    }

    let (mut machine, built) = build(&plan).expect("what is accepted can be built");
    let names: BTreeSet<_> = built.nodes.iter().map(|node| node.name.as_str()).collect();

    assert_eq!((names.len(), machine.fabric().links() as usize), (plan.nodes().len(), plan.links().len()));
    assert_eq!(machine.functions() as usize, plan.functions().len());

    // A process of any node attaches, and the machine makes some steps.
    let node = &built.nodes[input.below(built.nodes.len() as u32) as usize];
    let user = node.users().next().expect("every node has a user's attachment");
    let (function, attachment) = (user.function, user.id);
    machine.attach(function, attachment).unwrap();

    for _ in 0..8 {
        let _ = machine.step(nicforge_core::time::Nanos(1000), 16);
    }

    machine.detach(function, attachment, nicforge_core::device::Ended::Closed).unwrap();
}

/// Returns the text of a file of existing tables and fields, and some unknown ones, with values of
/// all kinds.
fn well_formed_file(input: &mut Input<'_>) -> String {
    let mut text = String::new();
    if input.below(16) > 0 {
        let _ = writeln!(text, "name = {}", name(input));
    }

    for _ in 0..input.below(8) {
        match input.below(6) {
            0 | 1 => pset(&mut text, input),
            2 | 3 => function(&mut text, input),
            4 => link(&mut text, input),
            _ => {
                let _ = writeln!(text, "{}", String::from_utf8_lossy(input.bytes(12)));
            }
        }
    }

    text
}

/// Appends the table of a function.
fn function(text: &mut String, input: &mut Input<'_>) {
    let kind = input.pick(&["slot-fifo", "dma-engine", "addressed-send", "idio-16", "tree", ""]);
    let _ = writeln!(text, "[[function]]\nname = {}\nkind = \"{kind}\"", name(input));

    if input.below(4) == 0 {
        let _ = writeln!(text, "node = {}", name(input));
    }
    if input.below(8) == 0 {
        let _ = writeln!(text, "speed = {}", value(input));
    }
}

/// Appends the table of a link.
fn link(text: &mut String, input: &mut Input<'_>) {
    let _ = writeln!(text, "[[link]]");

    for end in ["a", "b"] {
        let name = input.pick(&["io0", "cn0", "a", "f1", "a.f1", "", "a:b"]);
        let port = input.pick(&["0", "1", "63", "64", "256", "-1", "x", ""]);
        let _ = writeln!(text, "{end} = \"{name}:{port}\"");
    }

    let fields = ["delay_ns", "gbit_s", "channels", "credits", "packet_bytes", "cut_through_bytes", "width"];
    for field in fields.into_iter().take(input.below(8) as usize) {
        let _ = writeln!(text, "{field} = {}", value(input));
    }
}

/// Appends the table of a pset.
fn pset(text: &mut String, input: &mut Input<'_>) {
    let nodes = match input.below(8) {
        0..=5 => (1 + input.below(20)).to_string(),
        _ => value(input),
    };
    let _ = writeln!(text, "[[pset]]\ncompute_nodes = {nodes}");

    if input.below(4) == 0 {
        let depth = if input.flag() { (1_u32 << input.below(10)).to_string() } else { value(input) };
        let _ = writeln!(text, "fifo_depth = {depth}");
    }

    if input.below(4) == 0 {
        let _ = writeln!(text, "[pset.link]");
        for field in ["delay_ns", "gbit_s", "credits", "width"].into_iter().take(input.below(5) as usize) {
            let _ = writeln!(text, "{field} = {}", value(input));
        }
    }
}

/// Returns the value of a field that names something.
fn name(input: &mut Input<'_>) -> String {
    match input.below(4) {
        0 => format!("\"{}\"", input.pick(&["io0", "cn0", "cn19", "a", "", "a b", "../x", "n\\u0000"])),
        1 => format!("\"{}\"", "n".repeat(usize::from(input.u8()))),
        2 => value(input),
        _ => format!("\"f{}\"", input.u8()),
    }
}

/// Returns a value of any type, which may be no TOML.
fn value(input: &mut Input<'_>) -> String {
    match input.below(10) {
        0 => input.number().to_string(),
        1 => (input.number() as i64).to_string(),
        2 => f64::from_bits(input.u64()).to_string(),
        3 => input.pick(&["nan", "inf", "-inf", "0.0", "-0.0", "1e400", "0x7fffffffffffffff"]).to_owned(),
        4 => "[".repeat(usize::from(input.u8())),
        5 => "{ a = 1 }".to_owned(),
        6 => "\"text\"".to_owned(),
        7 => "1979-05-27T07:32:00Z".to_owned(),
        8 => input.below(2000).to_string(),
        _ => "4000000000".to_owned(),
    }
}

//! Tests of `nicforge regs` and `nicforge top`.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    time::Instant,
};

use nicforge_driver::{Device, OpenOptions};
use nicforge_hwi::{
    proof::{addressed_send, dma_engine, slot_fifo},
    tree_dcr::{REC_PRXF, dcr, port},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Server, answer_as_a_stranger, assert_harmless, nicforge, output, text, wait};

/// Runs `regs` on an attachment, and returns its standard output.
#[track_caller]
fn regs(server: &Server, attachment: &str, more: &[&str]) -> String {
    let directory = server.directory();
    let output = output(nicforge(&["regs", directory.to_str().unwrap(), attachment]).args(more));
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Returns the JSON output of `regs`.
#[track_caller]
fn json(server: &Server, attachment: &str) -> serde_json::Value {
    serde_json::from_str(&regs(server, attachment, &["--json"])).unwrap()
}

/// Returns a register of the JSON output by its name.
#[track_caller]
fn register<'a>(json: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    let mut registers = json["registers"].as_array().unwrap().iter();
    registers.find(|register| register["name"] == name).unwrap()
}

/// Returns the words of the row that begins with a word, without the borders of the table.
fn row<'a>(table: &'a str, first: &str) -> Vec<&'a str> {
    let words = |line: &'a str| line.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>();
    table.lines().map(words).find(|words| words.first() == Some(&first)).unwrap_or_default()
}

fn open(server: &Server, socket: &str) -> Device {
    Device::open_vfio_user(server.socket(socket), OpenOptions::default()).unwrap()
}

#[test]
fn regs_shows_values_and_fields_of_registers_by_name() {
    let server = Server::of_machine("proof.toml", &[]);
    let client = open(&server, "dma0.user0");
    let registers = client.bar(0).unwrap();
    registers.write64(dma_engine::REG_LIST, 0x1234_5678).unwrap();
    // A start without descriptors is refused.
    registers.write32(dma_engine::REG_START, 1).unwrap();

    let table = regs(&server, "dma0.user0", &[]);

    assert_eq!(row(&table, "LIST")[..4], ["LIST", "0+0x0000", "rw", "0x0000000012345678"], "{table}");
    assert_eq!(row(&table, "STATUS"), ["STATUS", "0+0x0010", "ro", "0x00000004", "BAD_START"], "{table}");
    assert_eq!(row(&table, "START")[..4], ["START", "0+0x000c", "wo", "-"], "{table}");
    // The mirror is read from its memory.
    assert_eq!(row(&table, "MIRROR_ENDED")[3], "0x0000000000000001", "{table}");
    assert!(table.contains("\nring 0: 0 of 64 cells filled"), "{table}");
    assert_eq!(row(&table, "errors"), ["errors", "1"], "{table}");
}

#[test]
fn regs_has_no_effect_on_what_a_read_clears_or_pops() {
    let server = Server::of_machine("pset.toml", &[]);
    let client = open(&server, "cn0.core1");
    let registers = client.bar(0).unwrap();
    // A header from an empty FIFO, which sets an error bit that a read clears.
    registers.read32(port::HR).unwrap();

    for _ in 0..2 {
        let json = json(&server, "cn0.core1");
        let flags = &register(&json, "REC_PRXF")["values"][0];
        assert_eq!(flags["fields"], "HFU1", "{flags}");
        assert!(register(&json, "HR")["values"].as_array().unwrap().is_empty());
        assert_eq!(register(&json, "PRESENCE")["values"].as_array().unwrap().len(), 1024);
    }
    assert_ne!(registers.read32(dcr(REC_PRXF)).unwrap(), 0);
    let after = json(&server, "cn0.core1");
    assert_eq!(register(&after, "REC_PRXF")["values"][0]["value"].as_u64(), Some(0));
}

#[test]
fn regs_of_an_attachment_without_a_client_has_no_rings_and_no_memory() {
    let server = Server::of_machine("proof.toml", &[]);
    let free = json(&server, "fifo0.user3");

    assert_eq!(free["has_client"], false);
    assert!(free["rings"].as_array().unwrap().is_empty());
    assert!(register(&free, "HEAD")["values"][0]["value"].is_null());
    assert_eq!(register(&free, "FILL")["values"][0]["value"], 0);
}

#[test]
fn regs_shows_records_that_wait_in_a_ring() {
    let server = Server::of_machine("proof.toml", &[]);
    let sender = open(&server, "send0.user0");
    let _receiver = open(&server, "send0.user1");
    let sends = sender.bar(addressed_send::SEND_BAR).unwrap();
    let target = 1 << addressed_send::SEND_TARGET_SHIFT;

    // The mailbox has fewer slots than this, and the receiver takes none of the messages.
    let messages = addressed_send::SLOTS + 3;
    for _ in 0..messages {
        sends.posted_write(target, &[1; 8]).unwrap();
    }

    let start = Instant::now();
    let ring = loop {
        let ring = json(&server, "send0.user0")["rings"][0].clone();
        if ring["stalled"] == true || start.elapsed() > super::LIMIT {
            break ring;
        }
        crate::pause();
    };
    let expected = serde_json::json!({
        "cells": 64, "head": addressed_send::SLOTS, "tail": messages, "fill": 3, "stalled": true
    });
    assert_eq!(ring, expected);
}

#[test]
fn regs_of_each_network_are_declared() {
    for (machine, attachment, name) in [
        ("bgl.toml", "bgl0.torus.core0", "CTRL_COORDS_NODE"),
        ("bgq.toml", "bgq0.kernel", "SYS_BARRIER"),
        ("extoll.toml", "ex0.vpid0", "IDENTITY"),
        ("seastar.toml", "ss0.kernel", "IDENTITY"),
        ("idio16.toml", "gpio0.user0", "INPUTS_LOW"),
    ] {
        let server = Server::of_machine(machine, &[]);
        let json = json(&server, attachment);
        assert!(register(&json, name)["values"][0]["value"].is_u64(), "{machine}");
    }
}

#[test]
fn regs_names_the_attachments_that_exist() {
    let server = Server::of_machine("proof.toml", &[]);
    let directory = server.directory();
    let refused = |name: &str| {
        let output = output(&mut nicforge(&["regs", directory.to_str().unwrap(), name]));
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };

    let of_node = refused("fifo0.user9");
    assert!(of_node.contains("there is no attachment fifo0.user9; there are fifo0.user0, "), "{of_node}");
    assert!(!of_node.contains("dma0"), "{of_node}");
    let of_all = refused("nic0");
    assert!(of_all.contains("fifo0.user0") && of_all.contains("send0.user3"), "{of_all}");
}

#[test]
fn regs_prints_no_control_sequences_of_whoever_answers() {
    let folder = tempfile::tempdir().unwrap();
    answer_as_a_stranger(
        folder.path(),
        r#"{"registers":{"attachment":"a\u001b[2J","has_client":true,"rings":[
        {"cells":0,"head":4294967295,"tail":0,"fill":4294967295,"stalled":true}],
        "counters":[["c\u0007",18446744073709551615]],
        "registers":[{"name":"n\nforged","about":"\u009b1m","bar":255,"offset":18446744073709551615,"width":255,
        "access":"\u001bc","count":4294967295,"stride":18446744073709551615,
        "fields":[{"name":"\u007f","high":255,"low":0}],"values":[{"value":1,"fields":"f\nforged"},{"value":null}]}]}}"#,
    );

    for options in [&[][..], &["--json"]] {
        let output = output(nicforge(&["regs", folder.path().to_str().unwrap(), "a.b"]).args(options));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let shown = text(&output.stdout);
        assert_harmless(&shown);
        assert!(!shown.lines().any(|line| line.trim_start().starts_with("forged")), "{shown}");
    }
}

#[test]
fn regs_repeats_until_sigterm() {
    let server = Server::of_machine("proof.toml", &[]);
    let directory = server.directory();
    let mut child =
        nicforge(&["regs", directory.to_str().unwrap(), "fifo0.user0", "--json", "--watch", "0.05"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();

    for _ in 0..3 {
        let json: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(json["attachment"], "fifo0.user0");
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(wait(&mut child), Some(0));
}

#[test]
fn top_shows_clients_and_rates_in_80_columns() {
    let server = Server::of_machine("proof.toml", &[]);
    let client = open(&server, "fifo0.user0");
    let registers = client.bar(0).unwrap();
    let directory = server.directory();
    let child = nicforge(&["top", directory.to_str().unwrap(), "--once", "--interval", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();

    // The client pushes words by the port for as long as `top` counts. Most find the queue full,
    // which is an error each.
    let counting = std::thread::spawn(move || child.wait_with_output().unwrap());
    while !counting.is_finished() {
        registers.write64(slot_fifo::REG_PORT, 7).unwrap();
    }

    let output = counting.join().unwrap();
    assert!(output.status.success());
    let page = text(&output.stdout);
    assert!(!page.contains('\u{1b}') && page.lines().all(|line| line.chars().count() <= 80), "{page}");
    assert!(page.contains("\nengine: ") && page.contains(" turns/s, "), "{page}");

    let node = row(&page, "fifo0");
    assert_eq!((node[1], node[3]), ("1/4", "0"), "{page}");
    assert_ne!(node[4], "0", "{page}");
    let own = row(&page, "user0");
    assert_eq!(own[1], std::process::id().to_string(), "{page}");
    assert_eq!(own[3], node[4], "{page}");
    // The counters of the device's own, and the nodes that do nothing.
    assert_eq!(row(&page, "fifo0.errors").len(), 3, "{page}");
    assert!(page.contains("2 nodes without a client and without a change"), "{page}");
}

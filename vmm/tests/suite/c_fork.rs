//! Programs in C that fork: their children have no part in what they have opened.
//!
//! The program `fork.c` forks between transfers of a library, and beside them. Its children make
//! all calls, which are refused, and close all handles. It also closes and opens again while a
//! child lives.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nicforge_driver::{Device, Error, OpenOptions};
use nix::errno::Errno;

use crate::{
    c_program::{compile_in, run, sanitizers, shared},
    pause,
    server::Server,
};

/// The longest wait of a test.
const LIMIT: Duration = Duration::from_secs(60);

const PSET: &str = "name = \"pset\"\n[[pset]]\ncompute_nodes = 1\n";
const EXTOLL: &str = "name = \"extoll\"\n[[extoll]]\ntorus = [2, 1, 1]\nvpids = 2\n";
const TORUS: &str = "name = \"bgl\"\n[[bgl]]\ntorus = [2, 1, 1]\n";
const SEASTAR: &str = "name = \"seastar\"\n[[seastar]]\ntorus = [2, 1, 1]\n";
const MESSAGE_UNIT: &str = "name = \"bgq\"\n[[bgq]]\ntorus = [2, 1, 1, 1, 1]\n";

/// Compiles the program that forks.
fn compile_fork(into: &Path, options: &[String]) -> String {
    compile_in("vmm/tests/programs", "fork", into, options)
}

/// Runs the program for a library, with sockets of a machine as arguments.
fn check_library(library: &str, machine: &str, sockets: &[&str]) {
    check_with(library, machine, sockets, &shared());
}

/// Runs the program for a library, compiled with these options.
fn check_with(library: &str, machine: &str, sockets: &[&str], options: &[String]) {
    let server = Server::of_text(machine, "auto");
    let program = compile_fork(server.folder.path(), options);
    let mut command = Command::new(program);
    command.arg(library).args(sockets.iter().map(|name| server.socket(name)));
    check_output(library, &mut command, &server);
}

/// Runs the program on a node, whose sockets it finds itself.
fn check_node(library: &str, machine: &str, node: &str) {
    let server = Server::of_text(machine, "auto");
    let program = compile_fork(server.folder.path(), &shared());
    let mut command = Command::new(program);
    command.arg(library).env("NICFORGE_NODE", node);
    check_output(library, &mut command, &server);
}

/// Runs a command on a machine, and checks that it ends well.
fn check_output(library: &str, command: &mut Command, server: &Server) {
    // In a child, a leak check would report what the parent's threads own.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    let output = command.env("NICFORGE_DIR", server.directory()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{}: {text}", output.status);
    assert!(text.contains(&format!("{library} is not disturbed")), "{text}");
}

/// Runs the program for matching as a job on a machine.
fn check_job(machine: &str, ranks: usize) {
    let folder = tempfile::tempdir().unwrap();
    let program = compile_fork(folder.path(), &shared());
    let file = folder.path().join("machine.toml");
    std::fs::write(&file, machine).unwrap();
    let out = run(file.to_str().unwrap(), folder.path(), &["--", &program, "matching"]);
    assert_eq!(out.matches("matching is not disturbed").count(), ranks, "{out}");
}

#[test]
fn children_have_no_part_in_a_port_of_velo() {
    check_library("velo", EXTOLL, &["ex0.vpid0", "ex1.vpid0"]);
}

#[test]
fn children_have_no_part_in_a_port_of_velo_under_address_sanitizer() {
    check_with("velo", EXTOLL, &["ex0.vpid0", "ex1.vpid0"], &[sanitizers(), shared()].concat());
}

#[test]
fn children_have_no_part_in_a_port_of_rma() {
    check_library("rma", EXTOLL, &["ex0.vpid0"]);
}

#[test]
fn children_have_no_part_in_both_ports_of_a_vpid() {
    check_library("extoll", EXTOLL, &["ex0.vpid0", "ex1.vpid0"]);
}

#[test]
fn children_have_no_part_in_the_ends_of_fcnp() {
    check_library("fcnp", PSET, &["io0.core0", "cn0.core0"]);
}

#[test]
fn children_have_no_part_in_fcnp_with_its_original_calls() {
    check_library("fcnp-original", PSET, &["io0.core0", "cn0.core0"]);
}

#[test]
fn children_have_no_part_in_a_rank_over_the_extoll_card() {
    check_job(EXTOLL, 2);
}

#[test]
fn children_have_no_part_in_a_rank_over_the_message_unit() {
    check_job(MESSAGE_UNIT, 2);
}

#[test]
fn children_have_no_part_in_a_rank_over_the_torus() {
    check_job(TORUS, 2);
}

#[test]
fn children_have_no_part_in_a_message_layer() {
    check_library("bgl", TORUS, &["bgl0.torus.core0", "bgl1.torus.core0"]);
}

#[test]
fn children_have_no_part_in_an_interface_of_portals() {
    check_node("portals", SEASTAR, "ss0");
}

#[test]
fn children_have_no_part_in_a_subgroup_of_the_spi() {
    check_node("spi", MESSAGE_UNIT, "bgq0");
}

#[test]
fn a_killed_process_leaves_its_attachment_although_a_child_lives() {
    let server = Server::of_text(EXTOLL, "auto");
    let program = compile_fork(server.folder.path(), &shared());
    let sockets = ["ex0.vpid0", "ex1.vpid0"].map(|name| server.socket(name));
    let mut parent = Command::new(program)
        .arg("velo")
        .args(&sockets)
        .env("FORK_AND_HOLD", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();

    // The child lives as long as this end of the pipe.
    let input = parent.stdin.take().unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "forked\n");
    parent.kill().unwrap();
    parent.wait().unwrap();

    // The server notices the end of the connection a little later.
    let killed = Instant::now();
    let busy = Errno::EBUSY as i32;
    while let Err(error) = Device::open_vfio_user(&sockets[0], OpenOptions::default()) {
        assert!(matches!(error, Error::Refused { errno, .. } if errno == busy), "{error}");
        assert!(killed.elapsed() < LIMIT, "the attachment stays taken");
        pause();
    }
    drop(input);
}

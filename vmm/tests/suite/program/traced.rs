//! `nicforge trace` and the option `--trace`.

use std::time::Instant;

use nicforge_driver::{Device, OpenOptions};
use nicforge_hwi::proof::slot_fifo::{REG_HOLD, REG_PORT};
use pcap_file::pcapng::{Block, PcapNgReader};

use super::*;

/// Holds the messages of the slot FIFO, and reads from its empty queue, which is an error.
fn misuse_fifo(server: &Server) {
    let device = Device::open_vfio_user(server.socket("fifo0.user0"), OpenOptions::default()).unwrap();
    let registers = device.bar(0).unwrap();
    registers.write32(REG_HOLD, 1).unwrap();
    registers.read64(REG_PORT).unwrap();
}

/// Returns the output of `nicforge trace` on a server, which must succeed.
fn trace(server: &Server, options: &[&str]) -> String {
    let directory = server.directory();
    let output = output(nicforge(&["trace", directory.to_str().unwrap()]).args(options));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// A program whose lines are read one by one.
struct Reader {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Reader {
    /// Starts a trace of writes to the FIFO. It returns once the trace shows one.
    fn start(server: &Server) -> Self {
        let directory = server.directory();
        let arguments = ["trace", directory.to_str().unwrap(), "fifo0", "--kind", "write"];
        let mut child = nicforge(&arguments).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut reader = Self { child, lines };

        // Another thread waits for the line, while this one gives reasons for it.
        let start = Instant::now();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| reader.lines.next().unwrap().unwrap());
            while !first.is_finished() && start.elapsed() < LIMIT {
                misuse_fifo(server);
            }
            assert!(first.join().unwrap().contains(" write "));
        });
        reader
    }

    fn signal(&mut self, signal: Signal) -> Option<i32> {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
        wait(&mut self.child)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_last_events_of_a_server_that_keeps_them_show_register_names() {
    let server = Server::of_machine("proof.toml", &["--trace-ring", "1000"]);
    misuse_fifo(&server);

    let lines = trace(&server, &["fifo0.user0", "--last", "1000"]);
    let hold = lines.lines().position(|line| line.ends_with("HOLD 0x00000001 HOLD")).expect(&lines);
    let port =
        lines.lines().position(|line| line.contains(" read ") && line.contains(" PORT ")).expect(&lines);
    assert!(hold < port, "{lines}");
    assert!(lines.lines().next().unwrap().ends_with("client    attached"), "{lines}");

    // The records stay for the next reader, whose filter is its own.
    let writes = trace(&server, &["--last", "1000", "--register", "HOLD", "--json"]);
    let writes: Vec<serde_json::Value> =
        writes.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(writes.len() == 1 && writes[0]["kind"] == "write", "{writes:?}");
}

/// Of the events before the first error only as many are shown as were asked for.
#[test]
fn a_trace_since_an_error_begins_shortly_before_it() {
    let server = Server::of_machine("proof.toml", &["--trace-ring", "1000"]);
    misuse_fifo(&server);

    let shown = trace(&server, &["--last", "1000", "--since-error", "1"]);
    let lines: Vec<_> = shown.lines().collect();
    assert!(lines[0].contains(" write ") && lines[0].contains("HOLD"), "{shown}");
    assert!(lines[1].contains("! fifo0.user0") && lines[1].contains("refused PORT"), "{shown}");
}

#[test]
fn a_trace_for_perfetto_is_a_whole_document() {
    let server = Server::of_machine("proof.toml", &["--trace-ring", "1000"]);
    misuse_fifo(&server);

    let file = server.folder.path().join("trace.json");
    assert_eq!(trace(&server, &["--last", "1000", "--perfetto", file.to_str().unwrap()]), "");
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let events = document["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["name"] == "write HOLD"), "{document}");
}

/// The end waits for the events until then, and not for those that a busy machine goes on to make.
#[test]
fn a_server_and_a_trace_of_it_end_while_a_program_makes_events() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.txt");
    let mut server = Server::of_machine("proof.toml", &["--trace", file.to_str().unwrap()]);
    let socket = server.socket("fifo0.user0");
    let writer = std::thread::spawn(move || {
        let device = Device::open_vfio_user(socket, OpenOptions::default()).unwrap();
        let registers = device.bar(0).unwrap();
        while registers.write32(REG_HOLD, 0).is_ok() {}
    });

    let shown = trace(&server, &["--for", "0.2", "--kind", "write"]);
    assert!(shown.lines().count() > 10, "{shown}");
    server.signal(Signal::SIGTERM);
    assert_eq!(wait(&mut server.child), Some(0));
    writer.join().unwrap();
    assert!(std::fs::read_to_string(&file).unwrap().lines().count() > shown.lines().count());
}

#[test]
fn a_live_trace_ends_on_ctrl_c_and_another_one_can_begin() {
    let server = Server::of_machine("proof.toml", &[]);
    for _ in 0..2 {
        let mut reader = Reader::start(&server);
        assert_eq!(reader.signal(Signal::SIGINT), Some(0));
    }
}

/// One program at a time traces a machine. The trace of a killed one ends by itself.
#[test]
fn a_trace_waits_for_the_end_of_another_one() {
    let server = Server::of_machine("proof.toml", &[]);
    let mut first = Reader::start(&server);
    let directory = server.directory();
    let second = || output(&mut nicforge(&["trace", directory.to_str().unwrap(), "--for", "0.05"]));
    let refused = second();
    assert_eq!(refused.status.code(), Some(3));
    assert!(text(&refused.stderr).contains("another program traces"), "{}", text(&refused.stderr));

    first.signal(Signal::SIGKILL);
    let start = Instant::now();
    while second().status.code() != Some(0) {
        assert!(start.elapsed() < LIMIT, "the trace of a killed program goes on");
        crate::pause();
    }
}

#[test]
fn names_that_the_machine_does_not_have_are_usage_errors() {
    let server = Server::of_machine("proof.toml", &[]);
    let directory = server.directory();
    for (option, known) in
        [("fifo7", "fifo0.user0"), ("--register=TDT", "HOLD"), ("--last=5", "--trace-ring")]
    {
        let output = output(&mut nicforge(&["trace", directory.to_str().unwrap(), option]));
        assert_eq!(output.status.code(), Some(2), "{option}");
        assert!(text(&output.stderr).contains(known), "{}", text(&output.stderr));
    }
}

#[test]
fn a_trace_file_has_all_events_until_the_end_in_both_forms() {
    for name in ["t.txt", "t.json"] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        let mut server = Server::of_machine("proof.toml", &["--trace", file.to_str().unwrap()]);
        misuse_fifo(&server);
        server.signal(Signal::SIGTERM);
        assert_eq!(wait(&mut server.child), Some(0));

        let content = std::fs::read_to_string(&file).unwrap();
        if name == "t.json" {
            let document: serde_json::Value = serde_json::from_str(&content).unwrap();
            let events = document["traceEvents"].as_array().unwrap();
            let is_hold = |event: &serde_json::Value| event["name"] == "write HOLD";
            assert_eq!(events.iter().filter(|event| is_hold(event)).count(), 1, "{content}");
        } else {
            assert!(content.contains("HOLD 0x00000001"), "{content}");
            assert!(content.contains("read      PORT 0xffff"), "{content}");
        }
    }
}

/// The packets of a port are in the capture when the server has ended, whichever comes first: a
/// port of a tree announces each core that opens it.
#[test]
fn a_capture_has_the_packets_of_a_port_until_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cn0.pcapng");
    let option = format!("cn0:0,io0:2={}", file.display());
    let mut server = Server::of_machine("pset.toml", &["--capture", &option]);
    drop(Device::open_vfio_user(server.socket("cn0.core0"), OpenOptions::default()).unwrap());
    server.signal(Signal::SIGTERM);
    assert_eq!(wait(&mut server.child), Some(0));

    let content = std::fs::read(&file).unwrap();
    let mut reader = PcapNgReader::new(content.as_slice()).unwrap();
    let mut interfaces = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            // Packets of a tree without payload: the words in front of them alone.
            assert_eq!(packet.data.len(), nicforge_trace::PREFIX);
            interfaces.push(packet.interface_id);
        }
    }
    assert!(interfaces.contains(&0) && interfaces.contains(&1), "{interfaces:?}");
}

#[test]
fn a_capture_of_a_port_that_does_not_exist_names_those_that_do() {
    let file = machine("pset.toml");
    for (option, message) in
        [("cn9:0=x", "links are at io0:1"), ("cn0=x", "is no port"), ("cn0:0", "such as")]
    {
        let output = output(&mut nicforge(&["serve", &file, "--capture", option]));
        assert_eq!(output.status.code(), Some(2), "{option}");
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
}

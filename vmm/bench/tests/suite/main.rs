//! Quick runs of all benchmarks. They check that the benchmarks work, and the contents of their
//! reports. No result depends on time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../common/report.rs"]
mod report;

use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nicforge_bench::benches::mmio::REGISTER_PATHS;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::report::{assert_report, quick};

/// Returns the command that starts the program under test.
fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nicforge-bench"));
    command.args(arguments);
    command
}

#[test]
fn the_machine_at_rest_is_measured() {
    let report = quick("rest");
    assert_report(&report, "rest", &["rest"]);
    assert!(report["rows"][0]["resident_mb"].as_f64().unwrap() > 1.0);
}

#[test]
fn a_packets_instructions_are_counted() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        // Another test checks the message without valgrind.
        return;
    }

    let report = quick("packet");
    let paths =
        ["send", "receive", "copy-in", "copy-out", "engine-hop", "engine-ends", "fcnp-send", "fcnp-receive"];

    assert_report(&report, "packet", &paths);
    for row in report["rows"].as_array().unwrap() {
        // The count is the work of one packet, and neither zero nor the work of the whole program.
        let instructions = row["instructions"].as_f64().unwrap();
        assert!((10.0..100_000.0).contains(&instructions), "{row:#}");
        assert_eq!(row["bytes"], 256);
    }
}

#[test]
fn packets_over_links_are_counted_in_virtual_time() {
    let report = quick("fabric");

    assert_report(&report, "fabric", &["virtual-hops", "unattended-extoll"]);
    let rows = report["rows"].as_array().unwrap();
    let nodes: Vec<_> = rows
        .iter()
        .filter(|row| row["path"] == "virtual-hops" && row["rate_per_s"].as_f64() > Some(0.0))
        .map(|row| row["nodes"].as_f64().unwrap())
        .collect();
    assert_eq!(nodes, [512.0, 8192.0]);

    // There are no counts without valgrind.
    for instructions in rows.iter().filter_map(|row| row["instructions"].as_f64()) {
        assert!((100.0..100_000.0).contains(&instructions), "{report:#}");
    }
    let bytes = rows.iter().find_map(|row| row["bytes_per_node"].as_f64()).unwrap();
    assert!((1_000.0..1e6).contains(&bytes), "{report:#}");
}

#[test]
fn matching_is_measured_at_every_depth() {
    let report = quick("matching");
    let paths = ["posted", "posted-wildcard", "unexpected", "unexpected-wildcard", "list-posted"];

    assert_report(&report, "matching", &paths);
    for path in paths {
        let depths: Vec<_> = report["rows"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|row| row["path"] == path && row["nanoseconds"].as_f64().unwrap() > 0.0)
            .map(|row| row["depth"].as_f64().unwrap())
            .collect();
        assert_eq!(depths, [1.0, 10.0, 100.0, 1_000.0, 10_000.0], "{path}");
    }
}

#[test]
fn messages_over_extoll_are_measured_by_pairs_and_sizes() {
    let report = quick("extoll-mpi");
    assert_report(&report, "extoll-mpi", &["message-rate", "ping-pong", "random-access", "velo"]);
    let rows = report["rows"].as_array().unwrap();
    let rows_of = |path: &'static str| rows.iter().filter(move |row| row["path"] == path);
    let rates: BTreeSet<_> = rows_of("message-rate")
        .map(|row| (row["pairs"].as_f64().unwrap() as u64, row["bytes"].as_u64().unwrap()))
        .collect();
    let expected: BTreeSet<_> =
        [1, 2, 4, 8].into_iter().flat_map(|pairs| (0..=12).map(move |power| (pairs, 1 << power))).collect();

    assert_eq!(rates, expected);
    assert!(
        rows_of("message-rate").chain(rows_of("velo")).all(|row| row["rate_per_s"].as_f64().unwrap() > 0.0)
    );
    assert!(rows_of("ping-pong").all(|row| row["p50_us"].as_f64() > Some(0.0)));

    for row in rows_of("random-access") {
        assert!(row["gups"].as_f64().unwrap() > 0.0 && row["wrong_percent"] == 0.0, "{row:#}");
    }

    // There are no such rows without valgrind.
    for row in rows_of("mpi-instructions") {
        let parts = ["program", "requests", "match", "protocol", "transport", "velo", "posting", "machine"];
        let counts = parts.map(|part| row[part].as_f64().unwrap());
        let (sum, all): (f64, _) = (counts.iter().sum(), row["instructions"].as_f64().unwrap());
        assert!(counts.iter().all(|count| (10.0..10_000.0).contains(count)), "{row:#}");
        assert!((sum - all).abs() < 1.0, "{row:#}");
    }
}

#[test]
fn portals_are_measured_on_seastars() {
    let report = quick("seastar");
    let paths = ["put1m", "memcpy", "posted-nic-based", "posted-host-based", "streams"];
    assert_report(&report, "seastar", &paths);

    let rows = report["rows"].as_array().unwrap();
    let rows_of = |path: &'static str| rows.iter().filter(move |row| row["path"] == path);
    for row in paths.iter().flat_map(|path| rows_of(path)) {
        let measured = row["rate_per_s"].as_f64().or(row["receives"].as_f64());
        assert!(measured > Some(0.0), "{row:#}");
    }
    let has_put = |threads: u32| rows_of("put1m").any(|row| row["firmware_threads"] == f64::from(threads));
    assert!(has_put(0) && has_put(1));
    assert!(rows_of("posted-nic-based").all(|row| row["receives"].as_f64() >= Some(1_000.0)));
    assert!(rows_of("posted-host-based").all(|row| row["receives"] == 10_000.0));

    // There are no such rows without valgrind.
    for row in rows_of("put8") {
        for part in ["library_put", "library_event", "driver", "machine", "network", "device", "firmware"] {
            assert!((10.0..100_000.0).contains(&row[part].as_f64().unwrap()), "{row:#}");
        }
    }
}

#[test]
fn without_valgrind_the_packet_bench_names_the_package_to_install() {
    let empty_folder = tempfile::TempDir::new().unwrap();
    let output = bench(&["packet", "--quick", "--json"]).env("PATH", empty_folder.path()).output().unwrap();

    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("valgrind") && stderr.contains("install"), "{stderr}");
}

#[test]
fn register_accesses_and_their_peers_are_measured_at_each_placement() {
    let report = quick("mmio");
    let registers = REGISTER_PATHS;
    let bare = ["bare-ring", "unix-pingpong", "unix-pingpong-spinning", "eventfd-pingpong"];

    assert_report(&report, "mmio", &[registers.as_slice(), &bare].concat());
    if cfg!(feature = "bench-peers") {
        assert_report(&report, "mmio", &["vfio_user-crate-read"]);
    }

    let rows = report["rows"].as_array().unwrap();
    for row in rows {
        let path = row["path"].as_str().unwrap();
        assert!(row["placement"].is_string(), "{row:#}");
        assert!(
            row["p50_us"].as_f64() > Some(0.0) && row["p99_us"].as_f64() >= row["p50_us"].as_f64(),
            "{row:#}"
        );

        let has_device = registers.contains(&path) || path.starts_with("vfio_user-crate");
        assert_eq!(row["backing"] == "vfio-user", has_device, "{row:#}");
        if ["posted-write", "bare-ring", "trapped-read-hot", "trapped-write"].contains(&path) {
            assert!(row["rate_per_s"].as_f64() > Some(0.0), "{row:#}");
        }
    }

    let placements: BTreeSet<_> = rows.iter().map(|row| row["placement"].as_str().unwrap()).collect();
    let count_rows = |path: &str| rows.iter().filter(|row| row["path"] == path).count();

    assert!(registers.iter().chain(&bare).all(|path| count_rows(path) == placements.len()), "{report:#}");

    let goals = if cfg!(feature = "bench-peers") { 4 } else { 3 };
    assert_eq!(report["goals"].as_array().unwrap().len(), goals * placements.len());
}

#[test]
fn fcnp_packets_and_sockets_are_measured() {
    let report = quick("fcnp");
    let trees = ["raw", "fcnp-poll", "fcnp-irq"];
    let sockets = ["unix", "tcp", "unix-relayed", "tcp-relayed", "unix-forwarded", "tcp-forwarded"];

    assert_report(&report, "fcnp", &[&trees[..], &sockets[..]].concat());
    let rows = report["rows"].as_array().unwrap();
    for row in rows {
        assert!(row["gbit_s"].as_f64().unwrap() > 0.0 && row["placement"].is_string(), "{row:#}");
        let has_latency = row["bytes"] == 16 && row["direction"] != "both";
        assert_eq!(row["p50_us"].is_number(), has_latency, "{row:#}");
    }

    for path in trees {
        for depth in [8, 256] {
            for direction in ["io-to-compute", "compute-to-io", "both"] {
                let is_expected = |row: &&Value| {
                    row["path"] == path && row["fifo_depth"] == depth && row["direction"] == direction
                };
                assert!(rows.iter().filter(is_expected).count() >= 3, "{path}, {depth}, {direction}");
            }
        }
    }

    let two_outstanding = rows.iter().find(|row| row["path"] == "fcnp-poll" && row["outstanding"] == 2.0);
    assert_eq!(two_outstanding.unwrap()["bytes"], 65536);
}

#[test]
fn the_list_names_every_bench_and_an_unknown_one_is_refused_with_the_names() {
    let list = bench(&["list", "--json"]).output().unwrap();
    let list: Value = serde_json::from_slice(&list.stdout).unwrap();
    let refused = bench(&["nothing"]).output().unwrap();

    assert_eq!(refused.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    for bench in list["benches"].as_array().unwrap() {
        assert!(stderr.contains(bench["name"].as_str().unwrap()), "{stderr}");
    }
}

#[test]
fn results_are_written_into_a_directory_and_also_printed() {
    let folder = tempfile::TempDir::new().unwrap();
    let directory = folder.path().join("results");
    let output = bench(&["rest", "--quick", "--markdown", "--results"]).arg(&directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let text = std::fs::read_to_string(directory.join("rest.md")).unwrap();
    assert!(text.starts_with("## `nicforge bench rest`\n"), "{text}");
    assert_eq!(format!("{text}\n"), String::from_utf8_lossy(&output.stdout));

    let report: Value = serde_json::from_slice(&std::fs::read(directory.join("rest.json")).unwrap()).unwrap();
    assert_report(&report, "rest", &["rest"]);
}

#[test]
fn message_units_copies_and_velo_are_measured() {
    let report = quick("mu");
    let paths = ["put1m", "memcpy", "put-latency", "fifo-latency", "fifo-rate", "velo-latency", "velo-rate"];
    assert_report(&report, "mu", &paths);

    let rows = report["rows"].as_array().unwrap();
    let rows_of = |path: &'static str| rows.iter().filter(move |row| row["path"] == path);
    for row in paths.iter().flat_map(|path| rows_of(path)) {
        let measured = row["rate_per_s"].as_f64().or(row["p50_us"].as_f64());
        assert!(measured > Some(0.0), "{row:#}");
    }

    // There are no such rows without valgrind.
    for row in rows_of("fifo8") {
        for part in ["program", "library", "driver", "machine", "network", "device"] {
            assert!((10.0..100_000.0).contains(&row[part].as_f64().unwrap()), "{row:#}");
        }
    }
}

#[test]
fn messages_beside_busy_processes_are_measured() {
    let report = quick("busy");
    let paths = ["extoll", "fcnp", "socket-pair"];
    assert_report(&report, "busy", &paths);

    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * paths.len(), "{report:#}");
    for (path, loops) in paths.iter().flat_map(|path| [(path, 0.0), (path, 4.0)]) {
        let is_expected = |row: &&Value| row["path"] == *path && row["beside_loops"] == loops;
        let row = rows.iter().find(is_expected).unwrap();
        assert_eq!(row["bytes"], 8);

        let has_device = *path != "socket-pair";
        assert_eq!(row["backing"] == "vfio-user", has_device, "{row:#}");
        // On a machine that does other work, a row may not be done in its time. It then says so.
        if row["not_measured"].is_string() {
            continue;
        }
        for figure in ["mean_us", "p50_us", "p99_us", "messages", "of_socket"] {
            assert!(row[figure].as_f64() > Some(0.0), "{figure} of {row:#}");
        }
        for process in ["first", "second", "engine"] {
            let counts = ["voluntary", "involuntary"].map(|kind| &row[format!("{process}_{kind}")]);
            let is_counted = process != "engine" || has_device;
            assert!(counts.iter().all(|count| count.is_number() == is_counted), "{row:#}");
        }
    }

    // The two that go through a served machine, beside each number of loops.
    assert_eq!(report["goals"].as_array().unwrap().len(), 4, "{report:#}");
}

/// How long something may take that a test waits for.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits until `attempt` returns a value.
fn wait_for<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(value) = attempt() {
            return value;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("{what}: not within {LIMIT:?}");
}

/// Returns the running processes that `parent` has started, with their command lines.
fn children_of(parent: u32) -> Vec<(u32, String)> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let child = |number: u32| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        // State and parent follow the name, which is in parentheses.
        let mut words = stat.rsplit_once(')')?.1.split_whitespace();
        let (state, parent_number) = (words.next()?, words.next()?);
        let is_running = state != "Z" && parent_number.parse() == Ok(parent);
        let command = fs::read_to_string(format!("/proc/{number}/cmdline")).ok()?;
        is_running.then_some((number, command))
    };
    numbers.filter_map(child).collect()
}

#[test]
fn busy_processes_end_on_ctrl_c_and_with_a_killed_bench() {
    for (signal, code) in [(Signal::SIGINT, Some(130)), (Signal::SIGKILL, None)] {
        let mut program = bench(&["busy", "--quick", "--json"]).stdout(Stdio::null()).spawn().unwrap();
        let children = wait_for("busy processes", || {
            let children = children_of(program.id());
            let is_busy = children.iter().any(|(_, command)| command.contains("Loop"));
            is_busy.then_some(children)
        });

        kill(Pid::from_raw(program.id() as i32), signal).unwrap();
        let status = wait_for("the bench's end", || program.try_wait().unwrap());
        assert_eq!(status.code(), code);

        for (number, command) in children {
            wait_for(&format!("the end of {command}"), || {
                let command_now = fs::read_to_string(format!("/proc/{number}/cmdline")).unwrap_or_default();
                (command_now != command).then_some(())
            });
        }
    }
}

//! A quick run of the benchmark with guests. It checks that the benchmark works, and the contents
//! of its report. No result depends on time.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/report.rs"]
mod report;

use nicforge_bench::benches::mmio::REGISTER_PATHS;
use serde_json::Value;

use crate::report::{assert_report, quick};

#[test]
fn guests_write_and_send_without_the_server_and_without_an_exit() {
    let report = quick("guest");
    let registers = REGISTER_PATHS;
    let tcp = ["virtio-net-tcp", "nicforge-virtio-net-tcp"];
    let messages = ["raw", "fcnp-poll", "velo", tcp[0], tcp[1]];
    let counted = ["counted-posted-writes", "counted-packets"];
    let trapped = ["counted-trapped-reads", "counted-trapped-writes"];

    assert_report(&report, "guest", &[&registers[..], &messages, &counted, &trapped].concat());
    for row in report["rows"].as_array().unwrap() {
        let path = row["path"].as_str().unwrap();
        assert!(["kvm", "tcg"].contains(&row["accelerator"].as_str().unwrap()), "{row:#}");
        assert_eq!(row["backing"] == "vfio", !tcp.contains(&path), "{row:#}");

        if registers.contains(&path) {
            assert!(row["p50_us"].as_f64() > Some(0.0), "{row:#}");
        } else if messages.contains(&path) {
            assert!(row["gbit_s"].as_f64() > Some(0.0), "{row:#}");
        } else if counted.contains(&path) {
            assert!(row["operations"].as_f64() >= Some(50_000.0), "{row:#}");
        } else {
            // The counters that must be zero for the other rows must not be zero for these.
            assert!(row["exits"].as_f64() >= row["operations"].as_f64(), "{row:#}");
            assert!(row["server_messages"].as_f64() >= row["operations"].as_f64(), "{row:#}");
        }
    }

    for end in ["io@guest", "io@host"] {
        let is_of_end =
            |row: &&Value| row["placement"].as_str().is_some_and(|placement| placement.starts_with(end));
        assert!(report["rows"].as_array().unwrap().iter().any(|row| is_of_end(&row)), "{end}");
    }

    let goals = report["goals"].as_array().unwrap();
    assert_eq!(goals.len(), 2 * counted.len());
    for goal in goals {
        // No operation may be counted. The limit allows for heartbeat checks, which come when the
        // engine gets no processor for a quarter of a second, and for wake-ups of the engine after
        // times in which the guest gets none.
        assert!(goal["measured"].as_f64() <= Some(20.0), "{goal:#}");
    }
}

//! The benches of the program, run quickly: that they work and what their results look like. Nothing here depends on time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::process::Command;

use serde_json::Value;

/// Runs a bench quickly and gives its report.
fn quick(name: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_nicforge"))
        .args(["bench", name, "--quick", "--json"])
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} ended with {}: {errors}", output.status);
    serde_json::from_slice(&output.stdout).expect("the report is JSON")
}

/// Asserts what every report has, and that it has a row for each of `paths`.
fn assert_report(report: &Value, name: &str, paths: &[&str]) {
    assert_eq!(report["bench"], name);
    assert!(report["machine"]["processors"].as_u64().unwrap() >= 1);
    let rows = report["rows"].as_array().unwrap();
    for path in paths {
        assert!(rows.iter().any(|row| row["path"] == *path), "no row of {path} in {report:#}");
    }
    for goal in report["goals"].as_array().unwrap() {
        assert!(goal["met"].is_boolean() && goal["measured"].is_number(), "{goal:#}");
    }
}

#[test]
fn the_machine_at_rest_is_measured() {
    let report = quick("rest");
    assert_report(&report, "rest", &["rest"]);
    assert!(report["rows"][0]["resident_mb"].as_f64().unwrap() > 1.0);
}

#[test]
fn the_list_names_every_bench_and_an_unknown_one_is_refused_with_the_names() {
    let list =
        Command::new(env!("CARGO_BIN_EXE_nicforge")).args(["bench", "list", "--json"]).output().unwrap();
    let list: Value = serde_json::from_slice(&list.stdout).unwrap();
    let refused = Command::new(env!("CARGO_BIN_EXE_nicforge")).args(["bench", "nothing"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    for bench in list["benches"].as_array().unwrap() {
        assert!(said.contains(bench["name"].as_str().unwrap()), "{said}");
    }
}

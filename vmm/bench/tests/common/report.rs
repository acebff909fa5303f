//! Runs benchmarks quickly, and checks the common parts of their reports.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::process::Command;

use serde_json::Value;

/// Runs a benchmark quickly and returns its report.
pub(crate) fn quick(name: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_nicforge-bench"))
        .args([name, "--quick", "--json"])
        .output()
        .expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} ended with {}: {errors}", output.status);
    serde_json::from_slice(&output.stdout).expect("the report is JSON")
}

/// Asserts the common parts of a report, and that it has a row for each of `paths`.
pub(crate) fn assert_report(report: &Value, name: &str, paths: &[&str]) {
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

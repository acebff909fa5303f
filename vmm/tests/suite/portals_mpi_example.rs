//! Tests the programs over Portals: MPI-style messages between the nodes of a served torus of
//! SeaStars, matched by the card and by the kernel.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::{built::built, c_program::run};

/// Runs the example on each node, and returns its output.
fn example(words: &[&str]) -> String {
    let folder = built(&["--package", "nicforge-portals-mpi", "--example", "portals_mpi"]);
    let program = folder.join("examples/portals_mpi");
    let directory = tempfile::tempdir().unwrap();
    let words: Vec<_> = ["--", program.to_str().unwrap()].into_iter().chain(words.iter().copied()).collect();
    run("seastar.toml", directory.path(), &words)
}

/// Returns the columns of the first node's lines that begin with numbers.
fn table(text: &str) -> Vec<Vec<f64>> {
    let columns = |line: &str| -> Option<Vec<f64>> {
        line.split_once('|')?.1.split_whitespace().map(|word| word.parse().ok()).collect()
    };
    text.lines().filter_map(columns).filter(|row: &Vec<f64>| !row.is_empty()).collect()
}

#[test]
fn message_rate_over_portals_has_a_row_for_each_number_of_pairs_and_size() {
    let rows = table(&example(&["message_rate", "1"]));
    assert_eq!(rows.len(), 3 * 13);
    assert!(rows.iter().all(|row| row[3] > 0.0), "{rows:?}");
}

#[test]
fn ping_pong_over_portals_has_a_time_for_each_size_in_both_modes() {
    for words in [&["ping_pong", "5"][..], &["ping_pong", "5", "host"]] {
        let rows = table(&example(words));
        assert_eq!(rows.len(), 21);
        assert!(rows.iter().all(|row| row[1] > 0.0 && row[2] >= row[1]), "{rows:?}");
    }
}

#[test]
fn random_access_over_portals_restores_its_table() {
    let out = example(&["random_access", "8"]);
    assert!(out.contains("8 ranks, 2048 words, 8192 updates"), "{out}");
    assert!(out.contains("0 words are wrong"), "{out}");
}

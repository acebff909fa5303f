//! Parallel programs over Blue Gene/Q's Message Unit in virtual time.

use std::process::{Command, Output};

use nicforge_sim::{
    cluster::{
        Cards, Cluster,
        programs::{Pairs, Passes},
    },
    world::Profile,
};

/// Thirty-two nodes with the times of the paper.
const TORUS: &str = "../../machines/bgq-timed.toml";

/// Two nodes with two subgroups each, and the paper's clocks and links.
const PAIR: &str = "name = \"pair\"\n[[bgq]]\ntorus = [2]\nsubgroups = 2\nmu_mhz = 800\nnetwork_mhz = 500\n\
                    [bgq.link]\ndelay_ns = 24\ngbit_s = 16.0\ncut_through_bytes = 32\n";

fn pair() -> Cluster<'static> {
    let cluster = Cluster::parse(PAIR, Profile::default(), 1).unwrap();
    assert_eq!(cluster.cards, Cards::MessageUnit);
    cluster
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nicforge-sim")).arg("run").args(arguments).output().unwrap()
}

/// Runs a program, and returns the rows of its result.
fn result_rows(arguments: &[&str]) -> Vec<serde_json::Value> {
    let output = run(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["ranks"], 32);
    json["results"].as_array().unwrap().clone()
}

#[test]
fn random_access_over_the_message_unit_restores_its_table() {
    let (updated, _) = pair().random_access(2, 6, Passes::WithVerification).unwrap();
    assert_eq!((updated.ranks, updated.words, updated.updates), (4, 256, 1024));
    assert_eq!(updated.wrong, Some(0));
}

#[test]
fn longer_messages_over_the_message_unit_take_longer_and_approach_the_rate_of_a_link() {
    let cluster = pair();
    let micros = |bytes| cluster.ping_pong(1, bytes, 4).unwrap() * 1e6;
    let (one, packet, eager, long) = (micros(1), micros(400), micros(2_000), micros(1 << 20));
    assert!(one < packet && packet < eager && eager < long, "{one} {packet} {eager} {long} us");

    // All packets of the two nodes take one of their links: 2 GB/s raw, 1.8 at most for data.
    let rate = f64::from(1 << 20) / long;
    assert!((1_500.0..1_800.0).contains(&rate), "{rate} MB/s");
}

#[test]
fn message_rates_of_one_pair_and_two_stay_within_the_bandwidth_of_a_link() {
    for bytes in [8, 2_000, 200_000] {
        let rate = |pairs| pair().message_rate(Pairs { pairs, bytes, window: 8, windows: 2 }).unwrap();
        let (first, second) = (rate(1), rate(2));
        assert!(first > 1_000.0 && second >= 0.95 * first, "{bytes} bytes: {first} and {second} messages/s");
        assert!(second * bytes as f64 <= 2.0e9, "{bytes} bytes: {second} messages/s");
    }
}

#[test]
fn run_carries_out_the_programs_on_message_units() {
    let latencies = result_rows(&[TORUS, "--json", "--", "ping_pong", "1"]);
    assert_eq!(latencies.len(), 21);
    assert!(latencies.iter().all(|row| row["us"].as_f64().unwrap() > 0.3), "{latencies:?}");

    let updates = result_rows(&[TORUS, "--json", "--", "random_access", "4"]);
    assert_eq!(updates[0]["wrong_words"], 0);

    let output = run(&[TORUS, "--host-based", "--", "ping_pong"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.contains("--host-based is for SeaStars"), "{stderr}");
}

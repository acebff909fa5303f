//! Parallel programs over Portals in virtual time.

use std::process::{Command, Output};

use nicforge_portals::Mode;
use nicforge_sim::{
    cluster::{
        Cards, Cluster,
        programs::{Pairs, Passes},
    },
    world::Profile,
};

/// Eight nodes with the times of the paper.
const TORUS: &str = "../../machines/seastar-timed.toml";

/// Two nodes with two processes each, and the paper's links.
const PAIR: &str = "name = \"pair\"\n[[seastar]]\ntorus = [2]\nprocesses = 2\nfirmware_mhz = 500\nht_mbytes_s = 2400\n\
                    [seastar.link]\ndelay_ns = 30\ngbit_s = 20.0\n";

/// Returns two nodes whose cards work in `mode`.
fn pair(mode: Mode) -> Cluster<'static> {
    let mut cluster = Cluster::parse(PAIR, Profile::default(), 1).unwrap();
    assert_eq!(cluster.cards, Cards::SeaStar(Mode::NicBased));
    cluster.cards = Cards::SeaStar(mode);
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
    assert_eq!(json["ranks"], 8);
    json["results"].as_array().unwrap().clone()
}

#[test]
fn random_access_over_portals_restores_its_table() {
    for mode in [Mode::NicBased, Mode::HostBased] {
        let (updated, _) = pair(mode).random_access(2, 6, Passes::WithVerification).unwrap();
        assert_eq!((updated.ranks, updated.words, updated.updates), (4, 256, 1024));
        assert_eq!(updated.wrong, Some(0), "{mode:?}");
    }
}

#[test]
fn longer_messages_over_portals_take_longer_and_approach_the_rate_of_the_host_interface() {
    let cluster = pair(Mode::NicBased);
    let micros = |bytes| cluster.ping_pong(1, bytes, 4).unwrap() * 1e6;
    let (one, packet, medium, long) = (micros(1), micros(64), micros(65_536), micros(1 << 20));

    assert!(one < packet && packet < medium && medium < long, "{one} {packet} {medium} {long} us");
    // The host interface has 2.4 GB/s, and the link 2.5.
    let rate = f64::from(1 << 20) / long;
    assert!((1_800.0..2_400.0).contains(&rate), "{rate} MB/s");
}

#[test]
fn a_second_pair_raises_the_message_rate_in_both_modes() {
    for mode in [Mode::NicBased, Mode::HostBased] {
        for bytes in [8, 4096, 200_000] {
            let rate =
                |pairs| pair(mode).message_rate(Pairs { pairs, bytes, window: 8, windows: 2 }).unwrap();
            let (first, second) = (rate(1), rate(2));
            assert!(
                first > 1_000.0 && second > first,
                "{mode:?}, {bytes} bytes: {first} and {second} messages/s"
            );
            assert!(first * bytes as f64 <= 2.4e9, "{mode:?}, {bytes} bytes: {first} messages/s");
        }
    }
}

#[test]
fn run_carries_out_the_programs_on_seastars() {
    let latencies = result_rows(&[TORUS, "--json", "--", "ping_pong", "1"]);
    assert_eq!(latencies.len(), 21);
    assert!(latencies.iter().all(|row| row["us"].as_f64().unwrap() > 1.0), "{latencies:?}");

    let rates = result_rows(&[TORUS, "--json", "--", "message_rate", "1"]);
    assert_eq!(rates.len(), 3 * 13);
    assert!(rates.iter().all(|row| row["messages_per_s"].as_f64().unwrap() > 1e4), "{rates:?}");

    let updates = result_rows(&[TORUS, "--json", "--host-based", "--", "random_access", "6"]);
    assert_eq!((&updates[0]["words"], &updates[0]["wrong_words"]), (&512.into(), &0.into()));
}

#[test]
fn the_same_run_on_seastars_prints_the_same_bytes() {
    let arguments = [TORUS, "--seed", "7", "--", "random_access", "5"];
    assert_eq!(run(&arguments).stdout, run(&arguments).stdout);
}

#[test]
fn host_based_mode_is_refused_on_extoll_cards() {
    let output = run(&["../../machines/extoll-timed.toml", "--host-based", "--", "ping_pong"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("--host-based is for SeaStars"), "{stderr}");
}

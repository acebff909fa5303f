//! Parallel programs over Blue Gene/L's torus in virtual time.

use std::process::{Command, Output};

use nicforge_sim::{
    cluster::{Cards, Cluster, programs::Passes, torus::ppc440},
    world::Profile,
};

/// Sixteen nodes with the paper's links.
const TORUS: &str = "../../machines/bgl-timed.toml";

/// Two nodes with a link in each direction of a mesh, as fast as the paper's.
const PAIR: &str = "name = \"pair\"\n[[bgl]]\ntorus = [2]\nwrap = [false]\n\
                    [bgl.link]\ndelay_ns = 69\ngbit_s = 1.4\ncut_through_bytes = 32\n";

fn pair(profile: Profile) -> Cluster<'static> {
    let cluster = Cluster::parse(PAIR, profile, 1).unwrap();
    assert_eq!((cluster.cards, cluster.nodes(), cluster.vpids()), (Cards::Torus, 2, 1));
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
    assert_eq!(json["ranks"], 16);
    json["results"].as_array().unwrap().clone()
}

#[test]
fn random_access_over_the_torus_restores_its_table() {
    let (updated, _) = pair(Profile::default()).random_access(1, 6, Passes::WithVerification).unwrap();
    assert_eq!((updated.ranks, updated.words, updated.updates), (2, 128, 512));
    assert_eq!(updated.wrong, Some(0));
}

#[test]
fn a_long_message_has_the_rate_of_a_link_less_headers_if_software_takes_no_time() {
    let seconds = pair(Profile::default()).ping_pong(1, 1 << 20, 2).unwrap();
    let rate = f64::from(1 << 20) / seconds / 1e6;
    // 240 of 260 bytes are data: 161.5 of 175 MB/s.
    assert!((140.0..161.6).contains(&rate), "{rate} MB/s");
}

#[test]
fn the_papers_software_of_a_packet_limits_a_message() {
    let seconds = pair(ppc440()).ping_pong(1, 1 << 20, 2).unwrap();
    let rate = f64::from(1 << 20) / seconds / 1e6;
    // A packet of 240 bytes takes 671 instructions of 1.43 ns at least.
    let limit = 240.0 / (671.0 / 0.7) * 1e3;
    assert!((0.5 * limit..=limit).contains(&rate), "{rate} of {limit} MB/s");
}

#[test]
fn run_carries_out_the_programs_on_the_torus() {
    let arguments = [TORUS, "--json", "--", "random_access", "4"];
    let updates = result_rows(&arguments);
    assert_eq!(updates[0]["wrong_words"], 0);
    assert_eq!(result_rows(&arguments), updates, "the same seed gives the same output");

    let output = run(&[TORUS, "--per-core", "--json", "--", "ping_pong", "1"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let output = run(&[TORUS, "--host-based", "--", "ping_pong"]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}

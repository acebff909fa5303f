//! Parallel programs over EXTOLL in virtual time, and the program's `run`.

use std::{
    convert::Infallible,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use nicforge_driver::{Deadline, runtime::Cost};
use nicforge_mpi_programs::collective::{all_reduce, barrier};
use nicforge_sim::{
    cluster::{
        Cluster, ClusterError,
        programs::{Pairs, Passes},
    },
    world::{Picos, Profile},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The paper's cluster, with links of 300 ns a hop.
const TORUS: &str = "../../machines/extoll-timed.toml";

/// Two nodes with links as fast as the paper's.
const PAIR: &str =
    "name = \"pair\"\n[[extoll]]\nmesh = 2\nvpids = 4\n[extoll.link]\ndelay_ns = 300\ngbit_s = 4.992\n";

fn nicforge_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nicforge-sim")).args(arguments).output().unwrap()
}

/// Returns two nodes with links as fast as the paper's, and software of no cost.
fn pair() -> Cluster<'static> {
    Cluster::parse(PAIR, Profile::default(), 1).unwrap()
}

#[test]
fn ranks_of_a_cluster_have_the_numbers_of_their_nodes_and_end_together() {
    let (sums, end) = pair()
        .run(3, |endpoint| {
            let rank = u64::from(endpoint.rank());
            let sum = all_reduce(endpoint, rank, |one, other| one + other, Deadline::never())?;
            Ok((rank, sum))
        })
        .unwrap();

    assert_eq!(sums, (0..6).map(|rank| (rank, 15)).collect::<Vec<_>>());
    assert!(end > Picos::nanos(600), "{end:?}");
}

#[test]
fn a_message_takes_the_time_of_its_link_and_of_the_software_of_both_ends() {
    let mut cluster = pair();
    // A message of 8 bytes is 64 on the link: 103 ns.
    let bare = cluster.ping_pong(1, 8, 4).unwrap() * 1e9;
    assert!((402.0..405.0).contains(&bare), "{bare} ns");

    cluster.profile = Profile::default()
        .with(Cost::SendMessage, Picos::nanos(1_000))
        .with(Cost::ReceiveMessage, Picos::nanos(2_000));
    let charged = cluster.ping_pong(1, 8, 4).unwrap() * 1e9;
    assert!((charged - bare - 3_000.0).abs() < 5.0, "{charged} ns, {bare} ns without software");
}

/// The trace of a run is a part of its result. It shows each message on the link, and a second run
/// has the same bytes.
#[test]
fn two_runs_give_the_same_trace() {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("pair.toml");
    std::fs::write(&machine, PAIR).unwrap();
    for name in ["trace.txt", "trace.json"] {
        let run = |number: u32| {
            let file = folder.path().join(format!("{number}-{name}"));
            let [machine, trace] = [&machine, &file].map(|path| path.to_str().unwrap());
            let output = nicforge_sim(&["run", machine, "--trace", trace, "--", "ping_pong", "1"]);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            std::fs::read_to_string(file).unwrap()
        };
        let traces = [1, 2].map(run);
        assert!(traces[0].matches("ex0:0 > ex1:0").count() >= 4, "{}", traces[0]);
        assert!(traces[0] == traces[1], "{name}: the second run has another trace");
    }
}

#[test]
fn four_pairs_share_the_link_that_one_pair_of_instant_ranks_fills() {
    let rate =
        |pairs| pair().message_rate(Pairs { pairs, bytes: 8, window: 64, windows: 8 }).unwrap() * 64.0 * 8.0;
    for pairs in [1, 4] {
        let bits = rate(pairs);
        assert!((0.88..1.02).contains(&(bits / 4.992e9)), "{pairs} pairs: {bits} bits per second");
    }
}

#[test]
fn random_access_restores_its_table() {
    let (updated, _) = pair().random_access(4, 6, Passes::WithVerification).unwrap();
    assert_eq!((updated.ranks, updated.words, updated.updates), (8, 512, 2048));
    assert_eq!(updated.wrong, Some(0));
}

#[test]
fn machines_without_cards_or_with_too_few_vpids_are_refused() {
    let tree = Cluster::parse("name = \"tree\"\n[[pset]]\ncompute_nodes = 1\n", Profile::default(), 1);
    assert!(matches!(tree, Err(ClusterError::NoCards { .. })), "{tree:?}");

    let ranks = pair().run(5, |_| Ok(()));
    assert!(matches!(ranks, Err(ClusterError::Vpids { vpids: 4, ranks: 5, .. })), "{ranks:?}");
}

#[test]
fn run_prints_the_result_with_the_virtual_time_and_the_costs() {
    let output = nicforge_sim(&["run", TORUS, "--", "random_access", "7"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("random_access 7 on extoll-timed, 8 ranks\n"), "{text}");
    assert!(
        text.contains("us of virtual time; costs in ns: ") && text.contains("send-message 254"),
        "{text}"
    );

    let json = nicforge_sim(&["run", TORUS, "--json", "--profile", "none", "--", "ping_pong", "1"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["ranks"], &json["profile"]), (&8.into(), &"none".into()));
    // Three hops of 300 ns, and the rest of the packet.
    let latency = json["results"][3]["us"].as_f64().unwrap();
    assert!((0.95..1.0).contains(&latency), "{json}");
}

#[test]
fn a_card_that_waits_for_credit_lets_the_time_pass() {
    // Each card announces its ring to 63 others at once, over links for two packets.
    let text = "name = \"torus\"\n[[extoll]]\ntorus = [4, 4, 4]\nvpids = 1\ncore_mhz = 156\n\
                [extoll.link]\ndelay_ns = 274\ncredits = 2\n";
    let cluster = Cluster::parse(text, Profile::default(), 1).unwrap();

    let (ranks, _) = cluster.run(1, |endpoint| Ok(endpoint.rank())).unwrap();

    assert_eq!(ranks, (0..64).collect::<Vec<_>>());
}

#[test]
fn messages_of_all_sizes_take_no_time_on_links_and_in_software_of_no_cost() {
    let text = "name = \"pair\"\n[[extoll]]\nmesh = 2\n";
    let cluster = Cluster::parse(text, Profile::default(), 1).unwrap();

    for bytes in [1 << 12, 1 << 15, 1 << 18] {
        let nanoseconds = cluster.ping_pong(1, bytes, 1).unwrap() * 1e9;
        assert!(nanoseconds < 100.0, "{bytes} bytes: {nanoseconds} ns");
    }
}

#[test]
fn a_slow_network_only_takes_longer() {
    // A packet takes 0.1 s to the other node.
    let text = "name = \"slow\"\n[[extoll]]\nmesh = 2\nwatchdog_ms = 0\n[extoll.link]\n\
                delay_ns = 100000000\n";
    let cluster = Cluster::parse(text, Profile::default(), 1).unwrap();

    let (_, end) = cluster.run(1, |_| Ok(())).unwrap();

    assert!(end > Picos::nanos(100_000_000), "{end:?}");
}

#[test]
fn the_failure_of_a_rank_ends_the_run_of_the_others() {
    let mut cluster = pair();
    cluster.limit = Duration::MAX;
    let ended = cluster.run(1, |endpoint| match endpoint.rank() {
        0 => Err(nicforge_mpi_programs::Error::<Infallible>::Timeout { what: "nothing" }.into()),
        _ => Ok(barrier(endpoint, Deadline::never())?),
    });

    assert!(matches!(ended, Err(ClusterError::Rank { rank: 0, .. })), "{ended:?}");
}

#[test]
fn the_seed_determines_the_times_of_a_program() {
    let seconds = |seed| {
        let mut cluster = pair();
        cluster.seed = seed;
        cluster.random_access(2, 6, Passes::UpdatesOnly).unwrap().0.seconds
    };

    assert_eq!(seconds(1), seconds(1));
    assert_ne!(seconds(1), seconds(2));
}

#[test]
fn run_measures_the_message_rate_as_the_papers_table_does() {
    let machine = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(machine.path(), PAIR).unwrap();
    let path = machine.path().to_str().unwrap();

    let output = nicforge_sim(&["run", path, "--json", "--profile", "none", "--", "message_rate", "8"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rate = pair().message_rate(Pairs { pairs: 1, bytes: 8, window: 64, windows: 8 }).unwrap();

    let row = &json["results"][3];
    assert_eq!((&row["pairs"], &row["bytes"]), (&1.into(), &8.into()));
    let printed = row["messages_per_s"].as_f64().unwrap();
    assert!((printed / rate - 1.0).abs() < 0.002, "{printed} and {rate}");
}

#[test]
fn run_ends_soon_after_an_interrupt() {
    let program = Command::new(env!("CARGO_BIN_EXE_nicforge-sim"))
        .args(["run", TORUS, "--", "random_access", "22"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut program = KillOnDrop(program);

    // The program blocks the signal before it begins.
    let limit = Instant::now() + Duration::from_secs(60);
    while !blocks_interrupts(program.0.id()) {
        assert!(Instant::now() < limit);
        std::thread::yield_now();
    }
    kill(Pid::from_raw(program.0.id().cast_signed()), Signal::SIGINT).unwrap();

    let ended = loop {
        if let Some(status) = program.0.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < limit);
        std::thread::yield_now();
    };
    assert_eq!(ended.code(), Some(130));
}

/// A program that is killed on drop.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // The program may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns whether a program has blocked SIGINT for good. All signals are blocked for a moment
/// before the process executes the program, and while the program starts its log's thread.
fn blocks_interrupts(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());

    let blocks = |mask: u64, signal: Signal| mask & (1 << (signal as i32 - 1)) != 0;
    blocked.is_some_and(|mask| blocks(mask, Signal::SIGINT) && !blocks(mask, Signal::SIGUSR1))
}

#[test]
fn run_refuses_unknown_programs_and_machines_with_the_possible_ones() {
    let cases = [
        (TORUS, "./a", "message_rate [WINDOWS], ping_pong [ROUNDS] and random_access [ORDER]"),
        ("../../machines/pset.toml", "ping_pong", "no EXTOLL cards"),
        ("nothing.toml", "ping_pong", "nothing.toml"),
    ];
    for (machine, program, expected) in cases {
        let output = nicforge_sim(&["run", machine, "--", program]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
}

//! Each attack at small scale, against a served machine in both event loops.
//!
//! The tests assert:
//! - the polite tenant continues with correct data;
//! - the next client is served;
//! - the server ends in time with the attacker still present.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::{Duration, Instant},
};

use nicforge_attacks::{
    arena::Size,
    attack,
    contest::{self, Contest, Setting},
};

/// Deadline of waits in tests, generous enough for a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Time between two polls of a condition, which leaves the processors to others.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Rounds of an attacker that the tests wait for.
const ATTACKS: u64 = 3;
/// Rounds of the polite tenant during and after an attack.
const ROUNDS: u64 = 20;

/// Returns the program `nicforge`, built once for each test process. With `NICFORGE_BUILT` in the
/// environment it is there, built together with the tests by `cargo xtask test`.
fn nicforge() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

    PROGRAM.get_or_init(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_nicforge-attack")).parent().unwrap();
        if std::env::var_os("NICFORGE_BUILT").is_some() {
            return folder.join("nicforge");
        }

        let mut build = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));

        // Built together with this package, so that both share its choice of features.
        build.args(["build", "--quiet", "-p", "nicforge", "-p", "nicforge-attacks", "--target-dir"]);
        build.arg(folder.parent().unwrap());
        if folder.ends_with("release") {
            build.arg("--release");
        }

        assert!(build.status().unwrap().success(), "the program was not built");

        folder.join("nicforge")
    })
}

/// Returns the setting of contests at small scale with an event loop.
fn setting(event_loop: &'static str) -> Setting {
    Setting {
        server: nicforge().to_owned(),
        attacker: env!("CARGO_BIN_EXE_nicforge-attack").into(),
        event_loop,
        size: Size::Small,
        log: None,
        guest: None,
    }
}

/// Waits until `condition` holds.
#[track_caller]
fn wait_for(description: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "{description} did not happen in {LIMIT:?}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Runs an attack until some rounds of attacker and tenant are over, and then asks the server to
/// end during the attack.
fn hold_against(name: &str, event_loop: &'static str) {
    let attack = attack::find(name).unwrap();
    let mut contest = Contest::start(&setting(event_loop), attack).unwrap();

    let mut is_impossible = false;
    wait_for("the attack", || {
        is_impossible = contest.check_attacker_ended().unwrap() && contest.reports().not_run.is_some();
        let reports = contest.reports();
        assert_eq!(reports.harmed, None, "an honest peer was harmed");
        is_impossible || reports.landed + reports.cut >= ATTACKS
    });

    if is_impossible {
        return eprintln!("{name} is impossible here: {}", contest.reports().not_run.unwrap());
    }

    let reports = contest.reports();
    assert!(!attack.has_honest_ranks || reports.cut == 0, "{reports:?}");

    let before = contest.tenant_rounds();
    wait_for("the tenant's work", || contest.tenant_rounds() >= before + ROUNDS);
    contest.newcomer();

    let outcome = contest.finish().unwrap();
    assert_eq!((outcome.tenant.lost, outcome.tenant.wrong), (None, 0));
    assert_eq!((outcome.newcomers.served, outcome.newcomers.failed), (1, 0));
    assert!(outcome.end.sockets.is_some(), "sockets are left");

    if attack.kernel_keeps_process {
        return;
    }

    assert!(outcome.end.process.is_some(), "the server did not end");
    assert!(outcome.end.succeeded, "the server ended with a failure");
}

/// Runs an attack, kills the attacker, and checks that the next client is served on the same
/// socket.
fn serve_after(name: &str, event_loop: &'static str) {
    let attack = attack::find(name).unwrap();
    let contest = Contest::start(&setting(event_loop), attack).unwrap();
    wait_for("the attack", || {
        let reports = contest.reports();
        reports.not_run.is_some() || reports.landed + reports.cut >= ATTACKS
    });

    let (_, after) = contest.without_attacker();
    for socket in ["target.user0", "target.user1", "send.user0"] {
        assert!(contest::is_served(&after.server.socket(socket), LIMIT), "{socket} is not served");
    }

    let before = after.tenant.rounds();
    wait_for("the tenant's work", || after.tenant.rounds() >= before + ROUNDS);
}

macro_rules! attacks {
    ($($test:ident $name:literal;)*) => {$(
        mod $test {
            #[test]
            fn tenant_keeps_working_and_server_ends_in_time_with_epoll() {
                super::hold_against($name, "epoll");
            }

            #[test]
            fn tenant_keeps_working_and_server_ends_in_time_with_io_uring() {
                super::hold_against($name, "io_uring");
            }

            #[test]
            fn next_client_is_served() {
                super::serve_after($name, "epoll");
            }
        }
    )*

    /// The attacks that have tests.
    const TESTED: &[&str] = &[$($name),*];
    };
}

attacks! {
    close_socket "close-socket";
    close_memory "close-memory";
    close_fuse "close-fuse";
    unmap_memory "unmap-memory";
    reset_reconnect "reset-reconnect";
    read_reconnect "read-reconnect";
    cut_transfers "cut-transfers";
    watch_socket "watch-socket";
    watch_eventfd "watch-eventfd";
    block_eventfd "block-eventfd";
    map_descending "map-descending";
    map_mixed "map-mixed";
    pending_descriptors "pending-descriptors";
    connect "connect";
    touch_sparse "touch-sparse";
    punch_holes "punch-holes";
    touch_huge "touch-huge";
    remap "remap";
    log_storm "log-storm";
    tree "tree";
    velo "velo";
    ack_flood "ack-flood";
    extoll_window "extoll-window";
    mu_gets "mu-gets";
    torus_gets "torus-gets";
    torus_answers "torus-answers";
}

#[test]
fn each_attack_has_tests() {
    let names: Vec<_> = attack::ATTACKS.iter().map(|attack| attack.name).collect();

    let mut tested = TESTED.to_vec();
    tested.sort_by_key(|name| names.iter().position(|other| other == name));

    assert_eq!(tested, names);
}

//! The ends of servers whose engine is held or panics.

use std::time::Instant;

use super::*;
use crate::{cli::EventLoop, failure::EXIT_PANICKED};

/// The longest wait for anything in these tests.
const SOON: Duration = Duration::from_secs(60);
/// The time within which a server must end after a signal.
const IN_TIME: Duration = Duration::from_secs(2);

/// Serves a machine of one function in the directory `m` of a new folder.
fn serve() -> (tempfile::TempDir, Served) {
    let folder = tempfile::tempdir().unwrap();
    let text = "name = \"m\"\n[[function]]\nname = \"fifo0\"\nkind = \"slot-fifo\"\n";
    let plan = description::parse(text, "a test's machine", &nicforge_nics::families()).unwrap();
    let options = ServeOptions::new(Some(folder.path().join("m")), EventLoop::Auto);
    let served = Served::start_plan(&plan, &options).unwrap();
    (folder, served)
}

#[test]
fn a_server_with_a_blocked_engine_removes_its_sockets_and_stops_in_time() {
    let (folder, served) = serve();

    assert!(folder.path().join("m/fifo0.user0").exists());
    let (held, is_held) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let hold = move |_: &mut nicforge_engine::Control<'_>| {
        held.send(()).unwrap();
        // The receive ends with the test.
        let _ = released.recv();
    };

    served.handle.send(hold).unwrap();
    is_held.recv_timeout(SOON).unwrap();

    let since = Instant::now();
    let failure = served.stop().unwrap_err();

    assert!(since.elapsed() < IN_TIME, "{:?}", since.elapsed());
    assert_eq!(failure.code, EXIT_HELD);
    assert!(!folder.path().join("m").exists(), "the directory is left behind");
    drop(release);
}

#[test]
fn a_server_whose_engine_panics_exits_with_a_specific_code_and_removes_its_sockets() {
    let (folder, served) = serve();

    served.handle.send(|_| std::panic::panic_any("a broken command")).unwrap();
    let until = Instant::now() + SOON;
    while !served.has_failed() {
        assert!(Instant::now() < until, "the engine goes on");
        std::thread::yield_now();
    }
    let failure = served.stop().unwrap_err();

    assert_eq!(failure.code, EXIT_PANICKED);
    assert!(failure.message.contains("a broken command"), "{failure}");
    assert!(!folder.path().join("m").exists(), "the directory is left behind");
}

//! A pset in this process, and calls of its compute cores in special situations.

use std::{sync::Arc, thread, time::Duration};

use nicforge_machine::{build::build, description::parse, in_process::LocalMachine};
use nicforge_nics::families;

use super::*;
use crate::IoNode;

/// Longer than any wait of these tests.
pub(super) const LIMIT: Duration = Duration::from_secs(20);

/// A pset with an I/O node and one compute node.
pub(super) struct Pset(Arc<LocalMachine>);

impl Pset {
    pub(super) fn new() -> Self {
        let description =
            parse("name = \"p\"\n[[pset]]\ncompute_nodes = 1\n", "p.toml", &families()).unwrap();
        Self(LocalMachine::new(build(&description).unwrap().0))
    }

    /// Opens a core of a node.
    fn device(&self, node: &str, core: &str) -> Device {
        Device::from_backing(self.0.open_named(node, core).unwrap()).unwrap()
    }

    /// Serves the I/O node from its core 0.
    pub(super) fn io(&self) -> IoNode {
        IoNode::open(self.device("io0", "core0"), config()).unwrap()
    }

    /// Opens a core of the compute node.
    pub(super) fn core(&self, core: &str) -> ComputeCore {
        ComputeCore::open(self.device("cn0", core), config()).unwrap()
    }
}

fn config() -> Config {
    Config { timeout: Some(LIMIT), open_timeout: LIMIT, ..Config::default() }
}

#[test]
fn call_that_is_cancelled_or_late_at_its_start_sends_no_request() {
    let pset = Pset::new();
    let (_io, core) = (pset.io(), pset.core("core0"));
    let cancelled = Cancel::new().unwrap();
    cancelled.cancel();
    let sent = core.statistics().packets_sent;

    let write = core.write_until(&[1; 100], Deadline::never(), Some(&cancelled));
    let read = core.read_until(&mut [0; 100], Deadline::now(), None);

    assert!(matches!(write, Err(Error::Cancelled { .. })));
    assert!(matches!(read, Err(Error::Timeout { .. })));
    assert_eq!(core.statistics().packets_sent, sent);
}

#[test]
fn another_core_of_the_io_node_may_come_while_a_request_is_withdrawn() {
    let pset = Pset::new();
    let (io, core) = (pset.io(), pset.core("core0"));
    let neighbour = TreeChannel::open(pset.device("cn0", "core1")).unwrap();
    core.state(Direction::Read).needs_reset.store(true, Ordering::Release);

    // The RESET cannot leave before the other core has come.
    let guard = neighbour.send_lock().try_lock(neighbour.owner()).unwrap();
    thread::scope(|scope| {
        let write = scope.spawn(|| core.write(&[1; 100]));
        while core.handshake.try_lock().is_ok() {
            thread::yield_now();
        }

        let other = pset.device("io0", "core1");
        let io_node = neighbour.info().io_node;
        let mut relax = neighbour.device().new_relax();
        while !neighbour.presence(io_node, 1).is_up() {
            neighbour.relax(&mut relax).unwrap();
        }
        drop(guard);

        let read = scope.spawn(|| io.read(0, &mut [0; 100]));
        assert_eq!(write.join().unwrap(), Ok(100));
        assert_eq!(read.join().unwrap(), Ok(100));
        drop(other);
    });
}

//! Processes and nodes that end in the middle of messages.

use nicforge_portals::{Ack, Error, EventKind, Failure, Mode, Options, ProcessId, Target};
use nicforge_test_body::body;

use super::{BITS, Bench, MACHINE, MODES, PORTAL, Process, kernel};
use crate::{backing::Rig, pattern::pattern};

/// Length of the messages: many packets.
const LONG: u64 = 1 << 20;

/// A process that ends while it sends and receives disturbs no other process, and a new process
/// replaces it.
#[body]
pub fn a_process_that_ends_leaves_the_node_working(rig: &dyn Rig) {
    let kernels = [kernel(rig, 0), kernel(rig, 1)];
    for mode in MODES {
        let local = Process::new(rig, &kernels[0], 0, mode);
        let source = local.region(LONG);
        let from = local.bind(&source);
        let put = |to: &Process| local.put(&from, (0, LONG), &Target::new(to.id(), PORTAL, BITS));

        for round in 0..3 {
            let victim = Process::new(rig, &kernels[1], 0, mode);
            let sink = victim.region(LONG);
            victim.post(&victim.over(&sink, Options::PUT | Options::MANAGE_REMOTE));
            let back = victim.bind(&sink);
            (0..2 + round).for_each(|_| put(&victim));
            victim.put(&back, (0, LONG), &Target::new(local.id(), PORTAL, BITS));
            drop(victim);

            let bench = Bench { processes: &[&local] };
            let kinds: Vec<_> =
                (0..2 + round).flat_map(|_| [EventKind::SendStart, EventKind::SendEnd]).collect();
            bench.wait_for_events(&local, &kinds);
        }

        let next = Process::new(rig, &kernels[1], 0, mode);
        let sink = next.region(LONG);
        next.post(&next.over(&sink, Options::PUT | Options::MANAGE_REMOTE | Options::START_DISABLE));
        let bytes = pattern(7, LONG as usize);
        source.write(0, &bytes).unwrap();
        put(&next);
        let bench = Bench { processes: &[&local, &next] };
        assert_eq!(bench.wait_for_event(&next).failure, None);
        let mut arrived = vec![0; LONG as usize];
        sink.read(0, &mut arrived).unwrap();
        assert!(arrived == bytes);
    }
}

/// Messages to a node that was reset fail, its own objects end, and it works again after a boot.
#[body]
pub fn a_node_that_is_reset_fails_the_messages_to_it(rig: &dyn Rig) {
    for mode in MODES {
        let kernels = [kernel(rig, 0), kernel(rig, 1)];
        let (local, remote) =
            (Process::new(rig, &kernels[0], 0, mode), Process::new(rig, &kernels[1], 0, mode));
        let source = local.region(LONG);
        let from = local.bind(&source);
        let target = Target::new(remote.id(), PORTAL, BITS);
        rig.reset("ss1");

        let bench = Bench { processes: &[&local] };
        local.interface.put_region(&from, 0, LONG, Ack::Requested, &target, 0).unwrap();
        let events = bench.wait_for_events(&local, &[EventKind::SendStart, EventKind::SendEnd]);
        assert_eq!(events[1].failure, Some(Failure::Node));
        let is_gone = |error: Error| error.is_gone();
        bench.wait_until("the process sees the end of its node's epoch", || {
            remote.queue.get().err().map(is_gone).filter(|&gone| gone)
        });
        let [_, old_kernel] = kernels;
        drop((remote, old_kernel));

        let new_kernel = kernel(rig, 1);
        let remote = Process::new(rig, &new_kernel, 0, mode);
        let sink = remote.region(LONG);
        remote.post(&remote.over(&sink, Options::PUT | Options::MANAGE_REMOTE | Options::START_DISABLE));
        local.interface.put_region(&from, 0, LONG, Ack::No, &target, 0).unwrap();
        let bench = Bench { processes: &[&local, &remote] };
        let end = bench.wait_for_event(&remote);
        assert_eq!((end.kind, end.failure), (EventKind::PutEnd, None));
    }
}

/// A message to a process that does not exist is dropped, and its sender is not disturbed.
#[body]
pub fn a_message_to_no_process_is_dropped(rig: &dyn Rig) {
    let kernels = [kernel(rig, 0), kernel(rig, 1)];
    let local = Process::new(rig, &kernels[0], 0, Mode::NicBased);
    let source = local.region(LONG);
    let from = local.bind(&source);
    let bench = Bench { processes: &[&local] };

    // Node 1 has booted, but has no process.
    for length in [8, LONG] {
        local.put(&from, (0, length), &Target::new(ProcessId { node: 1, process: 1 }, PORTAL, BITS));
        let events = bench.wait_for_events(&local, &[EventKind::SendStart, EventKind::SendEnd]);
        assert!(events.iter().all(|event| event.failure.is_none()), "{events:?}");
    }
}

/// A get fails when its target's node ends before the reply.
#[body]
pub fn a_get_without_a_reply_fails_with_its_node(rig: &dyn Rig) {
    for mode in MODES {
        let kernels = [kernel(rig, 0), kernel(rig, 1)];
        let local = Process::new(rig, &kernels[0], 0, mode);
        // Its kernel handles no event, so that no reply is sent.
        let remote = Process::new(rig, &kernels[1], 0, Mode::HostBased);
        let sink = local.region(4096);
        let into = local.bind(&sink);
        local.interface.get(&into, &Target::new(remote.id(), PORTAL, BITS)).unwrap();
        rig.settle();
        rig.reset("ss1");

        let bench = Bench { processes: &[&local] };
        let event = bench.wait_for_event(&local);
        assert_eq!((event.kind, event.failure), (EventKind::ReplyEnd, Some(Failure::Node)));
        local.interface.unlink_descriptor(&into).unwrap();
    }
}

//! The numbers of receives and events that a process can have.

use nicforge_portals::{
    Ack, Criteria, Descriptor, Error, EventKind, MemoryDescriptor, Mode, Options, Position, Refusal, Target,
    Threshold, Unlink,
};
use nicforge_test_body::body;

use super::{BITS, Bench, MACHINE, PORTAL, Process, kernel};
use crate::backing::Rig;

/// Number of posted receives that the host-based mode has room for.
const MANY: u64 = 10_000;
/// Least number of posted receives that the NIC-based mode has room for.
const LEAST: u64 = 1_000;

/// Posts up to `maximum` receives, each for match bits of its own. Returns those that found room,
/// and the error of the next.
fn post_many(
    process: &Process,
    values: &Descriptor<'_>,
    maximum: u64,
) -> (Vec<MemoryDescriptor>, Option<Error>) {
    let mut posted = Vec::new();
    for number in 0..maximum {
        let position = Position::Tail(PORTAL);
        let criteria = Criteria::bits(BITS + number);
        match process.interface.post(position, criteria, Unlink::Automatic, values, None) {
            Ok(created) => posted.extend(created.map(|(_, descriptor)| descriptor)),
            Err(error) => return (posted, Some(error)),
        }
    }
    (posted, None)
}

/// The card holds at least 1,000 posted receives, and then has no space. The kernel holds 10,000.
/// The last one is found in both.
#[body]
pub fn many_receives_can_be_posted(rig: &dyn Rig) {
    let kernels = [kernel(rig, 0), kernel(rig, 1)];
    let sender = Process::new(rig, &kernels[0], 0, Mode::NicBased);
    let source = sender.region(4096);
    let from = sender.bind(&source);

    for (number, mode) in [(0, Mode::NicBased), (1, Mode::HostBased)] {
        let receiver = Process::new(rig, &kernels[1], number, mode);
        let bench = Bench { processes: &[&sender, &receiver] };
        let sink = receiver.region(4096);
        let values = Descriptor {
            threshold: Threshold::Operations(1),
            unlink: Unlink::Automatic,
            ..receiver.over(&sink, Options::PUT | Options::START_DISABLE)
        };
        let (posted, error) = post_many(&receiver, &values, MANY);
        let count = posted.len() as u64;

        match mode {
            Mode::NicBased => {
                assert!((LEAST..MANY).contains(&count), "{count} receives fit");
                assert_eq!(error.unwrap().refusal(), Some(Refusal::NoSpace));
            }
            Mode::HostBased => assert_eq!((count, error), (MANY, None)),
        }

        sender.put(&from, (0, 100), &Target::new(receiver.id(), PORTAL, BITS + count - 1));
        let events = bench.wait_for_events(&receiver, &[EventKind::PutEnd, EventKind::Unlink]);
        assert_eq!(events[0].descriptor, posted[posted.len() - 1].id());
        // The unlinked entry makes room.
        assert_eq!(post_many(&receiver, &values, 1).0.len(), 1);
    }
}

/// Events that are not taken in time are reported as lost.
#[body]
pub fn a_queue_that_is_not_read_reports_lost_events(rig: &dyn Rig) {
    super::in_both_modes(rig, |local, remote, bench| {
        let (source, sink) = (local.region(4096), remote.region(4096));
        let from = local.bind(&source);
        let small = remote.interface.allocate_queue(7).unwrap();
        assert_eq!(small.capacity(), 7);
        let options = Options::PUT | Options::MANAGE_REMOTE | Options::START_DISABLE;
        remote.post(&Descriptor { queue: Some(&small), ..remote.over(&sink, options) });

        let target = Target::new(remote.id(), PORTAL, BITS);
        for number in 0..20 {
            local.interface.put_region(&from, 0, 8, Ack::Requested, &target, number).unwrap();
            let kinds = [EventKind::SendStart, EventKind::SendEnd, EventKind::Ack];
            bench.wait_for_events(local, &kinds);
        }

        assert!(matches!(small.get(), Err(Error::EventsLost { .. })));
        let remaining: Vec<_> =
            std::iter::from_fn(|| small.get().unwrap()).map(|event| event.message.header_data).collect();
        assert_eq!(remaining.last(), Some(&19));
        assert!(remaining.windows(2).all(|pair| pair[1] == pair[0] + 1));
    });
}

/// An event queue that finds no memory leaves that of smaller queues to later ones.
#[body]
pub fn a_refused_queue_leaves_memory_for_smaller_ones(rig: &dyn Rig) {
    // These and the next queue fit into a region that queues share; the large one needs its own.
    const SMALL: u32 = 64;
    const LARGE: u32 = 2000;
    let kernel = kernel(rig, 0);
    let process = Process::new(rig, &kernel, 0, Mode::NicBased);
    let first = process.interface.allocate_queue(SMALL).unwrap();
    let full = std::iter::repeat_with(|| process.interface.allocate(4096)).find_map(Result::err);
    assert_eq!(full, Some(Error::TooManyRegions));

    assert_eq!(process.interface.allocate_queue(LARGE).unwrap_err(), Error::TooManyRegions);
    let second = process.interface.allocate_queue(SMALL).unwrap();
    assert_eq!((first.capacity(), second.capacity()), (127, 127));
}

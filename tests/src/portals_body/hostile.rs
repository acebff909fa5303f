//! A hostile process, which writes random commands into its mailbox.

use std::{cell::Cell, sync::atomic::Ordering};

use nicforge_driver::Device;
use nicforge_hwi::seastar::{
    BAR_MIRROR, BAR_WINDOW, Command, CommandResult, NO_HANDLE, RESULT_BYTES, SLOTS, code, command, mirror,
    window,
};
use nicforge_portals::{Descriptor, EventKind, Interface, Mode, Options, Region, Target, Threshold, Unlink};
use nicforge_test_body::body;
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::{BITS, Bench, MACHINE, PORTAL, Process, kernel};
use crate::{
    backing::{Rig, test_deadline},
    pattern::pattern,
    random::runner,
};

/// A process's mailbox without the library.
struct RawMailbox {
    device: Device,
    windows: nicforge_shm::Window,
    mirrors: nicforge_shm::Window,
    next: Cell<u32>,
}

impl RawMailbox {
    /// Returns the mailbox of a device, which continues after the library's last command.
    fn new(device: &Device) -> Self {
        let windows = device.bar(BAR_WINDOW).unwrap().window(window::BASE, window::SIZE).unwrap();
        let mirrors = device.bar(BAR_MIRROR).unwrap().window(mirror::BASE, mirror::SIZE).unwrap();
        let next = windows.u32(window::COMMAND_TAIL).unwrap().load(Ordering::Acquire);
        let next = Cell::new(next);
        Self { device: device.clone(), windows, mirrors, next }
    }

    /// Writes bytes as a command, and returns its result.
    fn call(&self, bytes: &[u8]) -> CommandResult {
        let slot = u64::from(self.next.get() % SLOTS);
        self.windows.write(window::COMMANDS + slot * bytes.len() as u64, bytes).unwrap();
        self.next.set(self.next.get().wrapping_add(1));
        self.set_tail(self.next.get());

        let entry_offset = mirror::RESULTS + slot * RESULT_BYTES as u64;
        let mut result = [0; RESULT_BYTES];
        let mirrors = &self.mirrors;
        let number = |result: &[u8; RESULT_BYTES]| CommandResult::read_from_bytes(result).unwrap().number;
        let done = self.device.wait_until(test_deadline(), None, || {
            mirrors.read(entry_offset, &mut result).unwrap();
            number(&result) == self.next.get()
        });
        done.unwrap();
        CommandResult::read_from_bytes(&result).unwrap()
    }

    /// Stores the number of commands so far, and rings the doorbell.
    fn set_tail(&self, value: u32) {
        self.windows.u32(window::COMMAND_TAIL).unwrap().store(value, Ordering::Release);
        self.device.doorbell().after_store().unwrap();
    }
}

/// Sends a message from one process that is not hostile to another, and checks it.
fn exchange((local, source): (&Process, &Region), (remote, sink): (&Process, &Region), round: u64) {
    let bench = Bench { processes: &[local, remote] };
    let from = local.bind(source);
    let values = remote.over(sink, Options::PUT | Options::START_DISABLE);
    let once = Descriptor { threshold: Threshold::Operations(1), unlink: Unlink::Automatic, ..values };
    remote.post(&once);
    let bytes = pattern(round, 3000);
    source.write(0, &bytes).unwrap();

    local.put(&from, (0, 3000), &Target::new(remote.id(), PORTAL, BITS));
    let events = bench.wait_for_events(remote, &[EventKind::PutEnd, EventKind::Unlink]);
    assert_eq!((events[0].peer, events[0].failure), (local.id(), None));
    let mut arrived = vec![0; 3000];
    sink.read(0, &mut arrived).unwrap();
    assert!(arrived == bytes);
    bench.wait_for_events(local, &[EventKind::SendStart, EventKind::SendEnd]);
    local.interface.unlink_descriptor(&from).unwrap();
}

/// A command can't name memory outside the address map, and can't set what the card trusts.
#[body]
pub fn commands_outside_the_address_map_are_refused(rig: &dyn Rig) {
    let kernel = kernel(rig, 0);
    let device = rig.open("ss0", "p0");
    let interface = Interface::open(&kernel, device.clone(), Mode::NicBased).unwrap();
    let region = interface.allocate(4096).unwrap();
    let mailbox = RawMailbox::new(&device);
    let bind = Command {
        kind: command::BIND_DESCRIPTOR,
        queue: NO_HANDLE,
        test_queue: 0,
        threshold: -1,
        start: region.address(),
        length: 4096,
        ..Command::default()
    };

    assert_eq!(mailbox.call(bind.as_bytes()).code, code::OK);
    for (start, length) in [
        (region.address() - 1, 1),
        (region.address(), region.len() + 1),
        (region.address() + region.len(), 1),
        (u64::MAX, 2),
        (0, u64::MAX),
    ] {
        let outside = Command { start, length, ..bind };
        assert_eq!(mailbox.call(outside.as_bytes()).code, code::SEGMENT_VIOLATION, "{start:#x} {length:#x}");
    }
    let queue = Command {
        kind: command::ALLOCATE_QUEUE,
        length: 1 << 16,
        start: region.address(),
        ..Command::default()
    };
    assert_eq!(mailbox.call(queue.as_bytes()).code, code::SEGMENT_VIOLATION);
    let unknown = Command { kind: 77, ..Command::default() };
    assert_eq!(mailbox.call(unknown.as_bytes()).code, code::COMMAND_INVALID);
}

/// Random commands, and counts that are not possible, disturb no other process.
#[body]
pub fn a_hostile_mailbox_does_not_disturb_other_processes(rig: &dyn Rig) {
    let kernels = [kernel(rig, 0), kernel(rig, 1)];
    let device = rig.open("ss0", "p0");
    let hostile = Interface::open(&kernels[0], device.clone(), Mode::NicBased).unwrap();
    let region = hostile.allocate(4096).unwrap();
    let (local, remote) = (
        Process::new(rig, &kernels[0], 1, Mode::NicBased),
        Process::new(rig, &kernels[1], 0, Mode::NicBased),
    );
    let (source, sink) = (local.region(4096), remote.region(4096));
    let exchange = |round| exchange((&local, &source), (&remote, &sink), round);
    let mailbox = RawMailbox::new(&device);
    let round = Cell::new(0_u64);

    let plausible =
        (0u16..18, any::<u16>(), 0u32..0x4_0004, 0u64..5000, -1i32..3, 0u8..70, any::<[u64; 4]>());
    let cases = prop_oneof![
        plausible.prop_map(move |(kind, options, handle, length, threshold, portal, words)| {
            let command = Command {
                kind,
                options,
                handle,
                queue: if words[0] & 1 == 0 { NO_HANDLE } else { handle },
                test_queue: NO_HANDLE,
                start: if words[1] & 3 == 0 { words[1] } else { region.address() },
                length,
                match_bits: words[2],
                threshold,
                node: (words[3] % 3) as u32,
                process: (words[3] >> 8) as u16 % 3,
                portal,
                ..Command::default()
            };
            command.as_bytes().to_vec()
        }),
        prop::collection::vec(any::<u8>(), 128),
    ];
    runner(rig, 300)
        .run(&cases, |bytes| {
            mailbox.call(&bytes);
            round.set(round.get() + 1);
            if round.get().is_multiple_of(20) {
                exchange(round.get());
            }
            Ok(())
        })
        .unwrap();

    let next = mailbox.next.get();
    for invalid_tail in [next.wrapping_add(SLOTS + 1), next.wrapping_sub(1), next ^ 1 << 31] {
        mailbox.set_tail(invalid_tail);
        exchange(1000);
    }
    drop(hostile);
    exchange(1001);
}

//! Panics of devices: each takes its own function out of service, and nothing else.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "all of this file is tests")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Ended, Progress, Reset, Write},
    dma::{DmaAccess, DmaError, DmaLease},
    fabric::{LinkId, LinkSpec, Packet, Ports},
    ids::{Address, AttachmentId, DmaToken, FunctionId},
    interrupt::REQUEST,
    machine::{Access, Machine, MachineError, region},
    panic::DeviceMethod,
    spec::{FunctionSpec, SpecError},
    time::Nanos,
};
use nicforge_hwi::attachment::mirror;

use crate::common::*;

/// The function beside the one whose device panics.
const OTHER: FunctionId = FunctionId(1);
/// A register of the devices.
const REGISTER: u64 = 0x10;
/// Address and size of the client memory that a device leases.
const LEASED: u64 = 0x1000;

/// A device that panics in one method, from the moment on at which the test names the method.
struct Fragile {
    breaks_in: Arc<Mutex<Option<DeviceMethod>>>,
    /// Calls of its methods since it panicked.
    calls_after: Arc<AtomicU32>,
    has_panicked: bool,
    breaks_in_drop: bool,
    drops: Arc<AtomicU32>,
    leases: Vec<DmaLease>,
}

/// A test's access to a [`Fragile`] device.
#[derive(Default)]
struct Handle {
    breaks_in: Arc<Mutex<Option<DeviceMethod>>>,
    calls_after: Arc<AtomicU32>,
    drops: Arc<AtomicU32>,
}

impl Handle {
    /// Returns the device, which also panics in its drop if `breaks_in_drop`.
    fn device(&self, breaks_in_drop: bool) -> Box<Fragile> {
        Box::new(Fragile {
            breaks_in: self.breaks_in.clone(),
            calls_after: self.calls_after.clone(),
            has_panicked: false,
            breaks_in_drop,
            drops: self.drops.clone(),
            leases: Vec::new(),
        })
    }

    /// Has the device panic in `method` from now on.
    fn break_in(&self, method: DeviceMethod) {
        *self.breaks_in.lock().unwrap() = Some(method);
    }
}

impl Fragile {
    /// Panics if the device is broken in `method`, which it has just entered.
    fn enter(&mut self, method: DeviceMethod) {
        self.calls_after.fetch_add(u32::from(self.has_panicked), Ordering::Relaxed);
        if self.is_broken(method) {
            self.has_panicked = true;
            panic!("broken\n in {}", method.name());
        }
    }

    fn is_broken(&self, method: DeviceMethod) -> bool {
        *self.breaks_in.lock().unwrap() == Some(method)
    }
}

impl Device for Fragile {
    fn spec(&self) -> FunctionSpec {
        assert!(!self.is_broken(DeviceMethod::Spec), "broken in spec");
        spec()
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, data: &mut [u8]) {
        data.fill(0);
        self.enter(DeviceMethod::Read);
    }

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        self.enter(DeviceMethod::Write);
        self.enter(DeviceMethod::Drain);
        Write::Accepted
    }

    fn attached(&mut self, _: &mut Context<'_>, _: AttachmentId) {
        self.enter(DeviceMethod::Attached);
    }

    fn detached(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Ended) {
        self.enter(DeviceMethod::Detached);
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {
        self.enter(DeviceMethod::Reset);
    }

    fn dma_done(&mut self, _: &mut Context<'_>, _: AttachmentId, _: DmaToken, _: Result<&[u8], DmaError>) {
        self.enter(DeviceMethod::DmaDone);
    }

    fn leases_ended(&mut self, _: &mut Context<'_>, _: AttachmentId) {
        self.enter(DeviceMethod::LeasesEnded);
    }

    fn link_changed(&mut self, _: &mut Context<'_>, _: u8, _: bool) {
        self.enter(DeviceMethod::LinkChanged);
    }

    fn step(&mut self, context: &mut Context<'_>, _: u32) -> Progress {
        if self.is_broken(DeviceMethod::DmaDone) {
            // The map is empty, so the read ends with an error.
            context.dma_read(A, 0, 8, DmaToken(0)).unwrap();
        }
        if self.is_broken(DeviceMethod::LeasesEnded) {
            self.leases.push(context.dma_lease(A, LEASED, LEASED, DmaAccess::Write).unwrap());
        }
        self.enter(DeviceMethod::Step);
        Progress::Idle
    }

    fn counters(&self) -> Vec<Counter> {
        assert!(!self.is_broken(DeviceMethod::Counters), "broken\n in counters");
        Vec::new()
    }

    fn peek(&self, _: &Ports<'_>, _: AttachmentId, _: Address, _: &mut [u8]) -> bool {
        assert!(!self.is_broken(DeviceMethod::Peek), "broken in peek");
        true
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
        if self.breaks_in_drop {
            panic_any("broken in drop");
        }
    }
}

/// Returns a machine whose first function is fragile, and linked to a second one. Both have a
/// client at their first attachment. The probe is that of the second function.
fn fragile(breaks_in_drop: bool) -> (Machine, Handle, Probe) {
    let (mut machine, handle) = (Machine::new(), Handle::default());
    machine.add_function("node0", handle.device(breaks_in_drop)).unwrap();
    let (_, other) = add(&mut machine, "node1", spec());
    machine.fabric().connect((F, 0), (OTHER, 0), LinkSpec::default()).unwrap();
    attach(&mut machine, A);
    machine.attach(OTHER, A).unwrap();
    step_until_idle(&mut machine, 0);
    other.calls();
    (machine, handle, other)
}

/// Returns whether the link at a function's port 0 is up.
fn is_up(machine: &mut Machine, function: FunctionId) -> bool {
    machine.fabric().ports(function, Nanos::ZERO).is_up(0)
}

/// Asserts that the first function is out of service because its device panicked in this method,
/// and that the second one continues.
#[track_caller]
fn assert_contained(machine: &mut Machine, handle: &Handle, other: &Probe, method: DeviceMethod) {
    let panic = machine.device_panic(F).expect("the function is out of service");
    assert_eq!(panic.to_string(), format!("panicked in {0}: broken in {0}", method.name()));
    assert_eq!(handle.drops.load(Ordering::Relaxed), 1);
    assert!(!is_up(machine, F) && !is_up(machine, OTHER));

    for result in [machine.attach(F, C), machine.reset_function(F)] {
        let message = result.unwrap_err().to_string();
        assert!(message.starts_with("device node0 panicked in "), "{message}");
    }
    assert!(machine.counters(F).is_empty());

    assert!(machine.device_panic(OTHER).is_none());
    assert_eq!(machine.write(OTHER, A, 0, REGISTER, &[1; 4]).unwrap(), Access::Done);
    machine.attach(OTHER, B).unwrap();
    step_until_idle(machine, 1_000_000);
    assert_eq!(other.written(), [[1; 4]]);
    assert_eq!(machine.counters(OTHER)[0].value, 1);
    assert_eq!(handle.calls_after.load(Ordering::Relaxed), 0);
}

#[test]
fn panic_in_each_method_of_a_turn_or_an_access_takes_only_its_function_out_of_service() {
    let write = |machine: &mut Machine| write(machine, A, 0, REGISTER, &[1; 4]);
    let read = |machine: &mut Machine| assert_eq!(read::<4>(machine, A, 0, REGISTER), [0xff; 4]);
    let step = |machine: &mut Machine| {
        machine.wake(F);
        step_until_idle(machine, 10);
    };
    let drain = |machine: &mut Machine| {
        Ring::new(machine, F, A).push_number(1);
        step_until_idle(machine, 10);
    };
    let reset = |machine: &mut Machine| {
        assert!(matches!(machine.reset_attachment(F, A), Err(MachineError::OutOfService { .. })));
    };
    let unplug = |machine: &mut Machine| {
        machine.fabric().set_link_up(LinkId(0), false).unwrap();
        step_until_idle(machine, 10);
    };
    let lease = |machine: &mut Machine| {
        map_local(machine, A, LEASED, LEASED as usize);
        step(machine);
    };
    let unmap = |machine: &mut Machine| {
        lease(machine);
        machine.dma_unmap(F, A, LEASED, LEASED).unwrap();
    };
    let unmap_all = |machine: &mut Machine| {
        lease(machine);
        machine.dma_unmap_all(F, A).unwrap();
    };
    let count = |machine: &mut Machine| assert!(machine.counters(F).is_empty());
    let peek = |machine: &mut Machine| {
        assert!(!machine.peek(F, A, Address { bar: 0, offset: REGISTER }, &mut [0; 4]));
    };
    type Act<'a> = &'a dyn Fn(&mut Machine);
    let acts: [(DeviceMethod, Act<'_>); 11] = [
        (DeviceMethod::Write, &write),
        (DeviceMethod::Read, &read),
        (DeviceMethod::Step, &step),
        (DeviceMethod::Drain, &drain),
        (DeviceMethod::DmaDone, &step),
        (DeviceMethod::Reset, &reset),
        (DeviceMethod::LeasesEnded, &unmap),
        (DeviceMethod::LeasesEnded, &unmap_all),
        (DeviceMethod::LinkChanged, &unplug),
        (DeviceMethod::Counters, &count),
        (DeviceMethod::Peek, &peek),
    ];

    for (method, act) in acts {
        let (mut machine, handle, other) = fragile(false);
        let request = bind(&mut machine, A, REQUEST, 0);
        let mirror = memory(&machine, A, 2);
        handle.break_in(method);

        act(&mut machine);

        assert_contained(&mut machine, &handle, &other, method);
        assert_eq!(mirror_word(&mirror, mirror::FLAGS), mirror::FLAG_DEAD, "{method:?}");
        assert_eq!(request.get(), 1, "{method:?}");
        // The client stays attached until it detaches.
        assert!(machine.is_attached(F, A));
        machine.detach(F, A, Ended::Closed).unwrap();
        assert!(!machine.is_attached(F, A));
    }
}

#[test]
fn panic_while_a_client_attaches_leaves_the_attachment_free() {
    let (mut machine, handle, other) = fragile(false);
    handle.break_in(DeviceMethod::Attached);

    let error = machine.attach(F, C).unwrap_err();

    assert!(matches!(error, MachineError::OutOfService { .. }));
    assert!(!machine.is_attached(F, C) && machine.is_attached(F, A));
    assert_contained(&mut machine, &handle, &other, DeviceMethod::Attached);
}

#[test]
fn panic_while_a_client_detaches_still_ends_the_client() {
    for method in [DeviceMethod::Detached, DeviceMethod::Reset] {
        let (mut machine, handle, other) = fragile(false);
        handle.break_in(method);

        machine.detach(F, A, Ended::Evicted).unwrap();

        assert!(!machine.is_attached(F, A));
        assert_contained(&mut machine, &handle, &other, method);
    }
}

#[test]
fn panic_in_an_operators_reset_is_its_error() {
    let (mut machine, handle, other) = fragile(false);
    handle.break_in(DeviceMethod::Reset);

    let error = machine.reset_function(F).unwrap_err().to_string();

    assert!(error.starts_with("device node0 panicked in reset: broken in reset"), "{error}");
    assert_contained(&mut machine, &handle, &other, DeviceMethod::Reset);
}

#[test]
fn panic_in_spec_refuses_the_function() {
    let (mut machine, handle) = (Machine::new(), Handle::default());
    handle.break_in(DeviceMethod::Spec);

    let error = machine.add_function("node0", handle.device(true)).unwrap_err();

    assert_eq!(error, SpecError::Panicked { message: "broken in spec".to_owned() });
    assert_eq!((handle.drops.load(Ordering::Relaxed), machine.functions()), (1, 0));
}

#[test]
fn panic_in_the_drop_is_contained_after_a_panic_and_at_the_end_of_the_machine() {
    let (mut machine, handle, other) = fragile(true);
    handle.break_in(DeviceMethod::Step);
    machine.wake(F);
    step_until_idle(&mut machine, 10);
    assert_contained(&mut machine, &handle, &other, DeviceMethod::Step);
    drop(machine);

    let (machine, handle, _) = fragile(true);
    drop(machine);

    assert_eq!(handle.drops.load(Ordering::Relaxed), 1);
}

#[test]
fn regions_of_a_function_out_of_service_read_ones_and_ignore_writes() {
    let (mut machine, handle, _) = fragile(false);
    handle.break_in(DeviceMethod::Write);
    write(&mut machine, A, 0, REGISTER, &[1; 4]);

    // Registers, control page, mapped memory and configuration space.
    for (region, offset) in [(0, REGISTER), (0, CONTROL), (1, WINDOWS), (2, 0), (region::CONFIG, 0)] {
        assert_eq!(read::<4>(&mut machine, A, region, offset), [0xff; 4]);
        assert_eq!(machine.write(F, A, region, offset, &[0; 4]).unwrap(), Access::Done);
    }
}

#[test]
fn records_behind_the_one_that_panicked_are_consumed() {
    let (mut machine, handle, _) = fragile(false);
    let mut ring = Ring::new(&machine, F, A);
    handle.break_in(DeviceMethod::Drain);

    for number in 0..3 * RING_CELLS {
        ring.push_number(number);
        step_until_idle(&mut machine, u64::from(number));
    }

    assert_eq!(machine.device_panic(F).unwrap().method, DeviceMethod::Drain);
    let mirror = memory(&machine, A, 2);
    assert_eq!(mirror_word(&mirror, mirror::RING_HEAD), 3 * RING_CELLS);
}

#[test]
fn buffer_of_a_read_returns_to_the_pool_after_a_panic() {
    const BUFFERS: usize = 64;
    let mut machine = Machine::new();
    let functions: Vec<_> = (0..BUFFERS as u32 + 1)
        .map(|number| {
            let (id, probe) = add(&mut machine, &format!("node{number}"), spec());
            machine.attach(id, A).unwrap();
            (id, probe)
        })
        .collect();
    let memory = nicforge_shm::SharedMemory::create("client", 0x1000).unwrap();
    let read = |context: &mut Context<'_>| context.dma_read(A, 0, 8, DmaToken(0));
    for (id, probe) in &functions {
        let backing = nicforge_core::dma::DmaBacking::Memory(memory.whole());
        let permission = nicforge_core::dma::DmaPermission::READ_WRITE;
        machine.dma_map(*id, A, 0, 0x1000, permission, backing).unwrap();
        let master = machine.write(*id, A, region::CONFIG, 4, &6_u16.to_le_bytes()).unwrap();
        assert_eq!(master, Access::Done);
        probe.script().panics_in_done = true;
    }

    // Each function but the last one panics while it is given the buffer of a read.
    for (id, probe) in &functions[..BUFFERS] {
        probe.queue_action(move |context| read(context).unwrap());
        machine.wake(*id);
        step_until_idle(&mut machine, 0);
        assert_eq!(machine.device_panic(*id).unwrap().method, DeviceMethod::DmaDone);
    }
    let (last, probe) = &functions[BUFFERS];
    probe.script().panics_in_done = false;
    probe.queue_action(move |context| read(context).unwrap());
    machine.wake(*last);
    step_until_idle(&mut machine, 0);

    assert_eq!(probe.done(), [(0, Ok(vec![0; 8]))]);
}

/// Returns a machine whose first function is linked by its ports 0 and 1 to port 0 of two others,
/// each of which has sent three packets to it. The probe is that of the first function.
fn chain(spec_of_links: &LinkSpec) -> (Machine, Probe) {
    let mut machine = Machine::new();
    let (middle, probe) = add(&mut machine, "node0", spec());
    for (name, port) in [("node1", 0), ("node2", 1)] {
        let (end, _) = add(&mut machine, name, spec());
        machine.fabric().connect((middle, port), (end, 0), spec_of_links.clone()).unwrap();
    }
    step_until_idle(&mut machine, 0);

    for end in [FunctionId(1), FunctionId(2)] {
        let mut ports = machine.fabric().ports(end, Nanos::ZERO);
        for number in 0..3 {
            let mut packet = ports.new_packet(8).unwrap();
            packet.bytes_mut().fill(number);
            ports.send(0, 0, packet).unwrap();
        }
    }
    (machine, probe)
}

/// Asserts that the first function of a [`chain`] has panicked after it had forwarded a number of
/// packets to the second end, and that no packet is lost: each is in the pool once the second end
/// has taken what it received, and both ends have all their credits.
#[track_caller]
fn assert_no_packet_is_lost(machine: &mut Machine, forwarded: usize) {
    step_until_idle(machine, 10_000);
    // Credits of timed links return after their delay.
    step_until_idle(machine, 20_000);
    assert!(machine.device_panic(F).is_some());

    let mut ports = machine.fabric().ports(FunctionId(2), Nanos(20_000));
    let mut received = 0;
    while let Some(packet) = ports.take(0, 0) {
        assert_eq!(packet.bytes(), [received as u8; 8]);
        ports.recycle(packet);
        received += 1;
    }
    assert_eq!(received, forwarded);
    assert_eq!(machine.fabric().packets_in_use(), 0);

    // The links are set up again only to ask for the credits.
    for link in (0..machine.fabric().links()).map(LinkId) {
        machine.fabric().set_link_up(link, true).unwrap();
    }
    for end in [FunctionId(1), FunctionId(2)] {
        assert_eq!(machine.fabric().ports(end, Nanos(20_000)).credits(0, 0), 4);
    }
}

#[test]
fn no_packet_is_lost_when_a_device_panics_while_it_handles_arrivals() {
    let timed = LinkSpec { delay: 100, ..LinkSpec::default() };
    for (links, time) in [(LinkSpec::default(), 0), (timed, 1_000)] {
        let panic_at = |limit: u8| {
            move |packet: &Packet| {
                assert!(packet.bytes()[0] < limit, "broken");
                true
            }
        };
        type Action = Box<dyn FnOnce(&mut Context<'_>) + Send>;
        // The packets that the device has forwarded when it panics, and its action.
        let acts: [(usize, Action); 5] = [
            (
                2,
                Box::new(move |context| {
                    context.ports().forward_row(0, 0, 9, |_| Some((1, panic_at(2))));
                }),
            ),
            (
                0,
                Box::new(move |context| {
                    context.ports().forward_row(0, 0, 9, |packet| {
                        assert!(packet.is_empty(), "broken");
                        Some((1, |_: &Packet| true))
                    });
                }),
            ),
            (
                0,
                Box::new(move |context| {
                    context.ports().take_while(0, 0, 9, panic_at(1));
                }),
            ),
            (
                0,
                Box::new(move |context| {
                    let mut ports = context.ports();
                    let mut arrivals = ports.take_run(0, 0, 9).unwrap();
                    arrivals.recycle_front();
                    panic!("broken");
                }),
            ),
            (
                0,
                Box::new(move |context| {
                    let mut ports = context.ports();
                    assert!(ports.route_head(0, 0).is_some() && ports.route_head(1, 0).is_some());
                    panic!("broken");
                }),
            ),
        ];

        for (forwarded, act) in acts {
            let (mut machine, probe) = chain(&links);
            probe.queue_action(act);
            machine.step(Nanos(time), 64);

            assert_no_packet_is_lost(&mut machine, forwarded);
        }
    }
}

#[test]
fn row_that_was_sent_before_a_panic_arrives() {
    let (mut machine, probe) = chain(&LinkSpec::default());
    probe.queue_action(|context| {
        let mut ports = context.ports();
        let mut run = ports.run(1, 0).unwrap();
        run.send(&[0; 8], |_| ()).unwrap();
        run.send(&[1; 8], |_| ()).unwrap();
        panic!("broken");
    });

    machine.step(Nanos(0), 64);

    assert_no_packet_is_lost(&mut machine, 2);
}

#[test]
fn wires_of_a_function_out_of_service_are_low() {
    let (mut machine, probe) = machine();
    let (_, other) = add(&mut machine, "node1", spec());
    probe.queue_action(|context| {
        context.ports().join_wire(1, true);
        context.ports().drive_wire(1, true);
    });
    other.queue_action(|context| {
        context.ports().join_wire(1, true);
        context.ports().drive_wire(1, true);
    });
    machine.wake(F);
    machine.wake(OTHER);
    step_until_idle(&mut machine, 0);
    assert!(machine.fabric().ports(OTHER, Nanos::ZERO).wire(1).and);

    probe.queue_action(|_| panic!("broken"));
    machine.wake(F);
    step_until_idle(&mut machine, 10);

    let wire = machine.fabric().ports(OTHER, Nanos::ZERO).wire(1);
    assert_eq!((wire.and, wire.or), (false, true));
}

#[test]
fn panic_outside_a_device_reaches_the_machines_owner() {
    struct Broken;
    impl nicforge_core::interrupt::InterruptSink for Broken {
        fn signal(&self) {
            panic!("a broken sink");
        }
    }
    let (mut machine, _) = attached();
    machine.bind_interrupts(F, A, REQUEST, 0, vec![Some(Arc::new(Broken))]).unwrap();

    let outcome = catch_unwind(AssertUnwindSafe(|| machine.mark_dead(F, A)));

    assert!(outcome.is_err());
    assert!(machine.device_panic(F).is_none());
}

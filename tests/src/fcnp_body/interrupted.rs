//! Bodies of FCNP calls that end before their transfer does: by deadline, by a
//! [`Cancel`], or because the peer makes no progress.

use std::{thread, time::Duration};

use nicforge_driver::{Cancel, Deadline};
use nicforge_fcnp::{
    Error, IoNode, Peer,
    protocol::{Control, CoreName, Kind, ResetHead, Scope},
    tree::TreeChannel,
};
use nicforge_hwi::{
    tree::Header,
    tree_dcr::{ARB_RCFG, dcr, rcfg},
};
use nicforge_test_body::body;
use zerocopy::IntoBytes;

use super::{LARGE, MACHINE, check_both_directions, compute_core, eventually, io_node, long_message};
use crate::backing::Rig;

/// A deadline on either side before the transfer leaves no state behind.
#[body(not_through(guests) = REAL_PROCESSORS_TIMES)]
pub fn deadlines_before_the_transfer_change_nothing(rig: &dyn Rig) {
    let (io, core) = (io_node(rig), compute_core(rig, 0));
    let short = || Deadline::after(Duration::from_millis(5));
    let mut buffer = [0; 300];

    assert!(matches!(io.read_until(0, &mut buffer, short(), None), Err(Error::Timeout { .. })));
    assert!(matches!(io.write_until(0, &buffer, short(), None), Err(Error::Timeout { .. })));
    assert!(matches!(core.write_until(&buffer, short(), None), Err(Error::Timeout { .. })));
    assert!(matches!(core.read_until(&mut buffer, short(), None), Err(Error::Timeout { .. })));

    // The core withdrew its requests, so these calls find none.
    assert!(matches!(io.read_until(0, &mut buffer, short(), None), Err(Error::Timeout { .. })));
    assert!(matches!(io.write_until(0, &buffer, short(), None), Err(Error::Timeout { .. })));

    check_both_directions(&io, &core);
}

/// A read on either side ends when its [`Cancel`] is cancelled.
#[body]
pub fn cancelled_calls_end(rig: &dyn Rig) {
    let (io, core) = (io_node(rig), compute_core(rig, 0));
    let cancel = Cancel::new().unwrap();
    let never = Deadline::never();

    thread::scope(|scope| {
        let of_io = scope.spawn(|| io.read_until(0, &mut [0; 4], never, Some(&cancel)));
        let of_core = scope.spawn(|| core.read_until(&mut [0; 4], never, Some(&cancel)));
        cancel.cancel();
        assert!(matches!(of_io.join().unwrap(), Err(Error::Cancelled { .. })));
        assert!(matches!(of_core.join().unwrap(), Err(Error::Cancelled { .. })));
    });

    check_both_directions(&io, &core);
}

/// A call of a compute core, with the [`Cancel`] that ends it.
type CancelledCall<'a> = &'a (dyn Fn(&Cancel) -> Result<usize, Error> + Sync);

/// Runs `call`. It is cancelled after its request has arrived, while `neighbour` holds the lock box
/// that its node needs for sending.
fn cancel_while_the_send_lock_is_taken(io: &IoNode, neighbour: &TreeChannel, call: CancelledCall<'_>) {
    let (cancel, arrived) = (Cancel::new().unwrap(), io.statistics().hand_overs);
    thread::scope(|scope| {
        let result = scope.spawn(|| call(&cancel));
        eventually("the request arrives", || io.statistics().hand_overs > arrived);
        let mut guard = None;
        eventually("the lock box is free", || {
            guard = neighbour.send_lock().try_lock(neighbour.owner());
            guard.is_some()
        });
        cancel.cancel();
        assert!(matches!(result.join().unwrap(), Err(Error::Cancelled { .. })));
    });
}

/// Calls that were cancelled while their node could not send are withdrawn by the core's next call
/// of any kind. The I/O node's calls do not find their requests.
#[body]
pub fn the_next_call_withdraws_requests_that_could_not_be_withdrawn(rig: &dyn Rig) {
    let (io, core) = (io_node(rig), compute_core(rig, 0));
    let neighbour = TreeChannel::open(rig.open("cn0", "core1")).unwrap();
    let stuck = |call: CancelledCall<'_>| cancel_while_the_send_lock_is_taken(&io, &neighbour, call);
    let never = Deadline::never();

    stuck(&|cancel| core.read_until(&mut [0; 16], never, Some(cancel)));
    check_both_directions(&io, &core);
    stuck(&|cancel| core.write_until(&[1; 16], never, Some(cancel)));
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(io.write(0, &[2; 500]), Ok(500)));
        assert_eq!(core.read(&mut [0; 500]), Ok(500));
    });
    check_both_directions(&io, &core);
}

/// The core's read is cancelled during its data: the I/O node's write ends as well.
#[body]
pub fn read_cancelled_in_the_middle_aborts_the_write(rig: &dyn Rig) {
    let long = long_message(rig);
    let (io, core) = (io_node(rig), compute_core(rig, 2));
    let cancel = Cancel::new().unwrap();
    thread::scope(|scope| {
        let write = scope.spawn(|| io.write(2, &vec![1; long]));
        let read = scope.spawn(|| core.read_until(&mut vec![0; long], Deadline::never(), Some(&cancel)));
        eventually("data arrive", || core.statistics().packets_received > 20);
        cancel.cancel();
        assert!(matches!(read.join().unwrap(), Err(Error::Cancelled { .. })));
        assert_eq!(write.join().unwrap(), Err(Error::Aborted { peer: Peer::Core { rank: 2 } }));
    });

    check_both_directions(&io, &core);
}

/// The core's write is cancelled during its data: the I/O node's read ends as well.
#[body]
pub fn write_cancelled_in_the_middle_aborts_the_read(rig: &dyn Rig) {
    let long = long_message(rig);
    let (io, core) = (io_node(rig), compute_core(rig, 2));
    let cancel = Cancel::new().unwrap();
    thread::scope(|scope| {
        let read = scope.spawn(|| io.read(2, &mut vec![0; long]));
        let write = scope.spawn(|| core.write_until(&vec![1; long], Deadline::never(), Some(&cancel)));
        eventually("data arrive", || io.statistics().packets_received > 20);
        cancel.cancel();
        assert!(matches!(write.join().unwrap(), Err(Error::Cancelled { .. })));
        assert_eq!(read.join().unwrap(), Err(Error::Aborted { peer: Peer::Core { rank: 2 } }));
    });

    check_both_directions(&io, &core);
}

/// The I/O node's write is cancelled during its data: the core's read ends as well.
#[body]
pub fn io_write_cancelled_in_the_middle_aborts_the_read(rig: &dyn Rig) {
    let long = long_message(rig);
    let (io, core) = (io_node(rig), compute_core(rig, 0));
    let cancel = Cancel::new().unwrap();
    thread::scope(|scope| {
        let write = scope.spawn(|| io.write_until(0, &vec![1; long], Deadline::never(), Some(&cancel)));
        let read = scope.spawn(|| core.read(&mut vec![0; long]));
        eventually("data leave", || io.statistics().packets_sent > 20);
        cancel.cancel();
        assert!(matches!(write.join().unwrap(), Err(Error::Cancelled { .. })));
        assert!(matches!(read.join().unwrap(), Err(Error::Aborted { peer: Peer::IoNode { .. } })));
    });

    check_both_directions(&io, &core);
}

/// The I/O node's read is cancelled during its data: the rest is discarded, and the core's write
/// succeeds.
#[body(not_through(guests) = REAL_PROCESSORS_TIMES)]
pub fn io_read_cancelled_in_the_middle_discards_the_rest(rig: &dyn Rig) {
    let long = long_message(rig);
    let (io, core) = (io_node(rig), compute_core(rig, 0));
    let cancel = Cancel::new().unwrap();
    thread::scope(|scope| {
        let read = scope.spawn(|| io.read_until(0, &mut vec![0; long], Deadline::never(), Some(&cancel)));
        let write = scope.spawn(|| core.write(&vec![1; long]));
        eventually("data arrive", || io.statistics().packets_received > 20);
        cancel.cancel();
        assert!(matches!(read.join().unwrap(), Err(Error::Cancelled { .. })));
        assert_eq!(write.join().unwrap(), Ok(long));
    });

    check_both_directions(&io, &core);
    assert!(io.statistics().orphans > 0);
}

/// A call whose deadline has passed or that is cancelled takes no data of a message that is ready.
#[body]
pub fn calls_with_a_past_deadline_or_cancelled_at_their_start_take_no_request(rig: &dyn Rig) {
    const SIZE: usize = 64 << 10;

    let (io, core) = (io_node(rig), compute_core(rig, 0));
    let cancelled = Cancel::new().unwrap();
    cancelled.cancel();

    let mut buffer = vec![0; SIZE];
    thread::scope(|scope| {
        let write = scope.spawn(|| core.write(&vec![3; SIZE]));
        eventually("the request arrives", || io.statistics().hand_overs > 0);
        assert!(matches!(io.read_until(0, &mut buffer, Deadline::now(), None), Err(Error::Timeout { .. })));
        let late = io.read_until(0, &mut buffer, Deadline::never(), Some(&cancelled));
        assert!(matches!(late, Err(Error::Cancelled { .. })));
        assert_eq!(io.read(0, &mut buffer), Ok(SIZE));
        assert!(buffer.iter().all(|byte| *byte == 3));
        assert_eq!(write.join().unwrap(), Ok(SIZE));
    });
}

/// A core that has announced itself, accessed by the packet layer.
struct Raw(TreeChannel);

impl Raw {
    /// Opens rank `rank` and sends its RESET, without waiting for the acknowledgement.
    fn open(rig: &dyn Rig, rank: u32) -> Self {
        let device = rig.open(&format!("cn{}", rank / 4), &format!("core{}", rank % 4));
        let raw = Self(TreeChannel::open(device).unwrap());
        let name = raw.name();

        eventually("the core is up", || raw.0.presence(name.node, name.core).is_up());
        let generation = raw.0.presence(name.node, name.core).0;
        let head = ResetHead { token: 1.into(), core: name.core as u8, generation, reserved: 0.into() };
        raw.send(&Control::new(Kind::Reset, name, Scope::All as u32).with_head(head.as_bytes()));

        raw
    }

    /// Returns the core's name in control packets.
    fn name(&self) -> CoreName {
        let info = self.0.info();
        CoreName { node: info.address, core: info.core, rank_in_pset: info.pset_rank.unwrap() as u16 }
    }

    /// Sends a control packet to the I/O node.
    fn send(&self, control: &Control) {
        let header = Header::point_to_point(0, self.0.info().io_node, true);
        eventually("room to send", || {
            let Some(guard) = self.0.send_lock().try_lock(self.0.owner()) else { return false };
            self.0.send_batch(guard).try_send(header, &control.encode())
        });
    }
}

/// The only thread of the I/O node waits for data of a core that sends none. Other cores can still
/// open and withdraw.
#[body]
pub fn a_read_that_gets_no_data_serves_the_other_cores(rig: &dyn Rig) {
    let io = io_node(rig);
    let silent = Raw::open(rig, 4);
    silent.send(&Control::new(Kind::Write, silent.name(), LARGE as u32));

    let cancel = Cancel::new().unwrap();
    thread::scope(|scope| {
        let read = scope.spawn(|| io.read_until(4, &mut vec![0; LARGE], Deadline::never(), Some(&cancel)));
        // The acknowledgements of RESET and of the request to write have arrived.
        eventually("the read begins", || silent.0.received() >= 2);
        let core = compute_core(rig, 0);
        let short_deadline = || Deadline::after(Duration::from_millis(5));
        assert!(matches!(core.read_until(&mut [0; 300], short_deadline(), None), Err(Error::Timeout { .. })));
        assert!(matches!(core.read_until(&mut [0; 300], short_deadline(), None), Err(Error::Timeout { .. })));
        cancel.cancel();
        assert!(matches!(read.join().unwrap(), Err(Error::Cancelled { .. })));
    });

    drop(silent);
    check_both_directions(&io, &compute_core(rig, 0));
}

/// A read that was cancelled while its node could not send is served later. Its data block no
/// neighbour, though its core makes no calls.
#[body]
pub fn data_of_a_cancelled_read_do_not_block_the_neighbour(rig: &dyn Rig) {
    const SIZE: usize = 20_000;

    let (io, core, neighbour) = (io_node(rig), compute_core(rig, 0), compute_core(rig, 2));
    let holder = TreeChannel::open(rig.open("cn0", "core1")).unwrap();
    cancel_while_the_send_lock_is_taken(&io, &holder, &|cancel| {
        core.read_until(&mut [0; SIZE], Deadline::never(), Some(cancel))
    });
    thread::scope(|scope| {
        let write = scope.spawn(|| io.write(0, &[4; SIZE]));
        // Only calls of the neighbour take packets out of the node's FIFO.
        while !write.is_finished() {
            check_both_directions(&io, &neighbour);
        }
        assert_eq!(write.join().unwrap(), Ok(SIZE));
    });

    check_both_directions(&io, &core);
}

/// The I/O node serves one read of the pset at a time, and further reads queue. A read whose core
/// withdraws its request leaves the queue, so that it blocks no other core.
#[body]
pub fn withdrawing_a_read_request_removes_it_from_the_queue(rig: &dyn Rig) {
    let (io, core, other) = (io_node(rig), compute_core(rig, 0), compute_core(rig, 1));
    let silent = Raw::open(rig, 4);
    silent.send(&Control::new(Kind::Write, silent.name(), LARGE as u32));

    let (cancel_holder, cancel_queued) = (Cancel::new().unwrap(), Cancel::new().unwrap());
    let never = Deadline::never();
    thread::scope(|scope| {
        let holder = scope.spawn(|| io.read_until(4, &mut vec![0; LARGE], never, Some(&cancel_holder)));
        eventually("the read begins", || silent.0.received() >= 2);
        let queued = scope.spawn(|| io.read_until(0, &mut [0; 300], never, Some(&cancel_queued)));

        // Each call makes a request and withdraws it, so that the queued read enters and leaves the
        // queue.
        for _ in 0..200 {
            let short_deadline = Deadline::after(Duration::from_micros(20));
            assert!(matches!(core.write_until(&[0; 300], short_deadline, None), Err(Error::Timeout { .. })));
        }

        cancel_holder.cancel();
        assert!(matches!(holder.join().unwrap(), Err(Error::Cancelled { .. })));

        drop(silent);
        // The call for the core without a request blocks no other call.
        check_both_directions(&io, &other);
        cancel_queued.cancel();

        assert!(matches!(queued.join().unwrap(), Err(Error::Cancelled { .. })));
    });

    check_both_directions(&io, &core);
}

/// The operator resets the I/O process's node during a read. The process gets an error that asks it
/// to reopen the device.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn soft_reset_of_the_io_node_ends_its_calls(rig: &dyn Rig) {
    let long = long_message(rig);
    let (io, core) = (io_node(rig), compute_core(rig, 0));
    thread::scope(|scope| {
        let read = scope.spawn(|| io.read(0, &mut vec![0; long]));
        let write = scope.spawn(|| core.write(&vec![1; long]));
        eventually("data arrive", || io.statistics().packets_received > 20);
        let admin = rig.open("io0", "admin");
        admin.bar(0).unwrap().write32(dcr(ARB_RCFG), rcfg::RST).unwrap();
        assert!(read.join().unwrap().unwrap_err().is_device_gone());
        assert!(matches!(write.join().unwrap(), Err(Error::PeerGone { .. })));
    });

    drop(io);
    let io = io_node(rig);
    assert!(matches!(core.read(&mut [0]), Err(Error::PeerGone { .. })));

    check_both_directions(&io, &core);
}

//! A core is killed at each point of a hand-over, and the other cores continue.

use std::thread;

use super::*;
use crate::{
    ComputeCore, Peer,
    compute::tests::{LIMIT, Pset},
};

/// Waits until a packet is first in the FIFO, and returns the core that it is for.
fn first_packet(core: &ComputeCore, receiver: &mut LockedReceiver<'_>) -> u16 {
    let mut relax = core.node.channel.device().new_relax();
    let started = std::time::Instant::now();
    while receiver.peek().is_none() {
        assert!(started.elapsed() < LIMIT, "no packet came");
        core.node.channel.relax(&mut relax).unwrap();
    }

    let mut payload = [0; PAYLOAD];
    receiver.payload(&mut payload);
    Control::decode(&payload).unwrap().core.core
}

/// Checks that core 0's read succeeds when core 1 polls, finds core 0's READ acknowledgement,
/// performs `last_steps` and is killed.
fn check_read_when_poller_is_killed_after(last_steps: impl FnOnce(&Node, &mut LockedReceiver<'_>)) {
    let data: Vec<u8> = (0..5000).map(|index| (index * 7) as u8).collect();
    let pset = Pset::new();
    let (io, reader, killed) = (pset.io(), pset.core("core0"), pset.core("core1"));

    thread::scope(|scope| {
        let killed = killed;
        let mut receiver = killed.node.try_receiver_for(Kind::Write).unwrap();

        let read = scope.spawn(|| {
            let mut buffer = vec![0; 5000];
            (reader.read(&mut buffer), buffer)
        });
        let write = scope.spawn(|| io.write(0, &data));

        assert_eq!(first_packet(&killed, &mut receiver), 0);
        last_steps(&killed.node, &mut receiver);
        // A killed process frees nothing by itself.
        std::mem::forget(receiver);
        drop(killed);

        assert_eq!(write.join().unwrap(), Ok(5000));
        assert_eq!(read.join().unwrap(), (Ok(5000), data.clone()));
    });
}

/// Names the process of `core` as the receiver of the data packets.
fn set_stream(node: &Node, core: u16) {
    node.stream.set(Some(Stream { core, generation: node.generation(core) }));
}

/// Delivers the first packet in the FIFO to core 0's mailbox of READ acknowledgements.
fn deliver(node: &Node, receiver: &mut LockedReceiver<'_>) {
    let mut payload = [0; PAYLOAD];
    receiver.payload(&mut payload);
    node.mailbox(0, Kind::Read).deliver(receiver.position(), &payload).unwrap();
}

#[test]
fn read_succeeds_when_the_poller_is_killed_with_the_acknowledgement_first_in_the_fifo() {
    check_read_when_poller_is_killed_after(|_, _| ());
}

#[test]
fn read_succeeds_when_the_poller_is_killed_before_the_delivery() {
    check_read_when_poller_is_killed_after(|node, _| set_stream(node, 0));
}

#[test]
fn read_succeeds_when_the_poller_is_killed_before_it_hands_the_lock_over() {
    check_read_when_poller_is_killed_after(|node, receiver| {
        set_stream(node, 0);
        deliver(node, receiver);
    });
}

#[test]
fn read_succeeds_when_the_poller_is_killed_after_it_handed_the_lock_over() {
    check_read_when_poller_is_killed_after(|node, receiver| {
        set_stream(node, 0);
        deliver(node, receiver);
        receiver.publish();
        receiver.held().hand_over(0);
    });
}

#[test]
fn read_succeeds_when_another_core_polls_its_acknowledgement() {
    let data = vec![9; 5000];
    let pset = Pset::new();
    let (io, reader, poller) = (pset.io(), pset.core("core0"), pset.core("core1"));
    let mut receiver = poller.node.try_receiver_for(Kind::Write).unwrap();

    thread::scope(|scope| {
        let read = scope.spawn(|| reader.read(&mut [0; 5000]));
        let write = scope.spawn(|| io.write(0, &data));
        assert_eq!(first_packet(&poller, &mut receiver), 0);
        let polled = poller.node.poll(&mut receiver, Kind::Write).unwrap();
        assert!(matches!(polled, Polled::StreamHandedOver));

        drop(receiver);
        assert_eq!((write.join().unwrap(), read.join().unwrap()), (Ok(5000), Ok(5000)));
    });
    assert_eq!((poller.statistics().hand_overs, reader.statistics().orphans), (1, 0));
}

#[test]
fn lock_handed_to_a_core_that_had_died_already_is_freed() {
    let pset = Pset::new();
    let (io, dead, poller) = (pset.io(), pset.core("core0"), pset.core("core1"));
    let old = Stream { core: 0, generation: poller.node.generation(0) };
    let mut receiver = poller.node.try_receiver_for(Kind::Write).unwrap();

    drop(dead);
    poller.node.stream.set(Some(old));
    receiver.held().hand_over(0);
    drop(receiver);

    thread::scope(|scope| {
        let write = scope.spawn(|| io.write(1, &[1; 1000]));
        assert_eq!(poller.read(&mut [0; 1000]), Ok(1000));
        assert_eq!(write.join().unwrap(), Ok(1000));
    });
}

#[test]
fn stream_handed_to_a_core_whose_call_has_ended_blocks_no_other_core() {
    let pset = Pset::new();
    let (io, idle, other) = (pset.io(), pset.core("core0"), pset.core("core1"));
    let mut waiter =
        crate::wait::Waiter::new(&idle.node.channel, nicforge_driver::Deadline::after(LIMIT), None);

    let reading = idle.node.enter_readers();
    let request = Control::new(Kind::Read, idle.node.name, 1000);
    idle.send_control(&request, || false, &mut waiter).unwrap();

    thread::scope(|scope| {
        let write = scope.spawn(|| io.write(0, &[1; 1000]));
        let mut receiver = other.node.try_receiver_for(Kind::Write).unwrap();
        assert_eq!(first_packet(&other, &mut receiver), 0);
        assert!(matches!(other.node.poll(&mut receiver, Kind::Write).unwrap(), Polled::StreamHandedOver));
        drop(receiver);
        // The call ends, and the core stays open without another call.
        drop(reading);
        assert_eq!(write.join().unwrap(), Ok(1000));

        let write = scope.spawn(|| io.write(1, &[2; 1000]));
        let mut buffer = [0; 1000];
        assert_eq!(other.read(&mut buffer), Ok(1000));
        assert_eq!((write.join().unwrap(), buffer), (Ok(1000), [2; 1000]));
    });
}

#[test]
fn reader_killed_between_hand_over_and_data_blocks_no_other_core() {
    let pset = Pset::new();
    let (io, killed, other) = (pset.io(), pset.core("core0"), pset.core("core1"));
    let mut waiter =
        crate::wait::Waiter::new(&killed.node.channel, nicforge_driver::Deadline::after(LIMIT), None);

    // A killed process does not remove its entry.
    std::mem::forget(killed.node.enter_readers());
    let request = Control::new(Kind::Read, killed.node.name, 1 << 20);
    killed.send_control(&request, || false, &mut waiter).unwrap();

    thread::scope(|scope| {
        let write = scope.spawn(|| io.write(0, &vec![1; 1 << 20]));
        let mut receiver = other.node.try_receiver_for(Kind::Write).unwrap();
        assert_eq!(first_packet(&other, &mut receiver), 0);
        assert!(matches!(other.node.poll(&mut receiver, Kind::Write).unwrap(), Polled::StreamHandedOver));
        drop(receiver);
        drop(killed);

        assert_eq!(write.join().unwrap(), Err(Error::PeerGone { peer: Peer::Core { rank: 0 } }));
        let write = scope.spawn(|| io.write(1, &[1; 1000]));
        assert_eq!(other.read(&mut [0; 1000]), Ok(1000));
        assert_eq!(write.join().unwrap(), Ok(1000));
    });
}

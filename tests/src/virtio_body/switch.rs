//! The switch: learning, broadcasts, and outputs that are full.

use nicforge_driver::Deadline;
use nicforge_test_body::body;
use nicforge_virtio_net::MacAddress;

use super::{
    CREDITS, LINKS, MACHINE,
    driver::{ALL, ENTRIES, Nic},
    frame, mac,
};
use crate::backing::Rig;

/// Opens the three devices at the switch.
fn open(rig: &dyn Rig) -> [Nic; 3] {
    ["en0", "en1", "en2"].map(|name| Nic::open(rig, name, ALL))
}

/// Returns whether a device has received nothing more.
fn is_idle(rig: &dyn Rig, nic: &mut Nic) -> bool {
    rig.settle();
    nic.receive_until(Deadline::now()).is_err()
}

/// A broadcast reaches every port but the one it came from.
#[body]
pub fn a_broadcast_reaches_all_other_ports(rig: &dyn Rig) {
    let mut nics = open(rig);

    for sender in 0..3 {
        for to in [MacAddress::BROADCAST, MacAddress([0x01, 0x00, 0x5e, 0, 0, 1])] {
            let sent = frame(to, mac(sender as u32), 1514, sender);
            nics[sender].send(&sent);

            for receiver in (0..3).filter(|&receiver| receiver != sender) {
                assert_eq!(nics[receiver].receive().1, sent);
            }
            assert!(is_idle(rig, &mut nics[sender]));
        }
    }
    assert_eq!(rig.counter("sw0", "flooded"), 6);
}

/// A frame to an unknown address goes everywhere. Once its owner has sent, it goes there only.
#[body]
pub fn the_switch_learns_where_addresses_are(rig: &dyn Rig) {
    let [mut a, mut b, mut c] = open(rig);

    let first = frame(mac(1), mac(0), 60, 1);
    a.send(&first);
    assert_eq!((b.receive().1, c.receive().1), (first.clone(), first));

    let answer = frame(mac(0), mac(1), 60, 2);
    b.send(&answer);
    assert_eq!(a.receive().1, answer);
    assert!(is_idle(rig, &mut c));

    let second = frame(mac(1), mac(0), 60, 3);
    a.send(&second);
    assert_eq!(b.receive().1, second);
    assert!(is_idle(rig, &mut c));

    // The address moves when its owner sends from another port.
    c.send(&frame(mac(0), mac(1), 60, 4));
    a.receive();
    let third = frame(mac(1), mac(0), 60, 5);
    a.send(&third);
    assert_eq!(c.receive().1, third);
    assert!(is_idle(rig, &mut b));
    assert_eq!(rig.counter("sw0", "moved"), 1);
}

/// A frame to an address at the port that it came from goes nowhere.
#[body]
pub fn a_frame_to_its_own_port_is_filtered(rig: &dyn Rig) {
    let [mut a, mut b, mut c] = open(rig);
    a.send(&frame(MacAddress::BROADCAST, mac(7), 60, 1));
    b.receive();
    c.receive();

    a.send(&frame(mac(7), mac(0), 60, 2));

    assert!(is_idle(rig, &mut b) && is_idle(rig, &mut c));
    assert_eq!(rig.counter("sw0", "filtered"), 1);
}

/// A receiver that offers no buffers loses frames, and holds up nothing else.
#[body]
pub fn a_slow_port_delays_no_other(rig: &dyn Rig) {
    let [mut a, mut b, mut c] = open(rig);
    b.send(&frame(MacAddress::BROADCAST, mac(1), 60, 0));
    a.receive();
    c.receive();

    // Port 1 receives as many frames as fit into its buffers and onto its link.
    let lost = 100;
    for seed in 0..usize::from(ENTRIES) + CREDITS as usize + lost {
        a.send(&frame(mac(1), mac(0), 60, seed));
    }
    let sent = frame(mac(2), mac(0), 60, 1);
    a.send(&sent);

    assert_eq!(c.receive().1, sent);
    a.finish_sending();
    let full = rig.counter("sw0", "full") + rig.counter("en1", "no_buffer");
    assert!(full >= lost as u64, "{full} frames were lost");
}

/// A port without a link gets no frame, and a frame to it goes everywhere else.
#[body]
pub fn a_port_without_a_link_is_left_out(rig: &dyn Rig) {
    let [mut a, mut b, mut c] = open(rig);
    c.send(&frame(MacAddress::BROADCAST, mac(2), 60, 0));
    a.receive();
    b.receive();

    rig.with_machine(Box::new(|machine| machine.fabric().set_link_up(LINKS[2], false).unwrap()));
    let sent = frame(mac(2), mac(0), 60, 1);
    a.send(&sent);

    assert_eq!(b.receive().1, sent);
    assert!(is_idle(rig, &mut c));
}

/// The operator's reset of the switch makes it forget the addresses.
#[body]
pub fn a_reset_forgets_the_addresses(rig: &dyn Rig) {
    let [mut a, mut b, mut c] = open(rig);
    b.send(&frame(MacAddress::BROADCAST, mac(1), 60, 0));
    a.receive();
    c.receive();
    assert_eq!(rig.counter("sw0", "addresses"), 1);

    rig.reset("sw0");
    assert_eq!(rig.counter("sw0", "addresses"), 0);

    let sent = frame(mac(1), mac(0), 60, 1);
    a.send(&sent);
    assert_eq!((b.receive().1, c.receive().1), (sent.clone(), sent));
}

//! Credit messages that a connection must not count, and extreme configurations.

use super::*;

/// A peer that grants more credits than the connection asked for does not make its sender send more
/// messages than that.
#[body]
pub fn a_grant_is_limited_to_the_credits_that_were_asked_for(rig: &dyn Rig) {
    let mut sender = port(rig, at(0, 0));
    let uncounted = Config { flow_control: false, ..Config::default() };
    let mut hostile = port_with(rig, at(1, 0), uncounted);
    let back = hostile.connect(at(0, 0), test_deadline(), None).unwrap();

    let link = sender.connect(at(1, 0), test_deadline(), None).unwrap();
    let connect = hostile.recv(Filter::ANY, test_deadline(), None).unwrap().quadword(0);

    // A message of the library's flow control: kind 2, a grant, to a client of this generation. It
    // repeats the number of the connection.
    let credit = 2 | u64::from(back.tenant()) << 8 | connect & 0xff00_0000 | 1 << (20 + 32);
    hostile.send(back, nicforge_velo::CONTROL_TAG, &credit.to_le_bytes(), test_deadline(), None).unwrap();
    drive_until("the grant", &mut [&mut sender], |ports| ports[0].has_answered(link));

    assert_eq!(sender.credits(link), Some(Config::default().window));
}

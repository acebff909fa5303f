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
    let connect = hostile.recv(Filter::ANY, test_deadline(), None).unwrap();
    let credit = forged_grant(&connect, back, 1 << 20);
    hostile.send(back, nicforge_velo::CONTROL_TAG, &credit.to_le_bytes(), test_deadline(), None).unwrap();
    drive_until("the grant", &mut [&mut sender], |ports| ports[0].has_answered(link));

    assert_eq!(sender.credits(link), Some(Config::default().window));
}

/// The answer to an ended connection, which its sender reads later, does not count for the
/// connection to the next tenant of the address.
#[body]
pub fn an_answer_of_an_ended_tenant_does_not_count_for_the_next_one(rig: &dyn Rig) {
    let mut sender = port(rig, at(0, 0));

    for (vpid, grants) in [(0, true), (1, false)] {
        let address = at(1, vpid);
        let mut first = port(rig, address);
        first.admit(|_| grants);
        sender.connect(address, test_deadline(), None).unwrap();
        // The connect that it has received, and its answer.
        drive_until("an answer", &mut [&mut first], |ports| ports[0].statistics().control == 2);
        first.device().flush().unwrap();
        drop(first);

        let mut second = port(rig, address);
        let tenant = second.tenant_of(address);
        let (deadline, mut relax) = (test_deadline(), Relax::new());
        while sender.tenant_of(address) != tenant {
            assert!(!deadline.has_passed(), "the sender's card does not show the second tenant");
            sender.device().relax(&mut relax).unwrap();
        }

        let link = sender.connect(address, test_deadline(), None).unwrap();
        sender.progress().unwrap();
        let state = (sender.credits(link), sender.has_answered(link), sender.is_refused(link));
        assert_eq!(state, (Some(0), false, false), "the first tenant grants: {grants}");

        drive_until("credit", &mut [&mut sender, &mut second], |ports| ports[0].credits(link) == Some(64));
    }
}

/// Credits that are still on their way when a connection is closed do not count for the next
/// connection to the same tenant.
#[body]
pub fn credits_of_a_closed_connection_do_not_count_for_the_next_one(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (port(rig, at(0, 0)), port(rig, at(1, 0)));
    let closed = sender.connect(at(1, 0), test_deadline(), None).unwrap();
    drive_until("an answer", &mut [&mut receiver], |ports| ports[0].statistics().control == 2);
    sender.disconnect(closed).unwrap();

    let link = sender.connect(at(1, 0), test_deadline(), None).unwrap();
    drive_until("an answer", &mut [&mut receiver], |ports| ports[0].statistics().control == 5);
    receiver.device().flush().unwrap();
    drive_until("credit", &mut [&mut sender], |ports| ports[0].statistics().control == 5);

    assert_eq!(sender.credits(link), Some(64));
}

/// Ports without room for kept messages, and ports that ask for no credits, exchange messages.
#[body]
pub fn ports_with_the_smallest_configurations_exchange_messages(rig: &dyn Rig) {
    let smallest = [Config { kept: Some(0), ..Config::default() }, Config { window: 0, ..Config::default() }];

    for config in smallest {
        let (mut left, mut right) = (port_with(rig, at(0, 0), config), port_with(rig, at(1, 0), config));

        // The card of the left port may still show the end of an earlier right port.
        let tenant = right.tenant_of(at(1, 0));
        drive_until("the port", &mut [&mut left], |ports| ports[0].tenant_of(at(1, 0)) == tenant);
        let tenant = left.tenant_of(at(0, 0));
        drive_until("the port", &mut [&mut right], |ports| ports[0].tenant_of(at(0, 0)) == tenant);

        let there = left.connect(at(1, 0), test_deadline(), None).unwrap();
        let back = right.connect(at(0, 0), test_deadline(), None).unwrap();
        drive_until("answers", &mut [&mut left, &mut right], |ports| {
            ports[0].has_answered(there) && ports[1].has_answered(back)
        });

        left.send(there, 1, &[1; 8], test_deadline(), None).unwrap();
        let message = right.recv(Filter::tag(1), test_deadline(), None).unwrap();
        assert_eq!(message.bytes(), [1; 8]);
        right.send(back, 2, &[2; 8], test_deadline(), None).unwrap();
        let message = left.recv(Filter::from(at(1, 0)), test_deadline(), None).unwrap();
        assert_eq!(message.bytes(), [2; 8]);

        // A port without room for kept messages refuses to wait behind another message.
        left.send(there, 1, &[3; 8], test_deadline(), None).unwrap();
        if config.kept == Some(0) {
            let refused = right.recv(Filter::tag(5), test_deadline(), None);
            assert_eq!(refused, Err(Error::KeptFull { kept: 0 }));
        }
        assert_eq!(right.recv(Filter::ANY, test_deadline(), None).unwrap().bytes(), [3; 8]);
    }
}

//! Flow control with receivers that do not read.

use super::*;
use nicforge_test_body::body;

/// A configuration without connection credits.
const UNCOUNTED: Config = Config {
    slots: Some(64),
    flow_control: false,
    window: 64,
    kept: None,
    waiting: Waiting::Polling,
    poll_phase: Duration::ZERO,
    sleep: Duration::from_millis(20),
};

/// Connection credits stop the sender of a receiver that does not read. Other connections are not
/// affected, and no card waits.
#[body]
pub fn credits_stop_a_sender_whose_receiver_does_not_read(rig: &dyn Rig) {
    let mut sender = port(rig, at(0, 0));
    let (mut idle_receiver, mut reading) = (port(rig, at(1, 0)), port(rig, at(1, 1)));
    let (to_idle, to_reading) = (link(&mut sender, &mut idle_receiver), link(&mut sender, &mut reading));
    let granted = sender.credits(to_idle).unwrap();
    let mut sent = 0;

    while sender.send_nb(to_idle, 0, &[7; 8]).is_ok() {
        sent += 1;
    }

    assert_eq!(sent, granted);
    assert_eq!(sender.send_nb(to_idle, 0, &[7; 8]), Err(Error::WouldBlock));

    let short = Deadline::after(Duration::from_millis(20));
    assert!(matches!(sender.send(to_idle, 0, &[7; 8], short, None), Err(Error::Timeout { .. })));

    // Any number of messages to another receiver passes through the same port.
    for number in 0..1000_u64 {
        let mut relax = Relax::new();
        while sender.send_nb(to_reading, 0, &number.to_le_bytes()) == Err(Error::WouldBlock) {
            sender.progress().unwrap();
            sender.device().relax(&mut relax).unwrap();
        }
        assert_eq!(reading.recv(Filter::ANY, test_deadline(), None).unwrap().quadword(0), number);
    }

    // The unread port can still send to others: its own credits do not limit it.
    let from_idle = link(&mut idle_receiver, &mut reading);
    idle_receiver.send(from_idle, 0, &[8; 8], test_deadline(), None).unwrap();

    assert_eq!(reading.recv(Filter::ANY, test_deadline(), None).unwrap().from, at(1, 0));

    // The receiver reads, and the connection continues.
    let mut received = 0;
    drive_until("all that was sent", &mut [&mut idle_receiver, &mut sender], |ports| {
        received += drain(ports[0]).len() as u32;
        received == sent
    });
    drive_until("credit", &mut [&mut sender, &mut idle_receiver], |ports| {
        ports[0].credits(to_idle) == Some(granted)
    });

    assert_eq!((sender.statistics().stalls, idle_receiver.statistics().stalls), (0, 0));
    assert_eq!(sender.check(), Ok(()));
}

/// A port that has granted all its credits refuses the next connection with a specific error, until
/// a connection closes.
#[body]
pub fn a_port_without_free_credits_refuses_connections(rig: &dyn Rig) {
    let small = Config { slots: Some(64), window: 64, ..Config::default() };
    let mut receiver = port_with(rig, at(1, 0), small);
    let (mut first_sender, mut second_sender) = (port(rig, at(0, 0)), port(rig, at(0, 1)));
    let first = link(&mut first_sender, &mut receiver);
    let granted = first_sender.credits(first).unwrap();

    assert!((1..=16).contains(&granted), "{granted} of 32 slots");

    let second = second_sender.connect(at(1, 0), test_deadline(), None).unwrap();
    let refused = Error::NoCredit { address: at(1, 0) };
    drive_until("the refusal", &mut [&mut second_sender, &mut receiver], |ports| {
        ports[0].send_nb(second, 0, &[0; 8]) == Err(refused.clone())
    });
    first_sender.disconnect(first).unwrap();

    assert_eq!(first_sender.send_nb(first, 0, &[0; 8]), Err(Error::PeerGone { address: at(1, 0) }));

    drive_until("room", &mut [&mut second_sender, &mut receiver, &mut first_sender], |ports| {
        match ports[0].connect(at(1, 0), test_deadline(), None) {
            Ok(link) => ports[0].credits(link) == Some(granted),
            Err(error) => panic!("{error}"),
        }
    });

    // A sender that dies returns its credits too.
    drop(second_sender);
    let mut third_sender = port(rig, at(0, 2));
    drive_until("room", &mut [&mut third_sender, &mut receiver, &mut first_sender], |ports| {
        match ports[0].connect(at(1, 0), test_deadline(), None) {
            Ok(link) => ports[0].credits(link) == Some(granted),
            Err(error) => panic!("{error}"),
        }
    });
}

/// Credits that a sender gives back, or leaves when it dies, go to a sender of its node that was
/// refused, whatever the numbers of both VPIDs.
#[body]
pub fn free_credits_go_to_a_refused_sender_of_the_same_node(rig: &dyn Rig) {
    /// A port refuses a sender this often. It answers a later connect only by credits.
    const REFUSALS: usize = 4;
    const ROUNDS: usize = 100;

    for (holding, waiting, dies) in [(0, 3, false), (3, 0, false), (0, 3, true), (3, 0, true)] {
        let small = Config { slots: Some(64), window: 64, ..Config::default() };
        let mut receiver = port_with(rig, at(0, 0), small);
        let (mut first, mut second) = (port(rig, at(1, holding)), port(rig, at(1, waiting)));
        let held = link(&mut first, &mut receiver);
        let granted = first.credits(held);
        let mut refused = second.connect(at(0, 0), test_deadline(), None).unwrap();
        for _ in 0..REFUSALS {
            drive_until("the refusal", &mut [&mut second, &mut receiver], |ports| {
                ports[0].is_refused(refused)
            });
            refused = second.connect(at(0, 0), test_deadline(), None).unwrap();
        }

        // The receiver does not answer the last connect. It probably reads it meanwhile, before
        // the credits are free.
        let mut rounds = 0;
        drive_until("rounds", &mut [&mut second, &mut receiver], |_| {
            rounds += 1;
            rounds == ROUNDS
        });

        let mut ports = vec![&mut second, &mut receiver];
        if dies {
            drop(first);
        } else {
            first.disconnect(held).unwrap();
            ports.push(&mut first);
        }

        drive_until("credit", &mut ports, |ports| ports[0].credits(refused) == granted);
    }
}

/// The credits of a closed connection return only as its messages are taken. Reconnecting can't
/// fill the ring or the kept messages.
#[body]
pub fn credits_of_unread_slots_are_not_granted_again(rig: &dyn Rig) {
    let small = Config { slots: Some(64), window: 64, ..Config::default() };
    let mut receiver = port_with(rig, at(1, 0), small);
    let mut sender = port(rig, at(0, 0));
    let first = link(&mut sender, &mut receiver);
    let all = sender.credits(first).unwrap();

    for number in 0..u64::from(all) {
        sender.send(first, 0, &number.to_le_bytes(), test_deadline(), None).unwrap();
    }

    sender.disconnect(first).unwrap();
    let second = sender.connect(at(1, 0), test_deadline(), None).unwrap();
    let refused = Err(Error::NoCredit { address: at(1, 0) });
    drive_until("the refusal", &mut [&mut sender, &mut receiver], |ports| {
        assert_ne!(ports[0].credits(second).filter(|credits| *credits > 0), Some(all), "granted twice");
        ports[0].send_nb(second, 0, &[0; 8]) == refused
    });

    assert_eq!(receiver.kept(), all as usize);

    for number in 0..u64::from(all) {
        assert_eq!(receiver.recv(Filter::ANY, test_deadline(), None).unwrap().quadword(0), number);
    }

    drive_until("room", &mut [&mut sender, &mut receiver], |ports| {
        let link = ports[0].connect(at(1, 0), test_deadline(), None).unwrap();
        ports[0].credits(link) == Some(all)
    });
}

/// A credit return after more messages than are kept can't be read before some are taken. A send
/// that waits for it reports that.
#[body]
pub fn a_send_fails_when_its_credit_is_queued_after_kept_messages(rig: &dyn Rig) {
    let mut keeps_four = port_with(rig, at(0, 0), Config { kept: Some(4), ..Config::default() });
    let mut other = port(rig, at(1, 0));
    let (to, back) = (link(&mut keeps_four, &mut other), link(&mut other, &mut keeps_four));

    for number in 0..8_u64 {
        other.send(back, 0, &number.to_le_bytes(), test_deadline(), None).unwrap();
    }

    drive_until("four kept messages", &mut [&mut keeps_four], |ports| ports[0].kept() == 4);
    let granted = keeps_four.credits(to).unwrap();

    for number in 0..u64::from(granted) {
        keeps_four.send(to, 0, &number.to_le_bytes(), test_deadline(), None).unwrap();
    }

    // The other port returns the credits, after its own messages.
    for number in 0..u64::from(granted) {
        assert_eq!(other.recv(Filter::ANY, test_deadline(), None).unwrap().quadword(0), number);
    }

    other.device().flush().unwrap();
    assert_eq!(keeps_four.send(to, 0, &[9; 8], test_deadline(), None), Err(Error::KeptFull { kept: 4 }));

    for number in 0..8 {
        assert_eq!(keeps_four.recv(Filter::ANY, test_deadline(), None).unwrap().quadword(0), number);
    }

    keeps_four.send(to, 0, &[9; 8], test_deadline(), None).unwrap();
    assert_eq!(other.recv(Filter::ANY, test_deadline(), None).unwrap().bytes(), [9; 8]);
}

/// Without connection credits a card waits for the ring of a receiver that does not read, and the
/// watchdog ends that with an error. Other senders continue, and a stalled sender can still return
/// its own slots.
#[body]
pub fn the_watchdog_reports_a_receiver_that_does_not_read(rig: &dyn Rig) {
    let mut sender = port_with(rig, at(0, 0), UNCOUNTED);
    let idle_receiver = port_with(rig, at(1, 0), UNCOUNTED);
    let mut neighbour = port_with(rig, at(0, 1), UNCOUNTED);
    let mut reading = port_with(rig, at(1, 1), UNCOUNTED);
    let to_idle = sender.connect(at(1, 0), test_deadline(), None).unwrap();
    let to_stalled = reading.connect(at(0, 0), test_deadline(), None).unwrap();
    let to_reading = neighbour.connect(at(1, 1), test_deadline(), None).unwrap();

    // One message more than this card's half of the ring's 64 slots.
    for _ in 0..33 {
        sender.send(to_idle, 0, &[1; 8], test_deadline(), None).unwrap();
    }

    drive_until("the stall", &mut [&mut sender], |ports| ports[0].statistics().stalls > 0);
    let mut error = Ok(());
    let (mut forward, mut backward) = (0, 0);
    drive_until("the watchdog", &mut [&mut sender, &mut neighbour, &mut reading], |ports| {
        // Traffic beside the stall, also to the stalled process, which reads: its card returns its
        // slots.
        forward += drain(ports[2]).len();
        backward += drain(ports[0]).len();
        let _ = ports[1].send_nb(to_reading, 0, &[2; 8]);
        let _ = ports[2].send_nb(to_stalled, 0, &[3; 8]);
        error = ports[0].check();
        error.is_err()
    });

    let to = at(1, 0);
    let watchdog = nicforge_velo::DeviceError::Watchdog { to };
    assert!(matches!(error, Err(Error::Device { error, .. }) if error == watchdog), "{error:?}");

    drive_until("more than a ring", &mut [&mut sender, &mut neighbour, &mut reading], |ports| {
        forward += drain(ports[2]).len();
        backward += drain(ports[0]).len();
        let _ = ports[1].send_nb(to_reading, 0, &[2; 8]);
        let _ = ports[2].send_nb(to_stalled, 0, &[3; 8]);
        forward > 64 && backward > 64
    });

    assert_eq!((neighbour.check(), reading.check()), (Ok(()), Ok(())));
    drop(idle_receiver);
}

/// A call that waits for a message ends at its deadline, also while the ring does not move or is
/// full.
#[body]
pub fn a_wait_ends_while_the_card_waits_for_a_receiver(rig: &dyn Rig) {
    let waiting = Config { waiting: Waiting::Interrupt, poll_phase: Duration::ZERO, ..UNCOUNTED };
    let mut sender = port_with(rig, at(0, 0), waiting);
    let idle_receiver = port_with(rig, at(1, 0), UNCOUNTED);
    let mut reading = port_with(rig, at(1, 1), UNCOUNTED);
    let to_idle = sender.connect(at(1, 0), test_deadline(), None).unwrap();
    let to_sender = reading.connect(at(0, 0), test_deadline(), None).unwrap();

    for maximum in [300, u32::MAX] {
        let sent = (0..maximum)
            .take_while(|_| sender.send_nb(to_idle, 0, &[1; 8]) != Err(Error::WouldBlock))
            .count();

        assert!(sent > 64, "{sent}");

        let waited = sender.recv(Filter::ANY, Deadline::after(Duration::from_millis(10)), None);
        // The watchdog may have ended the stalled send first.
        assert!(matches!(waited, Err(Error::Timeout { .. } | Error::Device { .. })), "{waited:?}");

        reading.send(to_sender, 5, &[5; 8], test_deadline(), None).unwrap();
        let message = loop {
            match sender.recv(Filter::ANY, test_deadline(), None) {
                Err(Error::Device { .. }) => {}
                result => break result.unwrap(),
            }
        };

        assert_eq!((message.from, message.tag), (at(1, 1), 5));
    }

    // Messages left in the ring have no receiver, and block no other.
    drop(idle_receiver);
}

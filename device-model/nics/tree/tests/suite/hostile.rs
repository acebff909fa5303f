//! Clients that do anything at all. Nothing panics, nothing runs for ever, other clients are not
//! affected, and a reset recovers the node.

use crate::common::{Client, Rig, payload, to};
use nicforge_core::{ids::AttachmentId, machine::region};
use nicforge_hwi::{
    tree::{ATTACHMENT_ADMIN, SLOT, mirror, window},
    tree_dcr::{INJ_PIXEN, REGISTERS, dcr, pix},
};
use proptest::prelude::*;

/// An action of a client (`by`) of the hostile node.
#[derive(Clone, Debug)]
enum Action {
    Attach(u16),
    Kill(u16),
    Reset(u16),
    Read {
        by: u16,
        offset: u64,
        length: usize,
    },
    Write {
        by: u16,
        offset: u64,
        data: Vec<u8>,
    },
    /// Stores any value in any word of the window.
    Store {
        by: u16,
        word: u64,
        value: u32,
    },
    /// Stores a control word of a plausible number in a send slot.
    Slot {
        by: u16,
        slot: u64,
        number: u32,
        header: u32,
    },
    RecvHead {
        by: u16,
        value: u32,
    },
    /// Steps the machine this often.
    Steps(u32),
}

/// Generates an offset in BAR 0, mostly of the port or close to registers.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0u64..0x70,
        4 => 0x1000u64..0x1200,
        2 => 0x2000u64..0x2110,
        2 => 0x3000u64..0x3010,
        1 => 0u64..REGISTERS,
    ]
}

/// Generates an action.
fn action() -> impl Strategy<Value = Action> {
    let by = 0u16..=ATTACHMENT_ADMIN;
    let width = prop_oneof![Just(1usize), Just(2), Just(4), Just(8), Just(16), 1usize..64];
    prop_oneof![
        2 => by.clone().prop_map(Action::Attach),
        1 => by.clone().prop_map(Action::Kill),
        1 => by.clone().prop_map(Action::Reset),
        4 => (by.clone(), offset(), width.clone())
            .prop_map(|(by, offset, length)| Action::Read { by, offset: offset & !3, length }),
        6 => (by.clone(), offset(), width, any::<[u8; 64]>())
            .prop_map(|(by, offset, length, data)| Action::Write { by, offset, data: data[..length].to_vec() }),
        3 => (by.clone(), 0..window::SIZE / 4, any::<u32>())
            .prop_map(|(by, word, value)| Action::Store { by, word, value }),
        6 => (by.clone(), 0u64..8, 0u32..24, any::<u32>())
            .prop_map(|(by, slot, number, header)| Action::Slot { by, slot, number, header }),
        3 => (by, 0u32..16).prop_map(|(by, value)| Action::RecvHead { by, value }),
        4 => (1u32..20).prop_map(Action::Steps),
    ]
}

/// Performs an action of the hostile node.
#[allow(clippy::unwrap_used, reason = "a helper of tests fails the test")]
fn perform(rig: &mut Rig, clients: &mut [Option<Client>; 5], node: u32, action: Action) {
    let function = rig.functions[node as usize];

    match action {
        Action::Attach(by) => {
            if clients[usize::from(by)].is_none() {
                rig.machine.attach(function, AttachmentId(by)).unwrap();
                let view = |bar| rig.machine.region(function, AttachmentId(by), region::BAR0 + bar).unwrap();
                let (window, mirror) = (view(3).memory.unwrap(), view(4).memory.unwrap());
                clients[usize::from(by)] =
                    Some(Client { node, function, attachment: AttachmentId(by), window, mirror });
            }
        }
        Action::Kill(by) => {
            if let Some(client) = clients[usize::from(by)].take() {
                rig.kill(&client);
            }
        }
        Action::Steps(count) => {
            for _ in 0..count {
                let _ = rig.machine.step(16);
            }
        }
        Action::Reset(by) => {
            if clients[usize::from(by)].is_some() {
                rig.machine.reset_attachment(function, AttachmentId(by)).unwrap();
            }
        }
        Action::Read { by, offset, length } => {
            if clients[usize::from(by)].is_some() {
                let mut data = vec![0; length];
                // An access beyond the BAR is refused.
                let _ = rig.machine.read(function, AttachmentId(by), 0, offset, &mut data);
            }
        }
        Action::Write { by, offset, data } => {
            if clients[usize::from(by)].is_some() {
                let _ = rig.machine.write(function, AttachmentId(by), 0, offset, &data);
            }
        }
        Action::Store { by, word, value } => {
            if let Some(client) = &clients[usize::from(by)] {
                client.set_window(4 * word, value);
            }
        }
        Action::Slot { by, slot, number, header } => {
            if let Some(client) = &clients[usize::from(by)] {
                client.set_window(window::SEND + slot * SLOT + 4, header);
                client.set_window(window::SEND + slot * SLOT, number);
            }
        }
        Action::RecvHead { by, value } => {
            if let Some(client) = &clients[usize::from(by)] {
                client.set_window(window::RECV_HEAD, value);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn an_operators_reset_recovers_the_machine_after_random_accesses_of_a_node(
        actions in prop::collection::vec(action(), 1..120),
    ) {
        let mut rig = Rig::psets(&[4]);
        let (io, peer) = (rig.core(0), rig.core(4));
        let mut clients = Default::default();
        for action in actions {
            perform(&mut rig, &mut clients, 1, action);
        }
        for _ in 0..50 {
            let _ = rig.machine.step(64);
        }

        for function in rig.functions.clone() {
            rig.machine.reset_function(function).unwrap();
        }
        rig.run();

        prop_assert_eq!(rig.machine.fabric().packets_in_use(), 0);
        rig.send_all(&io, &[(to(4), payload(1))]);
        rig.send_all(&peer, &[(to(0), payload(2))]);
        prop_assert_eq!(peer.receive().unwrap().1, payload(1));
        prop_assert_eq!(io.receive().unwrap().1, payload(2));

        let alive = clients.iter().enumerate().take(4);

        for (core, client) in alive {
            prop_assert_eq!(io.presence(1, core) % 2 == 1, client.is_some());
        }
    }

    #[test]
    fn random_accesses_to_the_user_channel_do_not_affect_the_system_channel(
        actions in prop::collection::vec(action(), 1..120),
    ) {
        let mut rig = Rig::psets(&[4]);
        let (io, peer) = (rig.admin(0), rig.admin(3));
        let mut clients = Default::default();
        for action in actions {
            let admin = match &action {
                Action::Attach(by) | Action::Kill(by) | Action::Reset(by) => *by == ATTACHMENT_ADMIN,
                Action::Read { by, .. } | Action::Write { by, .. } | Action::Store { by, .. } => {
                    *by == ATTACHMENT_ADMIN
                }
                Action::Slot { by, .. } | Action::RecvHead { by, .. } => *by == ATTACHMENT_ADMIN,
                Action::Steps(_) => false,
            };
            if !admin {
                perform(&mut rig, &mut clients, 1, action);
            }
        }

        // The way from node 0 to node 3 leads through node 1.
        for number in 0..20 {
            rig.send_all(&io, &[(to(3), payload(number))]);
            prop_assert_eq!(peer.receive().unwrap().1, payload(number));
            rig.send_all(&peer, &[(to(0), payload(number))]);
            prop_assert_eq!(io.receive().unwrap().1, payload(number));
        }
    }
}

#[test]
fn a_header_changed_after_the_packet_was_seen_has_no_effect() {
    let mut rig = Rig::psets(&[2]);
    let (io, compute) = (rig.core(0), rig.core(1));
    let fill: Vec<_> = (0..13).map(|number| (to(1), payload(number))).collect();

    // The last packet is first in a blocked send FIFO.
    assert_eq!(rig.send_all(&io, &fill), 13);
    let slot = window::SEND + (io.mirror(mirror::SEND_HEAD) % 8) as u64 * SLOT;

    io.set_window(slot + 4, to(2).0);
    for number in 0..12 {
        assert_eq!(compute.receive().unwrap().1, payload(number));
        rig.run();
    }

    assert_eq!(compute.receive().unwrap(), (to(1), payload(12)));
}

#[test]
fn send_slots_that_a_client_empties_again_do_not_hold_back_a_presence_symbol() {
    let mut rig = Rig::psets(&[2]);
    let (io, compute, admin) = (rig.core(0), rig.core(1), rig.admin(1));
    let enabled = rig.read32(&admin, dcr(INJ_PIXEN));
    rig.write32(&admin, dcr(INJ_PIXEN), enabled & !pix::ENABLE);
    for number in 0..8 {
        assert!(compute.try_send(to(0), &payload(number)));
    }
    rig.run();

    // The symbol of core 1 goes behind the eight packets.
    rig.attach(1, 1);
    for slot in 1..8 {
        compute.set_window(window::SEND + slot * SLOT, 0);
    }
    rig.write32(&admin, dcr(INJ_PIXEN), enabled);
    rig.run();

    assert_eq!(io.receive().unwrap().1, payload(0));
    assert_eq!(io.presence(1, 1) % 2, 1);
}

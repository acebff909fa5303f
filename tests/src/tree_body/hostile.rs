//! A node whose software makes arbitrary stores and writes does not harm the other nodes.

use nicforge_driver::WriteMode;
use nicforge_hwi::{
    tree::{SLOT, SLOT_CONTROL, SLOT_PAYLOAD, mirror, window},
    tree_dcr::REGISTERS,
};
use nicforge_shm::Window;
use nicforge_test_body::body;
use proptest::prelude::*;

use super::{Core, MACHINE, numbered, payload, run_until_idle, to, transfer};
use crate::{backing::Rig, random::runner};

/// BAR of the posted-write ring.
const BAR_RING: u8 = 1;

/// An action of hostile software.
#[derive(Clone, Debug)]
enum Action {
    /// Store a word anywhere in the windows.
    Store {
        word: u64,
        value: u32,
    },
    /// Store a double word anywhere in the posted-write ring.
    Ring {
        word: u64,
        value: u64,
    },
    /// Make a send slot valid, or nearly valid.
    Slot {
        slot: u64,
        number: u32,
        header: u32,
    },
    /// Store a read pointer.
    ReadPointer(u32),
    /// Take or free any lock box, as any owner.
    Lock {
        number: u64,
        value: u32,
    },
    Read {
        offset: u64,
        width: usize,
    },
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    Settle,
}

/// Generates an action.
fn action() -> impl Strategy<Value = Action> {
    let width = || prop_oneof![Just(4_usize), Just(8), Just(16), 1_usize..64];
    // Registers, and after them the control page and the MSI-X table.
    let offset =
        || prop_oneof![0_u64..0x70, 0x1000_u64..0x1200, 0x2000_u64..0x2110, 0_u64..REGISTERS + 0x2000];

    prop_oneof![
        4 => (0..window::SIZE / 4, any::<u32>()).prop_map(|(word, value)| Action::Store { word, value }),
        2 => (0_u64..512, any::<u64>()).prop_map(|(word, value)| Action::Ring { word, value }),
        6 => (0_u64..9, 0_u32..40, any::<u32>())
            .prop_map(|(slot, number, header)| Action::Slot { slot, number, header }),
        3 => prop_oneof![0_u32..40, any::<u32>()].prop_map(Action::ReadPointer),
        2 => (0..window::LOCK_BOXES, any::<u32>()).prop_map(|(number, value)| Action::Lock { number, value }),
        3 => (offset(), width()).prop_map(|(offset, width)| Action::Read { offset, width }),
        5 => (offset(), width(), any::<[u8; 64]>())
            .prop_map(|(offset, width, data)| Action::Write { offset, data: data[..width].to_vec() }),
        2 => Just(Action::Settle),
    ]
}

/// Performs an action, and rings the doorbell.
fn perform(rig: &dyn Rig, core: &Core, ring: &Window, action: Action) {
    let (window, backing) = (&core.window, core.device.backing());
    match action {
        Action::Store { word, value } => window.store_u32_release(4 * word, value).unwrap(),
        Action::Ring { word, value } => ring.store_u64_release(8 * word, value).unwrap(),
        Action::Slot { slot, number, header } => {
            let control = u64::from(number) | u64::from(header) << 32;
            window.store_u64_release(window::SEND + slot * SLOT + SLOT_CONTROL, control).unwrap();
        }
        Action::ReadPointer(value) => window.store_u32_release(window::RECV_HEAD, value).unwrap(),
        Action::Lock { number, value } => {
            window.store_u32_release(window::LOCK + number * window::LOCK_STRIDE, value).unwrap();
        }

        // An access that crosses a boundary is refused.
        Action::Read { offset, width } => drop(backing.read(0, offset, &mut vec![0; width])),
        Action::Write { offset, data } => drop(backing.write(0, offset, &data, WriteMode::Confirmed)),
        Action::Settle => run_until_idle(rig),
    }

    core.doorbell.after_store().unwrap();
}

/// Software on two cores of an inner node acts arbitrarily. The system channel works throughout,
/// through that node too. After the operator's resets the user channel is in its initial state.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_hostile_node_breaks_no_other(rig: &dyn Rig) {
    let admins: Vec<_> = ["io0", "cn2", "cn3"].map(|node| Core::open(rig, node, "admin")).into();
    let users: Vec<_> = ["io0", "cn2", "cn3"].map(|node| Core::open(rig, node, "core0")).into();
    let actions = prop::collection::vec((any::<bool>(), action()), 1..80);

    let outcome = runner(rig, 64).run(&actions, |actions| {
        let hostile = [Core::open(rig, "cn0", "core0"), Core::open(rig, "cn0", "core1")];
        let rings = [0, 1].map(|core: usize| {
            let bar = hostile[core].device.bar(BAR_RING).unwrap();
            bar.window(0, 4096).unwrap()
        });

        for (second, action) in actions {
            let core = usize::from(second);
            perform(rig, &hostile[core], &rings[core], action);
        }

        run_until_idle(rig);
        transfer(&admins[0], &admins[1], &numbered(3, 0, 20));
        transfer(&admins[1], &admins[0], &numbered(0, 20, 20));
        transfer(&admins[2], &admins[1], &numbered(3, 40, 20));

        drop(hostile);
        for node in ["cn0", "io0", "cn2", "cn3", "cn1"] {
            rig.reset(node);
        }

        run_until_idle(rig);
        for core in users.iter().chain(&admins) {
            core.device.reset().unwrap();
        }

        run_until_idle(rig);
        prop_assert!(users.iter().chain(&admins).all(|core| core.unread_packets() == 0));

        for group in [&users, &admins] {
            transfer(&group[1], &group[0], &numbered(0, 60, 20));
            transfer(&group[0], &group[2], &numbered(4, 80, 20));
        }

        Ok(())
    });

    outcome.unwrap();
}

/// Software that makes arbitrary stores outside the send slots does not disturb packets that pass
/// through its node on its own channel.
#[body]
pub fn a_node_that_sends_nothing_does_not_disturb_other_nodes(rig: &dyn Rig) {
    let [io, hostile, cn2, cn3] = Core::of(rig, ["io0", "cn0", "cn2", "cn3"]);
    let ring = hostile.device.bar(BAR_RING).unwrap().window(0, 4096).unwrap();
    let harmless = prop_oneof![
        (window::SEND_TAIL / 4..window::SIZE / 4, any::<u32>())
            .prop_map(|(word, value)| Action::Store { word, value }),
        prop_oneof![0_u32..40, any::<u32>()].prop_map(Action::ReadPointer),
        (0..window::LOCK_BOXES, any::<u32>()).prop_map(|(number, value)| Action::Lock { number, value }),
        (0..REGISTERS, 1_usize..64).prop_map(|(offset, width)| Action::Read { offset, width }),
        Just(Action::Settle),
    ];

    let outcome = runner(rig, 64).run(&prop::collection::vec(harmless, 1..60), |actions| {
        for (number, action) in (0..).zip(actions) {
            perform(rig, &hostile, &ring, action);
            transfer(&cn2, &io, &numbered(0, number, 2));
            transfer(&io, &cn3, &numbered(4, number, 2));
            transfer(&cn3, &cn2, &numbered(3, number, 2));
        }
        Ok(())
    });

    outcome.unwrap();
    assert_eq!(hostile.word(mirror::RECV_TAIL), 0);
}

/// A flood of packets to a node that does not read blocks that channel only, and only until the
/// receiver is reset.
#[body(not_through(guests) = EVICTION_IS_FINAL)]
pub fn a_flood_ends_with_a_reset_of_its_target(rig: &dyn Rig) {
    let [io, flooder, cn3] = Core::of(rig, ["io0", "cn2", "cn3"]);
    flooder.send_until_full(rig, to(0), 0);
    let held = cn3.send_until_full(rig, to(0), 0);

    assert!(held > 0);

    rig.evict("cn2", "core0");
    drop(flooder);
    rig.reset("io0");
    io.device.reset().unwrap();

    // The remaining packets of both senders arrive in any order, and then no more.
    io.wait_until(|| {
        io.try_receive();
        io.presence(3, 0) == 2 && cn3.word(mirror::SEND_HEAD) == held
    });
    run_until_idle(rig);

    while io.try_receive().is_some() {
        run_until_idle(rig);
    }

    transfer(&cn3, &io, &numbered(0, 500, 50));
}

/// A client maps the mirror read-only and cannot write it.
#[body(
    not_through(vfio) = "stores to memory that only the device writes: VFIO permits that, and QEMU ends"
)]
pub fn the_mirror_cannot_be_written(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn0"]);
    io.send(to(1), &payload(1));
    node.wait_until(|| node.unread_packets() == 1);

    for offset in [mirror::RECV_TAIL, mirror::RECV + SLOT_PAYLOAD, mirror::PRESENCE, mirror::STATUS] {
        assert!(node.mirror.store_u32_release(offset, 77).is_err());
        let refused = node.device.backing().write(4, offset, &[7; 4], WriteMode::Confirmed);
        assert!(refused.is_err(), "a trapped write at {offset:#x} was taken");
    }

    node.receive_numbers(1, 1);
}

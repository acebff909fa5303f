//! Bodies of control packets with a correct form that no call of FCNP asked for: they name no core
//! of the pset, or acknowledge a read that no core is in.

use nicforge_fcnp::{
    protocol::{ABORT, Control, CoreName, Kind, ResetHead, Scope},
    tree::TreeChannel,
};
use nicforge_hwi::tree::{CORES, Header};
use nicforge_test_body::body;
use zerocopy::IntoBytes;

use super::{MACHINE, NODES, check_both_directions, compute_core, eventually, io_node};
use crate::backing::Rig;

/// Returns the name of a channel's core.
fn name_of(channel: &TreeChannel) -> CoreName {
    let info = channel.info();
    CoreName { node: info.address, core: info.core, rank_in_pset: info.pset_rank.unwrap() as u16 }
}

/// Sends a control packet to any node of the tree.
fn send(from: &TreeChannel, to: u32, control: &Control) {
    let header = Header::point_to_point(0, to, true);
    eventually("room to send", || {
        let Some(guard) = from.send_lock().try_lock(from.owner()) else { return false };
        let sent = from.send_batch(guard).try_send(header, &control.encode());
        from.relax(&mut from.device().new_relax()).unwrap();
        sent
    });
}

/// The I/O node discards requests whose names exceed the pset by one in any part.
#[body]
pub fn requests_of_cores_that_the_pset_lacks_are_discarded(rig: &dyn Rig) {
    let (io, core) = (io_node(rig), compute_core(rig, 0));
    let wild = TreeChannel::open(rig.open("cn1", "core0")).unwrap();
    let own = name_of(&wild);
    let generation = wild.presence(own.node, own.core).0;
    let wrong = [
        CoreName { rank_in_pset: NODES as u16, ..own },
        CoreName { core: CORES, ..own },
        CoreName { node: wild.info().nodes, ..own },
    ];

    for name in wrong {
        let head = ResetHead { token: 1.into(), core: name.core as u8, generation, reserved: 0.into() };
        let reset = Control::new(Kind::Reset, name, Scope::All as u32).with_head(head.as_bytes());
        for control in [reset, Control::new(Kind::Read, name, 100), Control::new(Kind::Write, name, 100)] {
            send(&wild, wild.info().io_node, &control);
        }
    }
    eventually("the I/O node discards them", || {
        wild.relax(&mut wild.device().new_relax()).unwrap();
        io.statistics().strays == 9
    });

    drop(wild);
    check_both_directions(&io, &core);
    check_both_directions(&io, &compute_core(rig, 4));
}

/// A core that is in no read discards acknowledgements of a read, whole or aborted, and its next
/// read is not misled by them.
#[body]
pub fn acknowledgements_that_no_read_awaits_are_discarded(rig: &dyn Rig) {
    let (io, core) = (io_node(rig), compute_core(rig, 0));
    let wild = TreeChannel::open(rig.open("cn1", "core0")).unwrap();
    let name = name_of(core.channel());

    let before = core.channel().received();
    for size in [300, ABORT] {
        send(&wild, name.node, &Control::new(Kind::Read, name, size));
    }
    eventually("they arrive", || {
        wild.relax(&mut wild.device().new_relax()).unwrap();
        core.channel().received() == before + 2
    });

    // The write takes them out of the FIFO, before the read.
    check_both_directions(&io, &core);
    assert_eq!(core.statistics().strays, 2);
}

//! Tree packets: software on the nodes of a pset writes arbitrary data into its send slots and FIFO
//! pointers, on one channel or both. Actions on the user channel do not disturb the system channel.
//! The operator's reset ends the effects of changed routes.

use nicforge_core::{
    device::Ended,
    ids::{AttachmentId, FunctionId},
};
use nicforge_hwi::{
    tree::{ATTACHMENT_ADMIN, CORES, Header, PAYLOAD, SLOT, SLOT_CONTROL, SLOT_PAYLOAD, opcode, window},
    tree_dcr::{self, REGISTERS, gi},
};

use crate::{
    input::Input,
    world::{COMPUTE_NODES, TREE_NODES, TreeClient, World},
};

/// Maximum number of actions in one input.
const MAX: usize = 400;

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let with_admin = input.below(4) == 0;
    let mut world = World::new(input.pick(&[8, 1, 2, 4]));
    let mut hostile: Vec<_> = (0..TREE_NODES).map(|node| world.tree_client(node, 0)).collect();
    if with_admin {
        hostile.push(world.tree_client(1, ATTACHMENT_ADMIN));
    }

    let mut kernels = Vec::new();
    if !with_admin {
        kernels.extend([0, COMPUTE_NODES].map(|node| world.tree_client(node, ATTACHMENT_ADMIN)));
    }

    for client in &hostile {
        world.bind(client.client_id);
    }

    world.step_until_idle();
    for number in 0..MAX as u32 {
        if input.is_empty() {
            break;
        }
        act(&mut world, &mut hostile, with_admin, &mut input);
        if let [io, compute] = &kernels[..]
            && number.is_multiple_of(64)
        {
            world.check_packets(io, compute, number);
        }
    }

    if let [io, compute] = &kernels[..] {
        world.check_packets(io, compute, 200);
    }

    // The clients stay attached; the operator's reset is enough.
    for function in (0..TREE_NODES).map(FunctionId) {
        world.machine.reset_function(function).unwrap();
    }

    world.step_until_idle();
    assert_eq!(world.machine.fabric().packets_in_use(), 0);

    world.check_tree(2, 17);
    world.recover();
}

/// Performs one action of one of the clients, or lets the machine step. With the administrator's
/// attachment, the clients can also reset a whole NIC.
fn act(world: &mut World, clients: &mut [TreeClient], with_admin: bool, input: &mut Input<'_>) {
    let index = input.below(clients.len() as u32) as usize;
    let client = &clients[index];
    let client_id = client.client_id;

    match input.below(16) {
        0..=3 => {
            let mut payload = [0; PAYLOAD];
            let bytes = input.bytes(8);
            payload[..bytes.len()].copy_from_slice(bytes);
            client.send(header(input), &payload);
            world.wake(client_id);
        }
        4 => {
            // Every node sends a packet of the same collective.
            let (header, payload) = (collective(input), [input.u8(); PAYLOAD]);
            for client in clients.iter().filter(|client| client.client_id.1.0 < CORES) {
                client.send(header, &payload);
                world.wake(client.client_id);
            }
        }
        5 | 6 => {
            client.receive();
            world.wake(client_id);
        }
        7 => {
            // Writes a slot in pieces, with any number, so that the NIC may see it half written.
            let slot = window::SEND + u64::from(input.below(16)) * SLOT;
            client.store(slot + SLOT_CONTROL + 4, header(input).0);
            client.store(slot + SLOT_CONTROL, input.number32());
            client.store(slot + SLOT_PAYLOAD, input.u32());
        }
        8 => client.store(window::RECV_HEAD, pointer(input)),
        9 => client.store(window::SEND_TAIL, pointer(input)),
        10 => {
            let number = u64::from(input.below(window::LOCK_BOXES as u32));
            let number = if input.flag() { number % 2 } else { number };
            client.store(window::LOCK + number * window::LOCK_STRIDE, input.number32());
        }
        11 => client.store(4 * u64::from(input.below(window::SIZE as u32 / 4)), input.u32()),
        12 => port(world, client, input),
        13 if input.below(4) == 0 => {
            // A process ends at any point, and another takes its attachment.
            world.detach(client_id, if input.flag() { Ended::Closed } else { Ended::Evicted });
            clients[index] = world.tree_client(client_id.0.0, client_id.1.0);
        }
        13 => {
            let other = (client_id.0, AttachmentId(1));
            if client_id.1.0 >= CORES {
                return;
            }
            if world.is_attached(other) {
                world.detach(other, Ended::Closed);
            } else {
                world.attach(other);
            }
        }
        14 if input.below(8) == 0 && with_admin => {
            let _ = world.machine.reset_function(client_id.0);
        }
        14 => world.machine.reset_attachment(client_id.0, client_id.1).unwrap(),
        _ => {
            world.step(input.pick(&[0, 1000, 100_000]), input.pick(&[1, 4, 64]));
        }
    }
}

/// Returns a pointer, in half of the cases a small one.
fn pointer(input: &mut Input<'_>) -> u32 {
    if input.flag() { input.below(32) } else { input.number32() }
}

/// Returns a header of any packet.
fn header(input: &mut Input<'_>) -> Header {
    match input.below(4) {
        0 | 1 => {
            let target = match input.below(8) {
                0..=5 => input.below(TREE_NODES),
                _ => input.number32(),
            };
            Header::point_to_point(class(input), target, input.flag())
        }
        2 => collective(input),
        _ => Header(input.u32()),
    }
}

/// Returns a class, usually one that the machine has configured.
fn class(input: &mut Input<'_>) -> u32 {
    if input.below(8) > 0 { input.below(4) } else { input.below(16) }
}

/// Returns the header of a packet of a collective, mostly a valid one.
fn collective(input: &mut Input<'_>) -> Header {
    let operation =
        input.pick(&[opcode::NONE, opcode::OR, opcode::AND, opcode::XOR, opcode::MAX, opcode::ADD, 4, 7]);
    let words = input.pick(&[1, 2, 4, 128, 3]);
    let class = class(input);
    let irq = input.flag();
    Header::collective(class, operation, words, input.below(3), irq)
}

/// Makes a trapped access to the packet port, a device control register, a register of the global
/// interrupts, or any other register.
fn port(world: &mut World, client: &TreeClient, input: &mut Input<'_>) {
    let (offset, width) = match input.below(7) {
        6 => (tree_dcr::REG_INT_ENABLE, 4),
        0 => (tree_dcr::port::HI, 4),
        1 => (tree_dcr::port::DI, 16),
        2 => (input.pick(&[tree_dcr::port::DR, tree_dcr::port::HR, tree_dcr::port::SX]), 16),
        3 => (gi::BASE + 16 * u64::from(input.below(16)), 4),
        4 => (tree_dcr::dcr(u64::from(input.below(0x80))), 4),
        _ => (u64::from(input.below(REGISTERS as u32)), 4),
    };

    if input.flag() {
        let mut data = vec![0; if offset == tree_dcr::port::DR { 16 } else { 4 }];
        let _ = world.read(client.client_id, 0, offset, &mut data);
        return;
    }

    let mut data = [0; 16];
    match offset {
        tree_dcr::port::HI => data[..4].copy_from_slice(&header(input).0.to_le_bytes()),
        _ => data = input.array(),
    }

    // All quads of a packet at once, so that complete packets occur.
    let times = if offset == tree_dcr::port::DI && input.flag() { PAYLOAD / 16 } else { 1 };

    for _ in 0..times {
        let _ = world.write(client.client_id, 0, offset, &data[..width]);
    }
}

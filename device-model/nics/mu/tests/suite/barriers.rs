//! Barriers and collectives, through the Message Unit.

use nicforge_hwi::{
    mu::{PAGE, reg, vector},
    mu_dcr::{BARRIER_INT_EN, GI_INT_EN_SHIFT, SYS_BARRIER, error, errors},
    mu_packet::{Descriptor, channel, collective_type, fifo_map, kind, operation, packet_type},
    nd_dcr::{self, ClassRoute, LOCAL, class_link},
};
use nicforge_mu::Options;
use zerocopy::IntoBytes;

use crate::common::{COUNTERS, DATA, PAYLOAD, Rig, User, Way};

/// Class of the barriers and collectives here.
const CLASS: u8 = 3;

/// Writes the class routes of two nodes, whose root is node 0.
fn set_routes(rig: &mut Rig, kernels: &[User; 2], first: u64) {
    let routes = [
        ClassRoute { input: LOCAL | class_link(1), output: 0 },
        ClassRoute { input: LOCAL, output: class_link(0) },
    ];
    for (kernel, route) in kernels.iter().zip(routes) {
        let value = ClassRoute::register([ClassRoute::default(), route]);
        let offset = PAGE + first + 8 * u64::from(CLASS / 2);
        kernel.set_control(&mut rig.bed, offset, value);
    }
}

/// Returns two nodes with kernels and users, whose class has routes.
fn class() -> (Rig, [User; 2], [User; 2]) {
    let mut rig = Rig::new(&[2], Options::default());
    let kernels = [0, 1].map(|node| rig.kernel(node));
    let users = [0, 1].map(|node| rig.user(node, 0));
    set_routes(&mut rig, &kernels, nd_dcr::CTRL_GI_CLASS);
    set_routes(&mut rig, &kernels, nd_dcr::CTRL_COLL_CLASS);
    (rig, kernels, users)
}

const CONTROL: u64 = reg::BARRIER_CONTROL + 8 * CLASS as u64;
const STATUS: u64 = reg::BARRIER_STATUS + 8 * CLASS as u64;

#[test]
fn a_barrier_completes_when_all_nodes_have_entered() {
    let (mut rig, _kernels, mut users) = class();
    for count in 1..=5 {
        users[0].post(&mut rig.bed, CONTROL, 1);
        rig.settle();
        assert_eq!(users.each_ref().map(|user| user.shown(STATUS)), [count - 1; 2]);

        users[1].post(&mut rig.bed, CONTROL, 1);
        rig.until(|_| users.iter().all(|user| user.shown(STATUS) == count));
        assert_eq!(users[1].get(&mut rig.bed, STATUS), count);
    }
    let raised = users.each_ref().map(|user| user.interrupts[usize::from(vector::BARRIER)].get());
    assert_eq!(raised, [5, 5]);
}

#[test]
fn a_node_can_read_whether_it_is_in_a_barrier() {
    let (mut rig, _kernels, mut users) = class();
    let later = rig.user(0, 1);
    users[0].post(&mut rig.bed, CONTROL, 1);
    let of_all = |rig: &mut Rig| [&users[0], &later, &users[1]].map(|user| user.get(&mut rig.bed, CONTROL));
    assert_eq!(of_all(&mut rig), [1, 1, 0], "all subgroups of the node see it");
    users[1].set(&mut rig.bed, CONTROL, 1);
    rig.settle();
    assert_eq!(of_all(&mut rig), [0; 3]);

    users[0].set(&mut rig.bed, reg::BARRIER_CONTROL, 1);
    assert_eq!(users[0].get(&mut rig.bed, reg::BARRIER_CONTROL), 0, "class 0 has no route");
}

#[test]
fn a_client_that_comes_later_sees_the_number_of_barriers() {
    let (mut rig, kernels, mut users) = class();
    kernels[0].set_control(&mut rig.bed, BARRIER_INT_EN, 1 << CLASS);
    for user in &mut users {
        user.post(&mut rig.bed, CONTROL, 1);
    }
    rig.until(|_| users[0].shown(STATUS) == 1);

    let next = rig.user(0, 2);
    assert_eq!(next.shown(STATUS), 1);
    assert_eq!(next.interrupts[usize::from(vector::BARRIER)].get(), 0);
    assert_eq!(kernels[0].interrupts[usize::from(vector::BARRIER)].get(), 1);
    assert_eq!(kernels[1].interrupts[usize::from(vector::BARRIER)].get(), 0);
}

#[test]
fn barriers_that_pass_a_node_are_shown_there() {
    let mut rig = Rig::new(&[2], Options::default());
    let kernels = [0, 1].map(|node| rig.kernel(node));
    let mut users = [0, 1].map(|node| rig.user(node, 0));
    let route = ClassRoute { input: LOCAL, output: class_link(0) };
    let passing = ClassRoute { input: class_link(1), output: 0 };
    for (kernel, route) in kernels.iter().zip([passing, route]) {
        let offset = PAGE + nd_dcr::CTRL_GI_CLASS + 8 * u64::from(CLASS / 2);
        kernel.set_control(&mut rig.bed, offset, ClassRoute::register([ClassRoute::default(), route]));
    }

    for count in 1..=3 {
        users[1].post(&mut rig.bed, CONTROL, 1);
        rig.until(|_| users.iter().all(|user| user.shown(STATUS) == count));
    }
    assert_eq!(users[0].interrupts[usize::from(vector::BARRIER)].get(), 0);

    // As a member, the node waits for its peer.
    set_routes(&mut rig, &kernels, nd_dcr::CTRL_GI_CLASS);
    users[0].post(&mut rig.bed, CONTROL, 1);
    rig.settle();
    assert_eq!(users[0].shown(STATUS), 3);
    users[1].post(&mut rig.bed, CONTROL, 1);
    rig.until(|_| users.iter().all(|user| user.shown(STATUS) == 4));
}

#[test]
fn barriers_go_on_behind_a_reset_of_the_function() {
    let (mut rig, kernels, mut users) = class();
    for user in &mut users {
        user.post(&mut rig.bed, CONTROL, 1);
    }
    rig.until(|_| users.iter().all(|user| user.shown(STATUS) == 1));

    for function in rig.functions.clone() {
        rig.bed.reset_function(function).unwrap();
    }
    users.iter_mut().for_each(User::restart_ring);
    set_routes(&mut rig, &kernels, nd_dcr::CTRL_GI_CLASS);
    let first = users.each_ref().map(|user| user.shown(STATUS));

    // A node that has entered waits for the other one, and is shown the completion.
    users[0].post(&mut rig.bed, CONTROL, 1);
    rig.settle();
    assert_eq!(users.each_ref().map(|user| user.shown(STATUS)), first);
    users[1].post(&mut rig.bed, CONTROL, 1);
    rig.until(|_| users.iter().zip(first).all(|(user, first)| user.shown(STATUS) == first + 1));
}

#[test]
fn barriers_of_the_system_and_those_without_route_are_refused() {
    let (mut rig, kernels, users) = class();
    kernels[0].set_control(&mut rig.bed, SYS_BARRIER, 1 << CLASS);
    let state = |rig: &mut Rig| kernels[0].control(&mut rig.bed, errors::MMREGS);

    users[0].set(&mut rig.bed, CONTROL, 1);
    assert_eq!(state(&mut rig), 1 << error::MMREGS_BARRIER);
    kernels[0].set_control(&mut rig.bed, errors::MMREGS, u64::MAX);

    users[0].set(&mut rig.bed, reg::BARRIER_CONTROL, 1);
    assert_eq!(state(&mut rig), 1 << error::MMREGS_BARRIER, "class 0 has no route");
    kernels[0].set_control(&mut rig.bed, errors::MMREGS, u64::MAX);

    users[0].set(&mut rig.bed, CONTROL, 2);
    kernels[0].set(&mut rig.bed, CONTROL, 1);
    assert_eq!(state(&mut rig) & 1 << error::MMREGS_RANGE, 0, "the class is the system's");
    assert_eq!(rig.counter(0, "refused"), 3);
}

/// Returns a collective message of 64-bit unsigned sums.
fn allreduce(of: Descriptor) -> Descriptor {
    let mut descriptor = of;
    let header = &mut descriptor.packet_header;
    header.data_packet_type = kind::COLLECTIVE;
    header.byte1 = operation::UNSIGNED_ADD << 4 | 1;
    header.byte2 = CLASS << 4;
    header.byte3 = collective_type::ALLREDUCE << 3;
    header.set_channel(channel::USER_COMM_WORLD);
    descriptor.torus_fifo_map = fifo_map::COLLECTIVE_USER;
    descriptor
}

#[test]
fn an_allreduce_puts_the_sums_into_the_memory_of_all_nodes() {
    let (mut rig, _kernels, mut users) = class();
    let words = 200_u64;
    for (node, user) in users.iter_mut().enumerate() {
        user.write64(COUNTERS, words * 8);
        for word in 0..words {
            user.write64(PAYLOAD + word * 8, word + 1000 * node as u64);
        }
        let put = Way { from: 0, to: 1 }.put(0, 24, 0, PAYLOAD, words as usize * 8);
        user.inject(&mut rig.bed, 1, &allreduce(put));
    }

    rig.until(|_| users.iter().all(|user| user.read64(COUNTERS) == 0));
    for user in &users {
        for word in 0..words {
            assert_eq!(user.read64(DATA + 24 + word * 8), 2 * word + 1000);
        }
    }
}

#[test]
fn collective_packets_go_into_reception_fifos_too() {
    let (mut rig, _kernels, mut users) = class();
    for user in &mut users {
        user.write64(PAYLOAD, 21);
        user.inject(&mut rig.bed, 1, &allreduce(Way { from: 0, to: 1 }.fifo(2, PAYLOAD, 8)));
    }
    rig.until(|_| users.iter().all(|user| user.packets(2).0.len() == 1));
    for user in &users {
        let (header, payload) = &user.packets(2).0[0];
        assert_eq!(header.packet_type(), packet_type::FIFO);
        assert_eq!(payload[..8], 42_u64.to_le_bytes());
    }
}

#[test]
fn a_class_without_route_stops_the_fifo() {
    let (mut rig, mut users) = Rig::pair();
    users[0].inject(&mut rig.bed, 1, &allreduce(Way { from: 0, to: 1 }.fifo(2, PAYLOAD, 8)));
    rig.settle();
    assert_eq!(users[0].fault(1), nicforge_hwi::mu::fault::DESCRIPTOR);
}

const LINES_CONTROL: u64 = reg::GI_CONTROL + 8 * CLASS as u64;
const LINES_STATUS: u64 = reg::GI_STATUS + 8 * CLASS as u64;

/// Waits until both users see these lines.
fn until_lines(rig: &mut Rig, users: &[User; 2], lines: u64) {
    rig.until(|_| users.iter().all(|user| user.shown(LINES_STATUS) == lines));
}

#[test]
fn a_line_is_set_as_long_as_one_node_sets_it() {
    let (mut rig, _kernels, mut users) = class();
    let steps =
        [([0b001, 0], 0b001), ([0b001, 0b101], 0b101), ([0, 0b101], 0b101), ([0, 0b100], 0b100), ([0, 0], 0)];
    for (own, all) in steps {
        for (user, lines) in users.iter_mut().zip(own) {
            user.post(&mut rig.bed, LINES_CONTROL, lines);
        }
        until_lines(&mut rig, &users, all);
        rig.settle();
        assert_eq!(users.each_ref().map(|user| user.shown(LINES_STATUS)), [all; 2]);
        assert_eq!(users.each_mut().map(|user| user.get(&mut rig.bed, LINES_CONTROL)), own);
    }

    // Barriers of the same class go on beside them.
    users.iter_mut().for_each(|user| user.post(&mut rig.bed, CONTROL, 1));
    rig.until(|_| users.iter().all(|user| user.shown(STATUS) == 1));
}

#[test]
fn a_line_interrupts_where_the_kernel_has_enabled_it() {
    let (mut rig, kernels, mut users) = class();
    let global = |user: &User| user.interrupts[usize::from(vector::GLOBAL)].get();
    let enable = |line: u32| 1 << (GI_INT_EN_SHIFT + 3 * u32::from(CLASS) + line);
    kernels[1].set_control(&mut rig.bed, BARRIER_INT_EN, enable(1));
    assert_eq!(kernels[1].control(&mut rig.bed, BARRIER_INT_EN), enable(1));

    // Line 0 is not enabled, and no other class. A line that stays set interrupts once.
    for (lines, raised) in [(0b001, 0), (0b010, 1), (0b011, 1), (0, 1), (0b110, 2)] {
        users[0].post(&mut rig.bed, LINES_CONTROL, lines);
        until_lines(&mut rig, &users, lines);
        rig.settle();
        assert_eq!([global(&users[1]), global(&kernels[1])], [raised; 2], "{lines:#b}");
    }
    assert_eq!([global(&users[0]), global(&kernels[0])], [0; 2]);

    // A line that is set already interrupts when it is enabled.
    kernels[0].set_control(&mut rig.bed, BARRIER_INT_EN, enable(2));
    rig.settle();
    assert_eq!([global(&users[0]), global(&kernels[0])], [1; 2]);
}

#[test]
fn lines_of_the_system_and_those_without_route_are_refused() {
    let (mut rig, kernels, mut users) = class();
    kernels[0].set_control(&mut rig.bed, SYS_BARRIER, 1 << CLASS);
    for (offset, value) in [(LINES_CONTROL, 1), (LINES_CONTROL + 8, 1), (LINES_STATUS, 1)] {
        users[0].post(&mut rig.bed, offset, value);
    }
    users[1].post(&mut rig.bed, LINES_CONTROL, 8);
    rig.settle();
    assert_eq!(users.each_ref().map(|user| user.shown(LINES_STATUS)), [0; 2]);

    // The kernel sets a line of the system, which users see, and which interrupts the kernel alone.
    kernels[0].set_control(&mut rig.bed, BARRIER_INT_EN, u64::MAX << GI_INT_EN_SHIFT);
    let mut kernel = kernels.into_iter().next().unwrap();
    kernel.post(&mut rig.bed, LINES_CONTROL, 0b100);
    until_lines(&mut rig, &users, 0b100);
    let raised = [&kernel, &users[0]].map(|user| user.interrupts[usize::from(vector::GLOBAL)].get());
    assert_eq!(raised, [1, 0]);
}

#[test]
fn a_reset_and_a_new_route_take_the_lines_away() {
    let (mut rig, kernels, mut users) = class();
    users[1].post(&mut rig.bed, LINES_CONTROL, 0b111);
    until_lines(&mut rig, &users, 0b111);
    set_routes(&mut rig, &kernels, nd_dcr::CTRL_GI_CLASS);
    rig.settle();
    assert_eq!(users.each_ref().map(|user| user.shown(LINES_STATUS)), [0b111; 2], "the same route");

    for function in rig.functions.clone() {
        rig.bed.reset_function(function).unwrap();
    }
    users.iter_mut().for_each(User::restart_ring);
    rig.settle();
    assert_eq!(users.each_ref().map(|user| user.shown(LINES_STATUS)), [0; 2]);

    set_routes(&mut rig, &kernels, nd_dcr::CTRL_GI_CLASS);
    users[1].post(&mut rig.bed, LINES_CONTROL, 0b010);
    until_lines(&mut rig, &users, 0b010);
}

#[test]
fn a_broadcast_remote_get_starts_a_reduction() {
    let (mut rig, _kernels, mut users) = class();
    for (node, user) in (0..).zip(&users) {
        user.write64(COUNTERS, 16);
        user.write64(PAYLOAD, 100 + node);
        user.write64(PAYLOAD + 8, 7);
    }

    // The payload is the descriptor of an allreduce, which each node finds in its FIFO for gets.
    let way = Way { from: 0, to: 1 };
    let reduction = allreduce(way.put(0, 40, 0, PAYLOAD, 16));
    users[0].write(PAYLOAD + 4096, reduction.as_bytes());
    let mut get = allreduce(way.get(6, PAYLOAD + 4096, 64));
    get.packet_header.byte3 = collective_type::BROADCAST << 3;
    get.packet_header.set_channel(channel::USER_COMM_WORLD);
    users[0].inject(&mut rig.bed, 1, &get);

    rig.until(|_| users.iter().all(|user| user.read64(COUNTERS) == 0));
    for user in &users {
        assert_eq!([user.read64(DATA + 40), user.read64(DATA + 48)], [201, 14]);
        assert_eq!(user.done(6), 1);
    }
}

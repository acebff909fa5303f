//! Collectives and barriers of eight nodes, and all-to-all.

use nicforge_driver::{Deadline, Error as DriverError};
use nicforge_spi::{
    Blocks, Box5, Collective, CollectiveChannel, Error, Kernel, MemoryFifo, Operation, Options, RandomOrder,
    Resource, Subgroup, direct_put, memory_fifo,
};
use nicforge_test_body::body;

use super::{BASE, CUBE, MACHINE, Node, RECEIVE, SEND, SHORT, SINK, SOURCE, length_bytes};
use crate::{
    backing::{Rig, test_deadline},
    pattern::pattern,
};

/// Nodes of [`CUBE`].
const NODES: u32 = 8;
/// The class route of the collectives and barriers here.
const CLASS: u8 = 5;

/// The kernel and a subgroup of each node.
struct Job {
    kernels: Vec<Kernel>,
    nodes: Vec<Node>,
}

/// Returns a job in which each node has its part of a collective and of a barrier class route over
/// all nodes.
fn job(rig: &dyn Rig, nodes: u32) -> Job {
    let kernels: Vec<_> =
        (0..nodes).map(|node| Kernel::open(&rig.open(&format!("bgq{node}"), "kernel")).unwrap()).collect();
    set_routes(&kernels);
    let nodes = (0..nodes).map(|node| Node::new(rig, node, 0)).collect();
    Job { kernels, nodes }
}

/// Sets the class routes of all nodes.
fn set_routes(kernels: &[Kernel]) {
    for kernel in kernels {
        let position = kernel.position();
        let route = Box5::whole(position.shape).route(position.own, true).unwrap();
        kernel.set_collective_route(CLASS, route, CollectiveChannel::SubComm).unwrap();
        kernel.set_barrier_route(CLASS, route).unwrap();
        kernel.set_barrier_interrupts(1 << CLASS).unwrap();
    }
}

/// Returns `count` words of 8 bytes that differ from node to node.
fn words(node: u32, count: usize) -> Vec<u64> {
    let bytes = pattern(u64::from(node) + 100, 8 * count);
    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Returns words as the bytes of a payload.
fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the result of an operation on a word of each node, as a scalar program computes it.
fn combined(operation: Operation, of: &[u64]) -> u64 {
    let signed = |of: &u64| of.cast_signed();
    match operation {
        Operation::And => of.iter().fold(u64::MAX, |all, word| all & word),
        Operation::Or => of.iter().fold(0, |all, word| all | word),
        Operation::Xor => of.iter().fold(0, |all, word| all ^ word),
        Operation::UnsignedAdd | Operation::SignedAdd => {
            of.iter().fold(0, |all, word| all.wrapping_add(*word))
        }
        Operation::UnsignedMin => *of.iter().min().unwrap(),
        Operation::UnsignedMax => *of.iter().max().unwrap(),
        Operation::SignedMin => *of.iter().min_by_key(|word| signed(word)).unwrap(),
        Operation::SignedMax => *of.iter().max_by_key(|word| signed(word)).unwrap(),
        Operation::FloatingAdd => of.iter().map(|word| f64::from_bits(*word)).sum::<f64>().to_bits(),
        Operation::FloatingMin => {
            of.iter().map(|word| f64::from_bits(*word)).fold(f64::INFINITY, f64::min).to_bits()
        }
        Operation::FloatingMax => {
            of.iter().map(|word| f64::from_bits(*word)).fold(f64::NEG_INFINITY, f64::max).to_bits()
        }
    }
}

/// Returns whole numbers below 2^20 as double-precision numbers, so that any order of additions is
/// exact.
fn floats(node: u32, count: usize) -> Vec<u64> {
    words(node, count).iter().map(|word| ((word >> 44) as f64 - 500_000.0).to_bits()).collect()
}

/// All operations of collectives.
const OPERATIONS: [Operation; 12] = [
    Operation::And,
    Operation::Or,
    Operation::Xor,
    Operation::UnsignedAdd,
    Operation::UnsignedMin,
    Operation::UnsignedMax,
    Operation::SignedAdd,
    Operation::SignedMin,
    Operation::SignedMax,
    Operation::FloatingAdd,
    Operation::FloatingMin,
    Operation::FloatingMax,
];

/// Each operation of an allreduce by direct put gives all nodes what a scalar program computes.
#[body(on(CUBE))]
pub fn allreduces_by_put_match_a_scalar_model(rig: &dyn Rig) {
    const COUNT: usize = 200;
    const LENGTH: u64 = 8 * COUNT as u64;

    let mut job = job(rig, NODES);
    for operation in OPERATIONS {
        let inputs: Vec<_> = (0..NODES)
            .map(|node| if operation.is_floating() { floats(node, COUNT) } else { words(node, COUNT) })
            .collect();
        let expected: Vec<_> = (0..COUNT)
            .map(|at| combined(operation, &inputs.iter().map(|words| words[at]).collect::<Vec<_>>()))
            .collect();

        for (node, input) in job.nodes.iter().zip(&inputs) {
            node.write(SOURCE + 3, &bytes_of(input));
            node.counter(0).set(LENGTH);
        }
        for node in &mut job.nodes {
            let target = node.target(SINK, &node.counter(0));
            let route = Collective::allreduce(CLASS, operation, 8);
            let put = direct_put(node.payload(SOURCE + 3, LENGTH), route, &target).unwrap();
            node.inject(&put);
        }
        for node in &job.nodes {
            node.wait(&node.counter(0));
            assert!(node.read(SINK, LENGTH) == bytes_of(&expected), "{operation:?}");
        }
    }
}

/// An allreduce by memory FIFO gives all nodes the result, and a reduction only its destination.
#[body(on(CUBE))]
pub fn an_allreduce_by_fifo_reaches_all_nodes_and_a_reduction_only_its_destination(rig: &dyn Rig) {
    let mut job = job(rig, NODES);
    let inputs: Vec<_> = (0..NODES).map(|node| words(node, 70)).collect();
    let sums: Vec<_> =
        (0..70).map(|at| inputs.iter().fold(0_u64, |sum, words| sum.wrapping_add(words[at]))).collect();
    for (node, input) in job.nodes.iter().zip(&inputs) {
        node.write(SOURCE, &bytes_of(input));
    }

    let send = |job: &mut Job, route: Collective| {
        for node in &mut job.nodes {
            let target = MemoryFifo { software: length_bytes(560), ..node.fifo() };
            let message = memory_fifo(node.payload(SOURCE, 560), route, &target).unwrap();
            node.inject(&message);
        }
    };
    send(&mut job, Collective::allreduce(CLASS, Operation::UnsignedAdd, 8));
    for node in &mut job.nodes {
        assert!(node.message() == bytes_of(&sums));
    }

    let to = job.nodes[3].subgroup.position().destination();
    send(&mut job, Collective::reduce(CLASS, Operation::UnsignedAdd, 8, to));
    assert!(job.nodes[3].message() == bytes_of(&sums));
    rig.settle();
    for node in &mut job.nodes {
        assert_eq!(node.subgroup.has_packet(RECEIVE), Ok(false));
    }
}

/// A broadcast of any node reaches all, by direct put and by memory FIFO.
#[body(on(CUBE))]
pub fn broadcasts_of_any_node_reach_all(rig: &dyn Rig) {
    let mut job = job(rig, NODES);
    let route = Collective::broadcast(CLASS);

    for (index, length) in (0..).zip([1, 31, 512, 513, 5000]) {
        let sender = index * 3 % NODES as usize;
        let bytes = pattern(index as u64, length as usize);
        for node in &job.nodes {
            node.counter(0).set(length);
        }

        let node = &mut job.nodes[sender];
        node.write(SOURCE + 1, &bytes);
        let put =
            direct_put(node.payload(SOURCE + 1, length), route, &node.target(SINK + 5, &node.counter(0)));
        node.inject(&put.unwrap());
        for node in &job.nodes {
            node.wait(&node.counter(0));
            assert!(node.read(SINK + 5, length) == bytes, "{length} bytes of node {sender}");
        }

        let node = &mut job.nodes[sender];
        let target = MemoryFifo { software: length_bytes(length), ..node.fifo() };
        node.inject(&memory_fifo(node.payload(SOURCE + 1, length), route, &target).unwrap());
        for node in &mut job.nodes {
            assert!(node.message() == bytes, "{length} bytes of node {sender}");
        }
    }
}

/// A barrier is complete when the last node has entered, and not before.
#[body(on(CUBE))]
pub fn a_barrier_waits_for_the_last_node(rig: &dyn Rig) {
    let mut job = job(rig, NODES);
    let mut barriers: Vec<_> = job.nodes.iter().map(|node| node.subgroup.barrier(CLASS).unwrap()).collect();

    for round in 0..5 {
        let last = round * 3 % NODES as usize;
        for (number, (node, barrier)) in job.nodes.iter_mut().zip(&mut barriers).enumerate() {
            if number != last {
                node.subgroup.enter(barrier).unwrap();
            }
        }

        let (first, first_barrier) = (&mut job.nodes[(last + 1) % 8], &mut barriers[(last + 1) % 8]);
        let early = first.subgroup.wait_barrier(first_barrier, Deadline::after(SHORT), None);
        assert!(matches!(early, Err(Error::Driver(DriverError::Timeout { .. }))), "{early:?}");
        let second_entry = first.subgroup.enter(first_barrier);
        assert_eq!(second_entry, Err(Error::InBarrier { class: CLASS }));

        job.nodes[last].subgroup.enter(&mut barriers[last]).unwrap();
        for (node, barrier) in job.nodes.iter_mut().zip(&mut barriers) {
            node.subgroup.wait_barrier(barrier, test_deadline(), None).unwrap();
        }
    }
}

/// A job finds neither the entered barrier nor the set line of an earlier one with the same class
/// route.
#[body(on(CUBE, MACHINE))]
pub fn a_job_takes_over_no_barrier_and_no_line(rig: &dyn Rig) {
    const LINE: u8 = 2;

    let nodes = Kernel::open(&rig.open("bgq0", "kernel")).unwrap().position().nodes();
    let mut job = job(rig, nodes);
    let last = nodes as usize - 1;
    for node in &mut job.nodes[..last] {
        let mut barrier = node.subgroup.barrier(CLASS).unwrap();
        node.subgroup.enter(&mut barrier).unwrap();
    }
    let setter_line = job.nodes[0].subgroup.global_interrupt(CLASS, LINE).unwrap();
    job.nodes[0].subgroup.set_global_interrupt(&setter_line, true).unwrap();
    let line = job.nodes[last].subgroup.global_interrupt(CLASS, LINE).unwrap();
    job.nodes[last].subgroup.wait_global_interrupt(&line, true, test_deadline(), None).unwrap();
    rig.settle();

    // A guest's kernel closes a device once its last mapping has gone. Lines are such mappings.
    drop((setter_line, line));
    job.nodes.clear();
    set_routes(&job.kernels);
    rig.settle();
    job.nodes.extend((0..nodes).map(|node| Node::new(rig, node, 0)));
    for node in &job.nodes {
        assert!(!node.subgroup.global_interrupt(CLASS, LINE).unwrap().is_set());
    }

    let mut barriers: Vec<_> = job.nodes.iter().map(|node| node.subgroup.barrier(CLASS).unwrap()).collect();
    job.nodes[last].subgroup.enter(&mut barriers[last]).unwrap();
    let early = job.nodes[last].subgroup.wait_barrier(&mut barriers[last], Deadline::after(SHORT), None);
    assert!(matches!(early, Err(Error::Driver(DriverError::Timeout { .. }))), "{early:?}");

    for (node, barrier) in job.nodes[..last].iter_mut().zip(&mut barriers) {
        node.subgroup.enter(barrier).unwrap();
    }
    for (node, barrier) in job.nodes.iter_mut().zip(&mut barriers) {
        node.subgroup.wait_barrier(barrier, test_deadline(), None).unwrap();
    }
}

/// A barrier that the unit does not let the node enter is an error: its class route has no part of
/// the node, or is the system's.
#[body]
pub fn barriers_that_the_unit_refuses_are_errors(rig: &dyn Rig) {
    let mut job = job(rig, 2);
    let (kernel, node) = (&job.kernels[0], &mut job.nodes[0]);
    let mut without_route = node.subgroup.barrier(CLASS + 1).unwrap();
    node.subgroup.enter(&mut without_route).unwrap();
    let refused = node.subgroup.wait_barrier(&mut without_route, test_deadline(), None);
    assert_eq!(refused, Err(Error::BarrierRefused { class: CLASS + 1 }));

    let mut barrier = node.subgroup.barrier(CLASS).unwrap();
    kernel.set_system_barriers(1 << CLASS).unwrap();
    node.subgroup.enter(&mut barrier).unwrap();
    let refused = node.subgroup.wait_barrier(&mut barrier, test_deadline(), None);
    assert_eq!(refused, Err(Error::BarrierRefused { class: CLASS }));

    // The node is in no barrier then, so that it can enter one once the unit lets it.
    kernel.set_system_barriers(0).unwrap();
    node.subgroup.enter(&mut barrier).unwrap();
    let early = node.subgroup.wait_barrier(&mut barrier, Deadline::after(SHORT), None);
    assert!(matches!(early, Err(Error::Driver(DriverError::Timeout { .. }))), "{early:?}");
}

/// In an all-to-all, each node gets the block of each other node at that node's index.
#[body(on(CUBE, MACHINE))]
pub fn an_all_to_all_moves_each_block(rig: &dyn Rig) {
    const BLOCK: u64 = 1001;

    let device = rig.open("bgq0", "s1");
    let nodes = Subgroup::open(&device, Options::default()).unwrap().position().nodes();
    let mut all: Vec<_> = (0..nodes).map(|node| Node::new(rig, node, 0)).collect();
    for (number, node) in (0..).zip(&all) {
        for to in 0..nodes {
            let bytes = pattern(u64::from(number * 100 + to), BLOCK as usize);
            node.write(SOURCE + u64::from(to) * BLOCK, &bytes);
        }
        node.counter(0).set(u64::from(nodes - 1) * BLOCK);
    }

    for node in &mut all {
        let order = RandomOrder::new(&node.subgroup.position(), 1);
        let target = node.target(SINK, &node.counter(0));
        let blocks = Blocks { source: node.memory.iova() + SOURCE, bytes: BLOCK, target };
        node.subgroup.all_to_all(&[SEND], &order, &blocks, test_deadline(), None).unwrap();
    }

    for (number, node) in (0..nodes).zip(&all) {
        node.wait(&node.counter(0));
        for from in (0..nodes).filter(|from| *from != number) {
            let bytes = pattern(u64::from(from * 100 + number), BLOCK as usize);
            assert!(node.read(SINK + u64::from(from) * BLOCK, BLOCK) == bytes, "{from} to {number}");
        }
    }
}

/// The kernel gives each FIFO, base address and class route once.
#[body]
pub fn the_kernel_allocates_each_resource_once(rig: &dyn Rig) {
    let kernel = Kernel::open(&rig.open("bgq0", "kernel")).unwrap();
    kernel.allocate_injection_fifos(0, &[0, 3]).unwrap();
    let taken = Error::Taken { resource: Resource::InjectionFifo, number: 3, subgroup: 0 };
    assert_eq!(kernel.allocate_injection_fifos(0, &[1, 3]), Err(taken));
    assert_eq!(kernel.unallocated(Resource::InjectionFifo, 0), [1, 2, 4, 5, 6, 7]);
    kernel.allocate_injection_fifos(1, &[3]).unwrap();
    kernel.free(Resource::InjectionFifo, 0, &[3]).unwrap();
    kernel.allocate_injection_fifos(0, &[3]).unwrap();
    assert!(matches!(kernel.free(Resource::InjectionFifo, 0, &[0, 5]), Err(Error::NotAllocated { .. })));

    kernel.allocate_reception_fifos(0, &[0, 1, 2, 3]).unwrap();
    assert!(matches!(kernel.allocate_reception_fifos(0, &[4]), Err(Error::NoSuch { .. })));
    kernel.allocate_base_addresses(1, &[7]).unwrap();
    assert!(matches!(kernel.allocate_base_addresses(68, &[0]), Err(Error::NoSuchSubgroup { .. })));
    kernel.allocate_class(Resource::BarrierClass, 15).unwrap();
    kernel.allocate_class(Resource::CollectiveClass, 15).unwrap();
    assert!(matches!(kernel.allocate_class(Resource::BarrierClass, 15), Err(Error::Taken { .. })));
    assert!(matches!(kernel.allocate_class(Resource::BarrierClass, 16), Err(Error::NoSuch { .. })));
}

/// Neither the owner of a reception FIFO nor its successor enables it again after the kernel has
/// disabled it.
#[body]
pub fn a_reception_fifo_that_the_kernel_disabled_stays_so(rig: &dyn Rig) {
    const OTHER: u8 = 1;

    let kernel = Kernel::open(&rig.open("bgq1", "kernel")).unwrap();
    let mut remote = Node::new(rig, 1, 0);
    kernel.set_reception(0, &[RECEIVE], false).unwrap();
    remote.subgroup.open_reception(OTHER, 4096).unwrap();
    let refused = Error::ReceptionRefused { fifo: RECEIVE };
    assert_eq!(remote.subgroup.set_reception_enabled(1 << RECEIVE, true), Err(refused));

    kernel.set_reception(0, &[RECEIVE], true).unwrap();
    remote.subgroup.set_reception_enabled(1 << RECEIVE, false).unwrap();
    remote.subgroup.set_reception_enabled(1 << RECEIVE, true).unwrap();
}

/// A reception FIFO that the unit has stopped stays so when its owner opens another one.
#[body]
pub fn a_stopped_reception_fifo_stays_so_when_another_is_opened(rig: &dyn Rig) {
    const OTHER: u8 = 1;

    let kernel = Kernel::open(&rig.open("bgq1", "kernel")).unwrap();
    let (mut local, mut remote) = super::pair(rig);
    let message = memory_fifo(nicforge_spi::Payload::NONE, local.ordered(&remote), &remote.fifo()).unwrap();
    kernel.set_user_ranges(&[]).unwrap();
    local.send(&message);
    rig.settle();
    let stopped = Error::ReceptionStopped { fifo: RECEIVE, fault: nicforge_spi::Fault::Range };
    assert_eq!(remote.subgroup.has_packet(RECEIVE), Err(stopped.clone()));

    let all = nicforge_spi::AddressRange { first: 0, last: (1 << 36) - 1, read_only: false };
    kernel.set_user_ranges(&[all]).unwrap();
    remote.subgroup.open_reception(OTHER, 4096).unwrap();
    assert_eq!(remote.subgroup.has_packet(RECEIVE), Err(stopped));

    remote.subgroup.set_reception_enabled(1 << RECEIVE, true).unwrap();
    local.send(&message);
    remote.subgroup.wait_packet(RECEIVE, test_deadline(), None).unwrap();
}

/// The kernel can disable a reception FIFO. A packet for a disabled one is dropped.
#[body]
pub fn the_kernel_disables_a_reception_fifo(rig: &dyn Rig) {
    let kernel = Kernel::open(&rig.open("bgq1", "kernel")).unwrap();
    let (mut local, mut remote) = super::pair(rig);
    let message = memory_fifo(nicforge_spi::Payload::NONE, local.ordered(&remote), &remote.fifo()).unwrap();

    kernel.set_reception(0, &[RECEIVE], false).unwrap();
    local.send(&message);
    remote
        .subgroup
        .device()
        .wait_until(test_deadline(), None, || remote.subgroup.dropped().unwrap() == 1)
        .unwrap();
    assert_eq!(remote.subgroup.has_packet(RECEIVE), Ok(false));

    kernel.set_reception(0, &[RECEIVE], true).unwrap();
    local.send(&message);
    remote.subgroup.wait_packet(RECEIVE, test_deadline(), None).unwrap();
    assert_eq!(remote.subgroup.base_address(BASE), Ok(remote.memory.iova()));
}

/// Ranges of addresses bound what the unit reads for users.
#[body]
pub fn the_kernels_ranges_bound_the_users_memory(rig: &dyn Rig) {
    let kernel = Kernel::open(&rig.open("bgq0", "kernel")).unwrap();
    let (mut local, remote) = super::pair(rig);
    let counter = remote.counter(0);
    counter.set(64);
    let target = remote.target(SINK, &counter);
    let put = direct_put(local.payload(SOURCE, 64), local.ordered(&remote), &target).unwrap();

    kernel.set_user_ranges(&[]).unwrap();
    let number = local.inject(&put);
    let ended = local.subgroup.injection().wait_done(SEND, number, test_deadline(), None);
    assert!(matches!(ended, Err(Error::Stopped { fault: nicforge_spi::Fault::Range, .. })), "{ended:?}");

    let all = nicforge_spi::AddressRange { first: 0, last: (1 << 36) - 1, read_only: false };
    assert!(matches!(kernel.set_user_ranges(&[all; 21]), Err(Error::TooManyRanges { .. })));
    kernel.set_user_ranges(&[all]).unwrap();
    local.subgroup.restart_injection(SEND).unwrap();
    local.send(&put);
    remote.wait(&counter);
}

impl Drop for Job {
    /// Removes the class routes: they belong to the machine, which bodies in a guest share.
    fn drop(&mut self) {
        for kernel in &self.kernels {
            let _ = kernel.set_collective_route(CLASS, Default::default(), CollectiveChannel::SubComm);
            let _ = kernel.set_barrier_route(CLASS, Default::default());
        }
    }
}

//! Global interrupts, and interrupts of FIFOs.

use nicforge_driver::{Deadline, Error as DriverError};
use nicforge_hwi::{mu, nd_dcr};
use nicforge_spi::{
    Box5, ClassRoute, CollectiveChannel, Error, FifoInterrupts, Kernel, MemoryFifo, Payload, link,
    memory_fifo,
};
use nicforge_test_body::body;

use super::{CUBE, MACHINE, Node, RECEIVE, SEND, SHORT};
use crate::backing::{Rig, test_deadline};

/// The class route of the global interrupts here.
const CLASS: u8 = 6;
/// The register of its barrier route.
const REGISTER: u64 = nd_dcr::BASE - mu::DEVICE_CONTROL + nd_dcr::CTRL_GI_CLASS + 8 * (CLASS as u64 / 2);
/// The line of that class that most bodies use.
const LINE: u8 = 1;

/// The kernels of all nodes, with the class route that [`set_routes`] set. Its drop removes the
/// route, because bodies in a guest share the machine.
struct Routes(Vec<Kernel>);

impl Drop for Routes {
    fn drop(&mut self) {
        for kernel in &self.0 {
            let _ = kernel.set_barrier_route(CLASS, Default::default());
            let _ = kernel.set_global_interrupts(CLASS, 0);
        }
    }
}

/// Sets the class route of all nodes of the machine, and enables the interrupts of [`LINE`].
fn set_routes(rig: &dyn Rig) -> Routes {
    let first = Kernel::open(&rig.open("bgq0", "kernel")).unwrap();
    let nodes = first.position().nodes();
    let others = (1..nodes).map(|node| Kernel::open(&rig.open(&format!("bgq{node}"), "kernel")).unwrap());
    let kernels: Vec<_> = [first].into_iter().chain(others).collect();

    for kernel in &kernels {
        let position = kernel.position();
        let route = Box5::whole(position.shape).route(position.own, true).unwrap();
        kernel.set_barrier_route(CLASS, route).unwrap();
        kernel.set_global_interrupts(CLASS, 1 << LINE).unwrap();
    }
    Routes(kernels)
}

/// A line that one node sets is set at all nodes, until the last one that sets it clears it.
#[body(on(MACHINE, CUBE))]
pub fn a_global_interrupt_reaches_all_nodes(rig: &dyn Rig) {
    let routes = set_routes(rig);
    let mut nodes: Vec<_> = (0..routes.0.len() as u32).map(|node| Node::new(rig, node, 0)).collect();
    let line = nodes[0].subgroup.global_interrupt(CLASS, LINE).unwrap();
    let of_all: Vec<_> =
        nodes.iter().map(|node| node.subgroup.global_interrupt(CLASS, LINE).unwrap()).collect();
    let wait = |nodes: &mut [Node], is_set| {
        for (node, line) in nodes.iter_mut().zip(&of_all) {
            node.subgroup.wait_global_interrupt(line, is_set, test_deadline(), None).unwrap();
            assert_eq!(line.is_set(), is_set);
        }
    };

    let last = nodes.len() - 1;
    wait(&mut nodes, false);
    nodes[last].subgroup.set_global_interrupt(&of_all[last], true).unwrap();
    wait(&mut nodes, true);

    // Two nodes set it, and the other lines of the class are clear.
    nodes[0].subgroup.set_global_interrupt(&line, true).unwrap();
    nodes[last].subgroup.set_global_interrupt(&of_all[last], false).unwrap();
    let timeout = nodes[0].subgroup.wait_global_interrupt(&line, false, Deadline::after(SHORT), None);
    assert!(matches!(timeout, Err(Error::Driver(DriverError::Timeout { .. }))), "{timeout:?}");
    assert!(!nodes[0].subgroup.global_interrupt(CLASS, LINE + 1).unwrap().is_set());

    nodes[0].subgroup.set_global_interrupt(&line, false).unwrap();
    wait(&mut nodes, false);
}

/// Lines that do not exist, and those of a class without a route, are refused.
#[body]
pub fn lines_without_a_route_are_refused(rig: &dyn Rig) {
    let mut node = Node::new(rig, 0, 0);
    assert!(matches!(node.subgroup.global_interrupt(16, 0), Err(Error::NoSuch { .. })));
    assert!(matches!(node.subgroup.global_interrupt(CLASS, 3), Err(Error::NoLine { line: 3 })));

    let line = node.subgroup.global_interrupt(CLASS + 1, 0).unwrap();
    let refused = node.subgroup.set_global_interrupt(&line, true);
    assert_eq!(refused, Err(Error::LineRefused { class: CLASS + 1, line: 0 }));
    assert!(!line.is_set());
}

/// A class route that the unit does not take is refused, and the former one stays.
#[body]
pub fn impossible_class_routes_are_refused(rig: &dyn Rig) {
    let routes = set_routes(rig);
    let kernel = &routes.0[0];
    let former = kernel.control(REGISTER).unwrap();
    for (input, output) in [
        (link::LOCAL, link::of(0, true) | link::of(0, false)),
        (link::LOCAL | link::of(0, true), link::of(0, true)),
        (link::LOCAL, link::LOCAL),
    ] {
        let route = ClassRoute { input, output };
        let refused = Error::ClassRouteRefused { class: CLASS, input, output };
        assert_eq!(kernel.set_barrier_route(CLASS, route), Err(refused.clone()));
        assert_eq!(kernel.set_collective_route(CLASS, route, CollectiveChannel::SubComm), Err(refused));
    }
    assert_eq!(kernel.control(REGISTER), Ok(former));
}

/// A reception FIFO interrupts when its free space falls below the threshold, and an injection FIFO
/// when it rises above its own.
#[body]
pub fn thresholds_interrupt_and_can_be_cleared(rig: &dyn Rig) {
    let (mut local, mut remote) = super::pair(rig);
    let expected = FifoInterrupts { reception: 1 << RECEIVE, ..FifoInterrupts::default() };
    remote.subgroup.set_thresholds(None, Some((64 << 10) - 256)).unwrap();
    remote.subgroup.set_interrupts(expected).unwrap();

    // Eight packets of a header alone take 256 bytes, and the ninth crosses the threshold.
    let target = MemoryFifo { fifo: remote.subgroup.reception_id(RECEIVE), ..MemoryFifo::default() };
    let message = memory_fifo(Payload::NONE, local.ordered(&remote), &target).unwrap();
    (0..8).for_each(|_| local.send(&message));
    let none = remote.subgroup.wait_interrupts(expected, Deadline::after(SHORT), None);
    assert!(matches!(none, Err(Error::Driver(DriverError::Timeout { .. }))), "{none:?}");
    local.send(&message);
    assert_eq!(remote.subgroup.wait_interrupts(expected, test_deadline(), None), Ok(expected));

    remote.subgroup.clear_interrupts(expected).unwrap();
    assert_eq!(remote.subgroup.interrupts(), Ok(FifoInterrupts::default()));

    // The injection FIFO has 64 descriptors and one free slot, and has room for all when it is
    // empty.
    let risen = FifoInterrupts { injection: 1 << SEND, ..FifoInterrupts::default() };
    local.subgroup.set_thresholds(Some(64 * 64), None).unwrap();
    local.subgroup.set_interrupts(risen).unwrap();
    local.send(&message);
    assert_eq!(local.subgroup.wait_interrupts(risen, test_deadline(), None), Ok(risen));
}

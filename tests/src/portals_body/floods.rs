//! Processes that put without end, with acknowledgements, to a process in host-based mode. The
//! kernel keeps a bounded number of answers, and serves its own process and those of other nodes.

use std::sync::Arc;

use nicforge_core::machine::Machine;
use nicforge_machine::{build::build, description::parse};
use nicforge_nics::families;
use nicforge_portals::{
    Ack, Descriptor, EventKind, Kernel, KernelBacklog, KernelConfig, MemoryDescriptor, Mode, Options, Region,
    Target,
};
use nicforge_test_body::body;

use super::{BITS, Bench, PORTAL, Process};
use crate::{
    backing::Rig,
    bodies::{Guests, TestMachine},
};

/// The machine of all bodies of this module.
pub static MACHINE: TestMachine = TestMachine {
    name: "portals_floods",
    make: machine,
    guests: Guests::None("a flood takes long on an emulated processor, and the kernels run on the host"),
};

/// Slots of a kernel's event queue.
const EVENTS: u32 = 64;
/// Number of answers to a node that a kernel may have: those above which it refuses the node, and
/// those to messages that have arrived by then (of a call of the kernel, and in its event queue).
const MOST_ANSWERS: usize = 1024 + 256 + 64;
/// Rounds of a flood: several times as many messages as a kernel may have answers to.
const ROUNDS: u32 = 100;

/// Returns a machine of three nodes with two processes each.
pub fn machine() -> Machine {
    let text = "name = \"portals-floods\"\n[[seastar]]\ntorus = [3]\nprocesses = 2\n";
    build(&parse(text, "portals-floods.toml", &families()).unwrap()).unwrap().0
}

/// Boots a node whose kernel has a small event queue.
fn kernel(rig: &dyn Rig, node: u32) -> Arc<Kernel> {
    let config = KernelConfig { events: EVENTS, ..KernelConfig::default() };
    Kernel::boot(rig.open(&format!("ss{node}"), "kernel"), config).unwrap()
}

/// A process that takes all puts and gets with [`BITS`] without events, and can put and get.
struct Party {
    process: Process,
    _sink: Region,
    source: MemoryDescriptor,
}

impl Party {
    fn new(rig: &dyn Rig, kernel: &Arc<Kernel>, number: u16, mode: Mode) -> Self {
        let process = Process::new(rig, kernel, number, mode);
        let sink = process.region(4096);
        let options = Options::PUT | Options::GET | Options::MANAGE_REMOTE;
        process.post(&Descriptor { options, ..Descriptor::over(&sink) });
        let source = process.interface.bind_descriptor(&Descriptor::over(&sink)).unwrap();
        Self { process, _sink: sink, source }
    }

    fn target(&self) -> Target {
        Target::new(self.process.id(), PORTAL, BITS)
    }

    /// Puts 8 bytes with acknowledgements, up to `maximum` times, until the call is refused.
    /// Returns the number of puts.
    fn flood(&self, target: &Target, maximum: u32) -> u32 {
        let put = |_: &u32| self.process.interface.put_region(&self.source, 0, 8, Ack::Requested, target, 0);
        (0..maximum).take_while(|number| put(number).is_ok()).count() as u32
    }

    /// Puts 8 bytes, and waits until they are acknowledged. `meanwhile` is called again and again.
    fn put_and_wait(&self, bench: &Bench<'_>, target: &Target, mut meanwhile: impl FnMut()) {
        let process = &self.process;
        let values = Descriptor { queue: Some(&process.queue), ..Descriptor::over(self.source.region()) };
        let from = process.interface.bind_descriptor(&values).unwrap();
        process.interface.put_region(&from, 0, 8, Ack::Requested, target, 0).unwrap();
        bench.wait_until("an acknowledgement of the honest process", || {
            meanwhile();
            process.queue.get().unwrap().filter(|event| event.kind == EventKind::Ack)
        });
        process.interface.unlink_descriptor(&from).unwrap();
    }
}

/// A flood from one node is refused when the kernel has many answers to it. The kernel's own
/// process goes on, to that node and to others, and so do messages of other nodes.
#[body]
pub fn a_flood_of_acknowledged_puts_is_refused_and_holds_up_no_other_node(rig: &dyn Rig) {
    let kernels = [0, 1, 2].map(|node| kernel(rig, node));
    let flooder = Party::new(rig, &kernels[0], 0, Mode::NicBased);
    let neighbour = Party::new(rig, &kernels[0], 1, Mode::NicBased);
    let victim = Party::new(rig, &kernels[1], 0, Mode::HostBased);
    let honest = Party::new(rig, &kernels[2], 0, Mode::NicBased);
    let bench = Bench { processes: &[&victim.process, &honest.process, &neighbour.process] };

    // Each round fills the victim's event queue several times before its kernel runs once.
    let mut was_refused = false;
    let mut flood = || {
        flooder.flood(&victim.target(), 4 * EVENTS);
        let KernelBacklog { answers, refused_nodes, .. } = kernels[1].backlog();
        assert!(answers <= MOST_ANSWERS, "{answers} answers wait");
        was_refused |= refused_nodes == 1;
    };
    for _ in 0..ROUNDS {
        flood();
        victim.process.interface.progress().unwrap();
    }
    for _ in 0..10 {
        victim.put_and_wait(&bench, &honest.target(), &mut flood);
        honest.put_and_wait(&bench, &victim.target(), &mut flood);
        victim.put_and_wait(&bench, &neighbour.target(), &mut flood);
    }
    assert!(was_refused, "the flood was never refused");

    bench.wait_until("the end of the flood", || {
        (kernels[1].backlog() == KernelBacklog::default()).then_some(())
    });
    neighbour.put_and_wait(&bench, &victim.target(), || ());
}

/// Two kernels whose processes flood each other take all messages of both.
#[body]
pub fn kernels_that_flood_each_other_both_come_to_an_end(rig: &dyn Rig) {
    let kernels = [kernel(rig, 0), kernel(rig, 1)];
    let parties: Vec<_> = (0..2)
        .flat_map(|number| [(0, number), (1, number)])
        .map(|(node, number)| Party::new(rig, &kernels[node], number, Mode::HostBased))
        .collect();
    let bench = Bench { processes: &parties.iter().map(|party| &party.process).collect::<Vec<_>>() };

    for round in 0..ROUNDS {
        for (index, party) in parties.iter().enumerate() {
            party.flood(&parties[index ^ 1].target(), 4 * EVENTS);
        }
        for kernel in &kernels {
            let answers = kernel.backlog().answers;
            assert!(answers <= MOST_ANSWERS, "round {round}: {answers} answers wait");
        }
    }
    bench.wait_until("the end of both floods", || {
        kernels.iter().all(|kernel| kernel.backlog() == KernelBacklog::default()).then_some(())
    });
}

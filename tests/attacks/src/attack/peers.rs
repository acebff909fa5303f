//! Attacks on peers of a network, with honest ones beside them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nicforge_driver::{Cancel, Deadline};
use nicforge_portals::{
    Ack, Criteria, Descriptor, EventKind, Interface, Kernel, KernelConfig, Mode, Options, Position, Region,
    Target, Threshold, Unlink,
};

use super::networks::open;
use crate::arena::{Arena, Failed, Round};

/// Time within which an operation of an honest peer must end.
const HONEST_LIMIT: Duration = Duration::from_secs(20);
/// Operations of honest peers in a round.
const OPERATIONS: u32 = 16;

/// The portal and the match bits of all messages.
const PORTAL: u8 = 4;
const BITS: u64 = 7;
/// Greatest number of answers that a kernel may keep: those above which it refuses a node, and
/// those to the messages that are in its event queue by then.
const MOST_ANSWERS: usize = 4096;

/// A process of the SeaStar that takes all puts, and puts 8 bytes at a time.
struct Party {
    interface: Interface,
    memory: Region,
}

impl Party {
    fn open(arena: &Arena, kernel: &Arc<Kernel>, mode: Mode) -> Result<Self, Failed> {
        let device = open(arena, &format!("ss{}.p0", kernel.node()))?;
        let interface = Interface::open(kernel, device, mode)?;
        let memory = interface.allocate(4096)?;
        let options = Options::PUT | Options::MANAGE_REMOTE;
        let sink = Descriptor { options, threshold: Threshold::Infinite, ..Descriptor::over(&memory) };
        interface.post(Position::Tail(PORTAL), Criteria::bits(BITS), Unlink::Retain, &sink, None)?;
        Ok(Self { interface, memory })
    }

    fn target(&self) -> Target {
        Target::new(self.interface.id(), PORTAL, BITS)
    }

    /// Puts with acknowledgements until `stop` is set, as fast as the calls return.
    fn flood(&self, target: &Target, stop: &AtomicBool) -> Round {
        let source = self.interface.bind_descriptor(&Descriptor::over(&self.memory))?;
        while !stop.load(Ordering::Relaxed) {
            match self.interface.put_region(&source, 0, 8, Ack::Requested, target, 0) {
                Err(error) if error.is_gone() => return Err(error.into()),
                // The card has no room at present.
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Puts with an acknowledgement, several times, and waits for each.
    fn put_to(&self, target: &Target, who: &str) -> Round {
        let queue = self.interface.allocate_queue(64)?;
        let values = Descriptor { queue: Some(&queue), ..Descriptor::over(&self.memory) };
        let source = self.interface.bind_descriptor(&values)?;
        for _ in 0..OPERATIONS {
            self.interface.put_region(&source, 0, 8, Ack::Requested, target, 0)?;
            loop {
                match queue.wait(Deadline::after(HONEST_LIMIT), None) {
                    Ok(event) if event.kind == EventKind::Ack => break,
                    Ok(_) => {}
                    Err(error) if error.is_gone() => return Err(error.into()),
                    Err(error) => return Err(Failed::Harmed(format!("a put of {who}: {error}"))),
                }
            }
        }
        self.interface.unlink_descriptor(&source)?;
        Ok(())
    }
}

/// Attacks by a process that puts with acknowledgements in a loop, to one in host-based mode.
///
/// A correct kernel has the flood refused. The puts of its process end, and those of others to it.
pub(super) fn acknowledged_puts(arena: &Arena) -> Round {
    let boot = |node| -> Result<_, Failed> {
        Ok(Kernel::boot(open(arena, &format!("admin/ss{node}.kernel"))?, KernelConfig::default())?)
    };
    let (kernels, cancel) = ([boot(0)?, boot(1)?, boot(2)?], Cancel::new()?);
    let flooder = Party::open(arena, &kernels[0], Mode::NicBased)?;
    let victim = Party::open(arena, &kernels[1], Mode::HostBased)?;
    let honest = Party::open(arena, &kernels[2], Mode::NicBased)?;
    let stop = AtomicBool::new(false);

    std::thread::scope(|scope| {
        scope.spawn(|| flooder.flood(&victim.target(), &stop));
        scope.spawn(|| kernels[1].serve(&cancel));
        let ended = arena.repeat(|| {
            victim.put_to(&honest.target(), "the flooded process")?;
            honest.put_to(&victim.target(), "a process of a third node")?;
            match kernels[1].backlog().answers {
                0..=MOST_ANSWERS => Ok(()),
                answers => Err(Failed::Harmed(format!("the kernel keeps {answers} answers"))),
            }
        });
        stop.store(true, Ordering::Relaxed);
        cancel.cancel();
        ended
    })
}

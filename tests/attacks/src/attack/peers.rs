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
use nicforge_spi::{InjectionAttributes, MemoryFifo, Payload, Subgroup, memory_fifo};

use super::networks::open;
use crate::arena::{Arena, Failed, Round};

/// Time within which an operation of an honest peer must end.
const HONEST_LIMIT: Duration = Duration::from_secs(20);
/// Time limit of an attacker's step that the server may hold up.
const STEP_LIMIT: Duration = Duration::from_secs(1);
/// Operations of honest peers in a round.
const OPERATIONS: u32 = 16;

/// The portal and the match bits of all messages.
const PORTAL: u8 = 4;
const BITS: u64 = 7;
/// Greatest number of answers that a kernel may keep: those above which it refuses a node, and those
/// to the messages that are in its event queue by then.
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

/// The FIFOs of a subgroup.
const SEND: u8 = 0;
const RECEIVE: u8 = 0;
/// Bytes of memory of a subgroup: more than half of what a client may map.
const TENANT_BYTES: usize = 96 << 20;
/// Bytes of the reception FIFO that is never read: a few packets.
const UNREAD_BYTES: u64 = 2048;
/// Messages to that FIFO, and the bytes of each: more than the network holds.
const MESSAGES: u32 = 64;
const MESSAGE_BYTES: u64 = 64 << 10;

/// Attacks by a Message Unit's user whose packets a hostile receiver does not take. It ends, and its
/// attachment has another client.
///
/// A correct server lets the next client have as much memory as the one before. The packets remain.
pub(super) fn left_memory(arena: &Arena) -> Round {
    let mut receiver = Subgroup::open(&open(arena, "bgq1.s0")?, Default::default())?;
    receiver.open_reception(RECEIVE, UNREAD_BYTES)?;
    let unread = MemoryFifo { fifo: receiver.reception_id(RECEIVE), ..MemoryFifo::default() };
    let own_fifo =
        |subgroup: &Subgroup| MemoryFifo { fifo: subgroup.reception_id(RECEIVE), ..MemoryFifo::default() };

    arena.repeat(|| {
        let open_tenant = || -> Result<_, Failed> {
            let mut tenant = Subgroup::open(&open(arena, "bgq0.s0")?, Default::default())?;
            let memory = tenant.memory(TENANT_BYTES)?;
            tenant.open_injection(SEND, MESSAGES, InjectionAttributes::default())?;
            tenant.open_reception(RECEIVE, 64 << 10)?;
            Ok((tenant, memory))
        };

        let (mut tenant, memory) = open_tenant()?;
        let payload = Payload::memory(memory.iova(), MESSAGE_BYTES);
        let route = tenant.position().dynamic(receiver.position().own);
        let message = memory_fifo(payload, route, &unread).map_err(nicforge_spi::Error::from)?;
        for _ in 0..MESSAGES {
            tenant.inject(SEND, &message, Deadline::after(STEP_LIMIT), None)?;
        }
        receiver.wait_packet(RECEIVE, Deadline::after(STEP_LIMIT), None)?;
        drop((tenant, memory));

        // The next tenant sends to itself, past the packets that wait in the network.
        let (mut next, memory) = open_tenant()?;
        let route = next.position().dynamic(next.position().own);
        let own = memory_fifo(Payload::memory(memory.iova(), 64), route, &own_fifo(&next))
            .map_err(nicforge_spi::Error::from)?;
        let number = next.inject(SEND, &own, Deadline::after(HONEST_LIMIT), None)?;
        match next.injection().wait_done(SEND, number, Deadline::after(HONEST_LIMIT), None) {
            Ok(()) => Ok(()),
            Err(error) => Err(Failed::Harmed(format!("a message of the next tenant: {error}"))),
        }
    })
}

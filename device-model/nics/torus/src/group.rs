//! The FIFO group of a core: its FIFOs in mapped memory, its port, and its interrupts.

use std::sync::atomic::Ordering;

use nicforge_core::{
    fabric::{Packet, Ports},
    ids::AttachmentId,
    warning::Warning,
};
use nicforge_hwi::{
    torus::{
        CORES, FIFO, INJECTION_FIFOS, PRIORITY_RECEPTION, PacketHeader, RECEPTION_FIFOS, Status, TRAILER,
        mirror, vector, window,
    },
    torus_dcr::watermark,
};
use nicforge_kit::{InterruptEnables, MirrorWord, PendingWarnings};
use nicforge_network::router::Router;
use nicforge_shm::{MemoryError, SharedMemory, SharedU32};
use zerocopy::FromBytes;

use crate::{
    config::Site,
    injection::{Injected, InjectionFifo},
    lives::Sender,
    policy::NodePolicy,
    port::Port,
    reception::ReceptionFifo,
    ring::Ring,
};

/// Number of groups of a node.
pub(crate) const GROUPS: usize = CORES as usize;
/// Injection FIFOs of a node.
pub(crate) const ALL_INJECTION_FIFOS: usize = GROUPS * INJECTION_FIFOS;
/// Reception FIFOs of a node.
pub(crate) const ALL_RECEPTION_FIFOS: usize = GROUPS * RECEPTION_FIFOS;

/// The mapped memory of a group's client. Each client gets new memory.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) injection: Vec<Ring>,
    pub(crate) reception: Vec<Ring>,
    /// Heads of the reception FIFOs, which software writes.
    reception_heads: Vec<SharedU32>,
    /// Tails of the reception FIFOs, which the card writes, as all that follow.
    reception_tails: Vec<MirrorWord<SharedU32>>,
    injection_heads: Vec<MirrorWord<SharedU32>>,
    errors: MirrorWord<SharedU32>,
    life: MirrorWord<SharedU32>,
    mirror: SharedMemory,
}

impl Memory {
    /// Opens the memory of a client: the window, into which it writes, and the mirror, which it
    /// only reads.
    fn new(window: &SharedMemory, mirror: &SharedMemory) -> Result<Self, MemoryError> {
        let mirrored = |offset| Ok::<_, MemoryError>(MirrorWord::new(mirror.u32(offset)?));
        let (injection, reception) = (0..INJECTION_FIFOS as u64, 0..RECEPTION_FIFOS as u64);

        Ok(Self {
            injection: injection
                .clone()
                .map(|fifo| Ring::new(window, window::INJECTION + FIFO * fifo))
                .collect::<Result<_, _>>()?,
            reception: reception
                .clone()
                .map(|fifo| Ring::new(mirror, mirror::RECEPTION + FIFO * fifo))
                .collect::<Result<_, _>>()?,
            reception_heads: reception
                .clone()
                .map(|fifo| window.u32(window::RECEPTION_HEAD + window::HEAD_STRIDE * fifo))
                .collect::<Result<_, _>>()?,
            reception_tails: reception
                .map(|fifo| mirrored(mirror::RECEPTION_TAIL + 4 * fifo))
                .collect::<Result<_, _>>()?,
            injection_heads: injection
                .map(|fifo| mirrored(mirror::INJECTION_HEAD + 4 * fifo))
                .collect::<Result<_, _>>()?,
            errors: mirrored(mirror::ERRORS)?,
            life: mirrored(mirror::LIFE)?,
            mirror: mirror.clone(),
        })
    }

    /// Writes the words of the mirror that do not change.
    fn show_constants(&self, site: &Site, core: u16) {
        let words = [
            (mirror::NODE, site.node),
            (mirror::COORDINATES, Site::pack(site.place)),
            (mirror::LAST, Site::pack(site.last())),
            (mirror::WRAPS, site.wraps()),
            (mirror::GROUP, core.into()),
        ];
        for (offset, value) in words {
            // The mirror has its full size, so this does not fail.
            if let Ok(word) = self.mirror.u32(offset) {
                word.store(value, Ordering::Release);
            }
        }
    }

    /// Writes the head of a reception FIFO where software writes it.
    pub(crate) fn store_head(&self, fifo: usize, head: u32) {
        self.reception_heads[fifo].store(head, Ordering::Release);
    }

    /// Sets all words that change to 0, as in new memory.
    fn clear_words(&mut self) {
        let words = self.reception_tails.iter_mut().chain(&mut self.injection_heads);
        words.chain([&mut self.errors, &mut self.life]).for_each(MirrorWord::clear);
        for head in &self.reception_heads {
            head.store(0, Ordering::Release);
        }
    }
}

/// The FIFO group of a core.
///
/// While no client has the core, packets for it are discarded, and its injection FIFOs have only
/// the packets that former clients left.
#[derive(Debug)]
pub(crate) struct Group {
    core: u16,
    pub(crate) memory: Option<Memory>,
    pub(crate) injection: [InjectionFifo; INJECTION_FIFOS],
    pub(crate) reception: [ReceptionFifo; RECEPTION_FIFOS],
    pub(crate) port: Port,
    pub(crate) interrupts: Interrupts,
    /// Watermarks, as [`nicforge_hwi::torus_dcr::CTRL_WM_G0`] has them.
    pub(crate) watermarks: u32,
    /// Errors since the client came, as the mirror shows them.
    errors: u32,
    /// Errors since power-on.
    all_errors: u64,
    /// Lines of the log for the errors that no access shows.
    pub(crate) warnings: PendingWarnings,
}

/// The interrupts of a core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interrupts {
    enabled: InterruptEnables<{ vector::COUNT }>,
    /// Vectors whose condition held when it was last examined, one bit for each.
    holding: u32,
    /// An error has not been reported by an interrupt.
    is_error_unreported: bool,
}

/// The packets of a reception FIFO of the router that have left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// Packets that are in the memory of the client.
    pub(crate) packets: u32,
    /// Packets that were discarded, because their receiver is gone.
    pub(crate) discarded: u32,
    /// Packets wait, because the memory is full.
    pub(crate) is_full: bool,
}

impl Group {
    /// Returns the group of a core without a client.
    pub(crate) fn new(core: u16) -> Self {
        let first = usize::from(core) * INJECTION_FIFOS;
        Self {
            core,
            memory: None,
            injection: std::array::from_fn(|fifo| InjectionFifo::new(fifo, (first + fifo) as u8)),
            reception: Default::default(),
            port: Port::default(),
            interrupts: Interrupts::default(),
            watermarks: 0,
            errors: 0,
            all_errors: 0,
            warnings: PendingWarnings::default(),
        }
    }

    /// Starts again with empty FIFOs, and without errors and interrupts. Packets that former
    /// clients left stay.
    fn restart(&mut self) {
        self.injection.iter_mut().for_each(InjectionFifo::restart);
        self.reception = Default::default();
        (self.port, self.interrupts) = (Port::default(), Interrupts::default());
        self.errors = 0;
    }

    /// Opens the group for a client with new memory.
    pub(crate) fn open(
        &mut self,
        site: &Site,
        window: &SharedMemory,
        mirror: &SharedMemory,
    ) -> Result<(), MemoryError> {
        self.restart();
        let memory = Memory::new(window, mirror)?;
        memory.show_constants(site, self.core);
        self.memory = Some(memory);
        Ok(())
    }

    /// Starts again for a client that stays and whose memory is zeroed.
    pub(crate) fn reset(&mut self, site: &Site) {
        self.restart();
        if let Some(memory) = &mut self.memory {
            memory.clear_words();
            memory.show_constants(site, self.core);
        }
    }

    /// Closes the group when its client ends. Packets in its injection FIFOs are still sent, unless
    /// its life was not shown. Receivers would then take them for packets of the life that is
    /// shown. Returns the number of dropped packets.
    pub(crate) fn close(&mut self, site: &Site, ports: &mut Ports<'_>) -> u32 {
        let Some(memory) = self.memory.take() else { return 0 };
        let is_shown = site.lives.is_shown(site.node, self.core);
        let fifos = self.injection.iter_mut().zip(&memory.injection);
        let dropped = fifos.map(|(fifo, ring)| {
            if is_shown { fifo.keep_leftovers(ring, site, ports) } else { fifo.drop_packets(ring) }
        });
        let dropped = dropped.sum();
        self.restart();
        dropped
    }

    /// Returns to the state of power-on, for a reset of the function.
    pub(crate) fn power_on(&mut self, site: &Site, ports: &mut Ports<'_>) {
        self.injection.iter_mut().for_each(|fifo| fifo.clear(site, ports));
        self.watermarks = 0;
        self.reset(site);
    }

    /// Counts errors of the client.
    pub(crate) fn count_errors(&mut self, errors: u32) {
        self.errors = self.errors.wrapping_add(errors);
        self.all_errors += u64::from(errors);
        self.interrupts.is_error_unreported |= errors > 0;
    }

    /// Returns the number of errors since power-on.
    pub(crate) fn all_errors(&self) -> u64 {
        self.all_errors
    }

    /// Handles a write of an injection FIFO's tail. Returns false, and counts an error, if the tail
    /// is impossible.
    pub(crate) fn set_tail(&mut self, fifo: usize, tail: u32) -> bool {
        let is_possible = self.injection[fifo].set_tail(tail);
        if !is_possible {
            self.count_errors(1);
        }
        is_possible
    }

    /// Counts errors of the client that are seen in its memory, and logs them with the next
    /// [`Group::publish`].
    #[cold]
    fn report_errors(&mut self, errors: u32, warning: Warning<'static>) {
        self.count_errors(errors);
        self.warnings.push(AttachmentId(self.core), warning.value(errors.into()));
    }

    /// Frees the chunks that software has taken, and notes the interrupts whose condition no longer
    /// holds.
    #[inline]
    pub(crate) fn begin_step(&mut self) {
        self.poll_heads();
        if self.interrupts.enabled.bits() != 0 {
            self.interrupts.holding &= self.conditions();
        }
    }

    /// Returns whether an injection FIFO has something to send.
    #[inline]
    pub(crate) fn is_sending(&self) -> bool {
        self.injection.iter().any(InjectionFifo::is_waiting)
    }

    /// Moves packets of the injection FIFOs to the router, at most about `limit`. The FIFO for high
    /// priority comes first. While the client's life is not shown, only packets that former clients
    /// left are moved.
    #[inline]
    pub(crate) fn inject(
        &mut self,
        site: &Site,
        router: &mut Router<NodePolicy>,
        ports: &mut Ports<'_>,
        limit: u32,
    ) -> Injected {
        let mut all = Injected::default();
        let is_shown = site.lives.is_shown(site.node, self.core);
        let memory = self.memory.as_ref().filter(|_| is_shown);
        for (number, fifo) in self.injection.iter_mut().enumerate().rev() {
            if fifo.is_waiting() {
                let ring = memory.map(|memory| &memory.injection[number]);
                all.add(fifo.inject(ring, site, router, ports, limit.saturating_sub(all.packets)));
            }
        }
        if all.wrong > 0 {
            let rule = &"a packet's header names a node, a FIFO and a length that exist";
            self.report_errors(all.wrong, Warning::dropped(rule));
        }
        all
    }

    /// Frees the chunks that software has taken out of the reception FIFOs.
    #[inline]
    pub(crate) fn poll_heads(&mut self) {
        let Some(memory) = &self.memory else { return };
        let fifos = self.reception.iter_mut().zip(&memory.reception_heads);
        let wrong = fifos.filter_map(|(fifo, head)| {
            let is_right = fifo.set_head(head.load(Ordering::Acquire));
            (!is_right).then_some(())
        });
        let wrong = wrong.count() as u32;
        if wrong > 0 {
            let rule = &"the head of a reception FIFO moves forward, and no further than its tail";
            self.report_errors(wrong, Warning::failed(rule));
        }
    }

    /// Puts the packets of one of the router's reception FIFOs into memory, at most `limit`.
    /// `number` is that of the FIFO in the group.
    #[inline]
    pub(crate) fn deliver(
        &mut self,
        number: usize,
        site: &Site,
        router: &mut Router<NodePolicy>,
        ports: &mut Ports<'_>,
        limit: u32,
    ) -> Delivered {
        let router_fifo = (usize::from(self.core) * RECEPTION_FIFOS + number) as u8;
        let life = site.lives.life(site.node, self.core);
        let mut delivered = Delivered::default();

        while delivered.packets + delivered.discarded < limit {
            let Some(arrived) = router.front(router_fifo, ports.now()).and_then(Arrived::of) else { break };
            let memory = self.memory.as_mut().filter(|_| arrived.is_for(life));
            if let Some(memory) = memory {
                let (fifo, packet) = (&mut self.reception[number], arrived.bytes);
                if !fifo.has_room(packet.len()) {
                    delivered.is_full =
                        !fifo.set_head_and_find_room(&memory.reception_heads[number], packet.len());
                    if delivered.is_full {
                        break;
                    }
                }
                fifo.put(&memory.reception[number], packet);
                delivered.packets += 1;
            } else {
                delivered.discarded += 1;
            }

            // A copy of a deposit packet is not its end.
            if !arrived.is_copy_at(site) {
                site.lives.count_arrival(arrived.sender);
            }
            if let Some(packet) = router.take(router_fifo, ports.now()) {
                ports.recycle(packet);
            }
        }

        if delivered.packets > 0
            && let Some(memory) = &mut self.memory
        {
            memory.reception_tails[number].publish(self.reception[number].tail());
        }
        delivered
    }

    /// Returns the chunks in each FIFO, as last seen.
    pub(crate) fn status(&self) -> Status {
        let mut status = Status::default();
        for (chunks, fifo) in status.reception.iter_mut().zip(&self.reception) {
            *chunks = fifo.count() as u8;
        }
        for (chunks, fifo) in status.injection.iter_mut().zip(&self.injection) {
            *chunks = fifo.count() as u8;
        }
        status
    }

    /// Returns the vectors whose condition holds, one bit for each.
    pub(crate) fn conditions(&self) -> u32 {
        let reception = |(number, fifo): (usize, &ReceptionFifo)| {
            let is_priority = number == PRIORITY_RECEPTION;
            let bit = if is_priority { watermark::PRIORITY_RECEPTION } else { watermark::RECEPTION };
            fifo.count() > watermark::chunks(self.watermarks, bit)
        };
        let injection = |(number, fifo): (usize, &InjectionFifo)| {
            let bit = watermark::INJECTION - watermark::BITS * number as u32;
            fifo.count() < watermark::chunks(self.watermarks, bit)
        };

        u32::from(self.reception.iter().enumerate().any(reception)) << vector::RECEPTION
            | u32::from(self.injection.iter().enumerate().any(injection)) << vector::INJECTION
            | u32::from(self.interrupts.is_error_unreported) << vector::ERROR
    }

    /// Returns the enabled interrupts.
    pub(crate) fn enabled(&self) -> u32 {
        self.interrupts.enabled.bits()
    }

    /// Enables these interrupts, and disables all others. Returns those to raise, whose condition
    /// holds already.
    pub(crate) fn enable(&mut self, vectors: u32) -> u32 {
        self.poll_heads();
        self.interrupts.enabled.set(vectors);
        self.interrupts.holding = 0;
        self.take_due()
    }

    /// Returns the interrupts to raise: those that are enabled and whose condition has begun to
    /// hold.
    #[inline]
    fn take_due(&mut self) -> u32 {
        if self.interrupts.enabled.bits() == 0 {
            return 0;
        }
        let conditions = self.conditions();
        let due = self.interrupts.enabled.among(conditions & !self.interrupts.holding);
        // An error that was reported is over. The next one is a new condition, although no step may
        // have come in between.
        self.interrupts.holding = conditions & !(1 << vector::ERROR);
        if due >> vector::ERROR & 1 == 1 {
            self.interrupts.is_error_unreported = false;
        }
        due
    }

    /// Makes the state visible to the client. Returns the interrupts to raise.
    #[inline]
    pub(crate) fn publish(&mut self, life: u16) -> u32 {
        let Some(memory) = &mut self.memory else { return 0 };
        for (word, fifo) in memory.injection_heads.iter_mut().zip(&self.injection) {
            word.publish(fifo.head());
        }
        memory.errors.publish(self.errors);
        memory.life.publish(life.into());
        self.take_due()
    }
}

/// Counts a packet that a reset drops as arrived, so that no card waits for it.
pub(crate) fn count_dropped(site: &Site, packet: &Packet) {
    if let Some(dropped) = Arrived::of(packet)
        && !dropped.is_copy_at(site)
    {
        site.lives.count_arrival(dropped.sender);
    }
}

/// A packet of a FIFO of the router.
#[derive(Clone, Copy)]
pub(crate) struct Arrived<'a> {
    header: PacketHeader,
    pub(crate) sender: Sender,
    /// The packet as its receiver sees it.
    bytes: &'a [u8],
}

impl<'a> Arrived<'a> {
    /// Returns the parts of a packet.
    #[inline]
    pub(crate) fn of(packet: &'a Packet) -> Option<Self> {
        let (bytes, trailer) = packet.bytes().split_last_chunk::<TRAILER>()?;
        let (header, _) = PacketHeader::read_from_prefix(bytes).ok()?;
        Some(Self { header, sender: Sender::of_trailer(*trailer), bytes })
    }

    /// Returns whether a packet in a FIFO of this node is the copy that a deposit packet leaves
    /// there on its way: it comes from another node, and goes to another.
    #[inline]
    fn is_copy_at(&self, site: &Site) -> bool {
        self.header.destination() != site.place && self.sender.node != site.node
    }

    /// Returns whether the packet is for a core of this life.
    #[inline]
    fn is_for(&self, life: u16) -> bool {
        self.header.life() == 0 || self.header.life() == life
    }
}

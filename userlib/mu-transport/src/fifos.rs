//! The FIFOs of a rank's subgroup, and the memory of its messages.

use nicforge_driver::{
    Device, DmaBuffer,
    runtime::{Cost, charge, note_store},
};
use nicforge_hwi::mu::{BASE_ADDRESSES, DESCRIPTOR, INJECTION_FIFOS, RECEPTION_FIFOS};
use nicforge_matching::Rank;
use nicforge_shm::SharedU64;
use nicforge_spi::{
    Descriptor, DirectPut, InjectionAttributes, MemoryFifo, Options, Payload, PointToPoint, RemoteGet, Store,
    Subgroup, direct_put, memory_fifo, remote_get, store_offset,
};
use zerocopy::IntoBytes;

use crate::{
    Error, RankAddress,
    packet::{DISPATCH, Header},
    row::{ROW_BYTES, ROW_STRIDE, Row},
};

/// Bytes of the longest message: one packet.
pub(crate) const MAX_MESSAGE: usize = 512;
/// Bytes of the longest packet in a reception FIFO.
pub(crate) const MAX_PACKET: u64 = 544;
/// Cells for the answers of one rank: a question's serial number chooses one of them.
pub(crate) const CELLS: u64 = 8;

/// Injection FIFO of messages.
pub(crate) const MESSAGES: u8 = 0;
/// Injection FIFO of rows, questions and gets. Because they share it, a question reaches a rank
/// after the gets that were sent before it.
pub(crate) const CONTROL: u8 = 1;
/// Injection FIFO for the remote gets of others.
pub(crate) const GETS: u8 = 2;
/// Reception FIFO of messages.
pub(crate) const RECEPTION: u8 = 0;
/// Entry of the base address table with the mailbox, to which other ranks put their rows.
const MAILBOX: u8 = 0;
/// Entry of the base address table with address 0. The offsets of answers and of data are
/// addresses.
const WHOLE_MEMORY: u8 = 1;

/// Descriptors of each FIFO that software injects into. It is also the number of message slots.
const IN_FLIGHT: u32 = 256;
/// Alignment of the parts of the memory: a cache line.
const LINE: u64 = 64;

/// The ways of messages to a rank and of data from its unit, and the rank's subgroup.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    /// The way to the rank.
    way: PointToPoint,
    /// The way from the rank to this one.
    back: PointToPoint,
    /// Number of the rank's subgroup in its node.
    subgroup: u16,
}

impl Route {
    /// Returns the route from this rank, whose node is at `position`, to another one and back.
    /// Messages stay in order both ways.
    pub(crate) fn new(position: nicforge_spi::NodePosition, to: RankAddress) -> Self {
        let there = position.coordinates(to.node).unwrap_or(position.own);
        let back = nicforge_spi::NodePosition { own: there, ..position }.ordered(position.own);
        Self { way: position.ordered(there), back, subgroup: to.subgroup }
    }

    /// Returns the number of the rank's reception FIFO of messages in its node.
    fn reception_id(&self) -> u16 {
        self.subgroup * RECEPTION_FIFOS + u16::from(RECEPTION)
    }

    /// Returns the number of the rank's injection FIFO for remote gets in its node.
    fn gets_id(&self) -> u16 {
        self.subgroup * INJECTION_FIFOS + u16::from(GETS)
    }

    /// Returns the number of the rank's base address of the mailbox in its node.
    fn mailbox_id(&self) -> u16 {
        self.subgroup * BASE_ADDRESSES + u16::from(MAILBOX)
    }
}

/// Offsets in the transport's memory, for a job of `ranks` ranks. The parts follow each other in
/// the order of the methods.
#[derive(Clone, Copy)]
struct Layout {
    ranks: u64,
}

impl Layout {
    /// Returns the place in the mailbox of the row that a rank puts.
    fn row(rank: Rank) -> u64 {
        u64::from(rank) * ROW_STRIDE
    }

    /// Returns the place of a counter that is never read. It follows the mailbox at all ranks,
    /// because each put needs a counter.
    fn unused_counter(self) -> u64 {
        self.ranks * ROW_STRIDE
    }

    /// Returns the place of this rank's row for another one.
    fn own_row(self, rank: Rank) -> u64 {
        self.unused_counter() + LINE + Self::row(rank)
    }

    /// Returns the place of the descriptor of a question to a rank.
    fn question(self, rank: Rank) -> u64 {
        self.own_row(rank) + self.ranks * ROW_STRIDE
    }

    /// Returns the place of the cells of a rank's answers.
    fn cells(self, rank: Rank) -> u64 {
        self.question(rank) + self.ranks * DESCRIPTOR
    }

    /// Returns the place of the number of this rank's session.
    fn session(self) -> u64 {
        self.cells(0) + self.ranks * LINE
    }

    /// Returns the place of the message slots.
    fn messages(self) -> u64 {
        self.session() + LINE
    }

    /// Returns the number of bytes of all parts.
    fn bytes(self) -> u64 {
        self.messages() + u64::from(IN_FLIGHT) * MAX_MESSAGE as u64
    }
}

/// The sizes of the FIFOs that a rank has for the packets of others.
pub(crate) struct Sizes {
    /// Bytes of the reception FIFO of messages.
    pub(crate) reception_bytes: u64,
    /// Descriptors of the injection FIFO for remote gets.
    pub(crate) get_descriptors: u32,
}

/// The FIFOs of this rank, and the memory of its messages, rows and answers.
pub(crate) struct Fifos {
    /// Declared before the memory, so that the FIFOs are disabled first.
    pub(crate) subgroup: Subgroup,
    memory: DmaBuffer,
    layout: Layout,
    /// This rank.
    own: Rank,
    /// Number of this rank's session; not 0.
    pub(crate) session: u64,
}

impl Fifos {
    /// Opens the FIFOs of rank `own` in a job of `ranks` ranks. Other ranks can put rows from then
    /// on.
    pub(crate) fn open(
        device: &Device,
        own: Rank,
        ranks: u32,
        session: u64,
        sizes: &Sizes,
    ) -> Result<Self, Error> {
        let mut subgroup = Subgroup::open(device, Options::default())?;
        let layout = Layout { ranks: ranks.into() };
        let memory = subgroup.memory(layout.bytes() as usize)?;
        memory.u64(layout.session())?.store(session, std::sync::atomic::Ordering::Release);

        let of_software = InjectionAttributes::default();
        let of_others = InjectionAttributes { remote_get: true, ..of_software };
        subgroup.open_injection(MESSAGES, IN_FLIGHT, of_software)?;
        subgroup.open_injection(CONTROL, IN_FLIGHT, of_software)?;
        subgroup.open_injection(GETS, sizes.get_descriptors, of_others)?;
        subgroup.open_reception(RECEPTION, sizes.reception_bytes)?;

        subgroup.set_base_address(WHOLE_MEMORY, 0)?;
        subgroup.set_base_address(MAILBOX, memory.iova())?;
        Ok(Self { subgroup, memory, layout, own, session })
    }

    /// Waits until the unit has ended its present step, so that the mirror shows the tails which
    /// that step has moved. The unit takes a trapped access between two steps; this one sets an
    /// entry to the value that it has.
    pub(crate) fn fence(&mut self) -> Result<(), Error> {
        Ok(self.subgroup.set_base_address(WHOLE_MEMORY, 0)?)
    }

    /// Returns the address of this rank's session number.
    pub(crate) fn session_address(&self) -> u64 {
        self.memory.iova() + self.layout.session()
    }

    /// Sends a message of up to [`MAX_MESSAGE`] bytes. Returns false when there is no room now.
    #[inline]
    pub(crate) fn send(&mut self, route: &Route, header: Header, message: &[u8]) -> Result<bool, Error> {
        let injection = self.subgroup.injection();
        if injection.room(MESSAGES)? == 0 {
            return Ok(false);
        }

        // The FIFO has as many descriptors as there are slots, so that with room for one, the
        // message that had this slot before is done.
        let slot = injection.injected(MESSAGES)? % u64::from(IN_FLIGHT);
        let offset = self.layout.messages() + slot * MAX_MESSAGE as u64;
        self.memory.write(offset, message)?;
        charge(Cost::CopyByte, message.len());

        let payload = match message.len() as u64 {
            0 => Payload::NONE,
            length => Payload::memory(self.memory.iova() + offset, length),
        };
        let target = MemoryFifo {
            fifo: route.reception_id(),
            dispatch: DISPATCH,
            software: header.to_software(),
            ..MemoryFifo::default()
        };
        let descriptor = memory_fifo(payload, route.way, &target)?;
        Ok(self.subgroup.try_inject(MESSAGES, &descriptor)?.is_some())
    }

    /// Reads the row that a rank has put. Returns `None` if there is none, or it is just being
    /// written.
    #[inline]
    pub(crate) fn read_row(&self, rank: Rank) -> Result<Option<Row>, Error> {
        let mut bytes = [0; ROW_BYTES];
        self.memory.read(Layout::row(rank), &mut bytes)?;
        Ok(Row::from_bytes(&bytes))
    }

    /// Puts this rank's row to another one. Returns the descriptor's sequence number, or `None`
    /// when there is no room now. The caller must wait until the descriptor of the row before is
    /// done.
    pub(crate) fn put_row(&mut self, to: Rank, route: &Route, row: Row) -> Result<Option<u64>, Error> {
        let offset = self.layout.own_row(to);
        self.memory.write(offset, &row.to_bytes())?;

        let target = DirectPut {
            payload_base: route.mailbox_id(),
            offset: Layout::row(self.own),
            counter_base: route.mailbox_id(),
            counter_offset: store_offset(self.layout.unused_counter(), Store::Add)?,
            paced: false,
        };
        let payload = Payload::memory(self.memory.iova() + offset, ROW_BYTES as u64);
        let put = direct_put(payload, route.way, &target)?;
        Ok(self.subgroup.try_inject(CONTROL, &put)?)
    }

    /// Returns whether the descriptor of [`CONTROL`] with this sequence number is done. `None`
    /// stands for no descriptor, which counts as done.
    pub(crate) fn check_done(&mut self, sequence_number: Option<u64>) -> Result<bool, Error> {
        match sequence_number {
            None => Ok(true),
            Some(number) => Ok(self.subgroup.injection().check_done(CONTROL, number)?),
        }
    }

    /// Returns the cell for the answer to the question with this serial number.
    pub(crate) fn cell(&self, rank: Rank, serial: u64) -> Result<SharedU64, Error> {
        Ok(self.memory.u64(self.layout.cells(rank) + 8 * (serial % CELLS))?)
    }

    /// Asks a rank's unit for the session number at `session_address` in the rank's memory. Returns
    /// the descriptor's sequence number, or `None` when there is no room now. The caller must wait
    /// until the descriptor of the question before is done.
    pub(crate) fn ask(
        &mut self,
        rank: Rank,
        route: &Route,
        session_address: u64,
        serial: u64,
    ) -> Result<Option<u64>, Error> {
        let cell = self.layout.cells(rank) + 8 * (serial % CELLS);
        self.memory.u64(cell)?.store(0, std::sync::atomic::Ordering::Release);
        let answer = self.answer_descriptor(route, session_address, self.memory.iova() + cell)?;

        let offset = self.layout.question(rank);
        self.memory.write(offset, answer.as_bytes())?;
        note_store();
        self.send_remote_get(route, self.memory.iova() + offset, DESCRIPTOR)
    }

    /// Returns the descriptor with which a rank's unit puts the 8 bytes at `session_address` in its
    /// memory to the address `cell` here, in one access.
    pub(crate) fn answer_descriptor(
        &self,
        route: &Route,
        session_address: u64,
        cell: u64,
    ) -> Result<Descriptor, Error> {
        let counter = self.memory.iova() + self.layout.unused_counter();
        let offset = store_offset(cell, Store::Store)?;
        self.put_back(route, Payload::memory(session_address, 8), offset, counter)
    }

    /// Returns the descriptor with which a rank's unit puts data of its memory back to this rank:
    /// to the address `offset`, which may be an atomic one. The unit subtracts the put's bytes from
    /// the counter at `counter`: it adds their negative.
    pub(crate) fn put_back(
        &self,
        route: &Route,
        payload: Payload,
        offset: u64,
        counter: u64,
    ) -> Result<Descriptor, Error> {
        let whole = self.subgroup.base_address_id(WHOLE_MEMORY);
        let counter_offset = store_offset(counter, Store::Add)?;
        let target =
            DirectPut { payload_base: whole, offset, counter_base: whole, counter_offset, paced: false };
        Ok(direct_put(payload, route.back, &target)?)
    }

    /// Sends a remote get: descriptors in this rank's memory, which a rank's unit carries out.
    /// Returns the sequence number, or `None` when there is no room now.
    pub(crate) fn send_remote_get(
        &mut self,
        route: &Route,
        address: u64,
        bytes: u64,
    ) -> Result<Option<u64>, Error> {
        let target = RemoteGet { fifo: route.gets_id() };
        let get = remote_get(Payload::memory(address, bytes), route.way, &target)?;
        Ok(self.subgroup.try_inject(CONTROL, &get)?)
    }

    /// Restarts the FIFO for the gets of others, if one of their descriptors has stopped it.
    /// Returns whether it was stopped.
    pub(crate) fn restart_stopped_gets(&mut self) -> Result<bool, Error> {
        if self.subgroup.injection().fault(GETS)?.is_none() {
            return Ok(false);
        }
        self.subgroup.restart_injection(GETS)?;
        Ok(true)
    }
}

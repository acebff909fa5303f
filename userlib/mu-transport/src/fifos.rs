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
/// Questions to one rank that can be told apart by their answers' cells.
pub(crate) const CELLS: u64 = 8;

/// Injection FIFO of messages.
pub(crate) const MESSAGES: u8 = 0;
/// Injection FIFO of rows, questions and gets. Questions follow gets to the same rank.
pub(crate) const CONTROL: u8 = 1;
/// Injection FIFO for the remote gets of others.
pub(crate) const GETS: u8 = 2;
/// Reception FIFO of messages.
pub(crate) const RECEPTION: u8 = 0;
/// Entry of the base address table: the mailbox.
const MAILBOX: u8 = 0;
/// Entry of the base address table: address 0. Answers and data have addresses as offsets.
const WHOLE: u8 = 1;

/// Descriptors of the FIFOs that software injects into, and messages in flight.
const IN_FLIGHT: u32 = 256;
/// Alignment of areas.
const LINE: u64 = 64;

/// The ways of messages to a rank, and of data from its unit.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    /// The way to the rank.
    way: PointToPoint,
    /// The way from the rank to this one.
    back: PointToPoint,
    subgroup: u16,
}

impl Route {
    /// Returns the route between this rank, at `own`, and another one. Both ways keep the order.
    pub(crate) fn new(place: nicforge_spi::NodePosition, to: RankAddress) -> Self {
        let there = place.coordinates(to.node).unwrap_or(place.own);
        let back = nicforge_spi::NodePosition { own: there, ..place }.ordered(place.own);
        Self { way: place.ordered(there), back, subgroup: to.subgroup }
    }

    fn reception(&self) -> u16 {
        self.subgroup * RECEPTION_FIFOS + u16::from(RECEPTION)
    }

    fn gets(&self) -> u16 {
        self.subgroup * INJECTION_FIFOS + u16::from(GETS)
    }

    fn mailbox(&self) -> u16 {
        self.subgroup * BASE_ADDRESSES + u16::from(MAILBOX)
    }
}

/// Offsets in the memory of messages, for a job of `ranks`.
#[derive(Clone, Copy)]
struct Layout {
    ranks: u64,
}

impl Layout {
    /// The row that a rank puts.
    fn row(rank: Rank) -> u64 {
        u64::from(rank) * ROW_STRIDE
    }

    /// A counter that is never read. It follows the mailbox at all ranks.
    fn sink(self) -> u64 {
        self.ranks * ROW_STRIDE
    }

    /// This rank's row for another one.
    fn own_row(self, rank: Rank) -> u64 {
        self.sink() + LINE + Self::row(rank)
    }

    /// The descriptor of a question to a rank.
    fn question(self, rank: Rank) -> u64 {
        self.own_row(rank) + self.ranks * ROW_STRIDE
    }

    /// The cells of a rank's answers.
    fn cells(self, rank: Rank) -> u64 {
        self.question(rank) + self.ranks * DESCRIPTOR
    }

    /// The number of this rank's session.
    fn identity(self) -> u64 {
        self.cells(0) + self.ranks * LINE
    }

    fn messages(self) -> u64 {
        self.identity() + LINE
    }

    fn bytes(self) -> u64 {
        self.messages() + u64::from(IN_FLIGHT) * MAX_MESSAGE as u64
    }
}

/// The sizes of a rank's FIFOs for others.
pub(crate) struct Sizes {
    pub(crate) reception_bytes: u64,
    pub(crate) gets: u32,
}

/// The FIFOs and the memory.
pub(crate) struct Fifos {
    /// Declared before the memory, so that the FIFOs are disabled first.
    pub(crate) subgroup: Subgroup,
    memory: DmaBuffer,
    layout: Layout,
    own: Rank,
    /// Number of this rank's session; not 0.
    pub(crate) session: u64,
}

impl Fifos {
    /// Opens the FIFOs of rank `own` of `ranks`. Others can put rows from then on.
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
        memory.u64(layout.identity())?.store(session, std::sync::atomic::Ordering::Release);

        let of_software = InjectionAttributes::default();
        let of_others = InjectionAttributes { remote_get: true, ..of_software };
        subgroup.open_injection(MESSAGES, IN_FLIGHT, of_software)?;
        subgroup.open_injection(CONTROL, IN_FLIGHT, of_software)?;
        subgroup.open_injection(GETS, sizes.gets, of_others)?;
        subgroup.open_reception(RECEPTION, sizes.reception_bytes)?;

        subgroup.set_base_address(WHOLE, 0)?;
        subgroup.set_base_address(MAILBOX, memory.iova())?;
        Ok(Self { subgroup, memory, layout, own, session })
    }

    /// Waits until the unit has ended the step that it is in, and shows the tails that it has
    /// moved: the unit takes a trapped access between two steps. The entry keeps its value.
    pub(crate) fn fence(&mut self) -> Result<(), Error> {
        Ok(self.subgroup.set_base_address(WHOLE, 0)?)
    }

    /// Returns the address of the session number.
    pub(crate) fn identity(&self) -> u64 {
        self.memory.iova() + self.layout.identity()
    }

    /// Sends a message of up to [`MAX_MESSAGE`] bytes. Returns false when there is no room now.
    #[inline]
    pub(crate) fn send(&mut self, route: &Route, header: Header, message: &[u8]) -> Result<bool, Error> {
        let injection = self.subgroup.injection();
        if injection.room(MESSAGES)? == 0 {
            return Ok(false);
        }

        // With room for a descriptor, the message that had this slot before is done.
        let slot = injection.injected(MESSAGES)? % u64::from(IN_FLIGHT);
        let offset = self.layout.messages() + slot * MAX_MESSAGE as u64;
        self.memory.write(offset, message)?;
        charge(Cost::CopyByte, message.len());

        let payload = match message.len() as u64 {
            0 => Payload::NONE,
            length => Payload::memory(self.memory.iova() + offset, length),
        };
        let target = MemoryFifo {
            fifo: route.reception(),
            dispatch: DISPATCH,
            software: header.to_software(),
            ..MemoryFifo::default()
        };
        let descriptor = memory_fifo(payload, route.way, &target)?;
        Ok(self.subgroup.try_inject(MESSAGES, &descriptor)?.is_some())
    }

    /// Reads the row that a rank has put.
    #[inline]
    pub(crate) fn read_row(&self, rank: Rank) -> Result<Option<Row>, Error> {
        let mut bytes = [0; ROW_BYTES];
        self.memory.read(Layout::row(rank), &mut bytes)?;
        Ok(Row::from_bytes(&bytes))
    }

    /// Puts this rank's row for another one. Returns the sequence number, or `None` when there is
    /// no room now. The caller must wait for the end of the one before.
    pub(crate) fn put_row(&mut self, to: Rank, route: &Route, row: Row) -> Result<Option<u64>, Error> {
        let offset = self.layout.own_row(to);
        self.memory.write(offset, &row.to_bytes())?;

        let target = DirectPut {
            payload_base: route.mailbox(),
            offset: Layout::row(self.own),
            counter_base: route.mailbox(),
            counter_offset: store_offset(self.layout.sink(), Store::Add)?,
            paced: false,
        };
        let payload = Payload::memory(self.memory.iova() + offset, ROW_BYTES as u64);
        let put = direct_put(payload, route.way, &target)?;
        Ok(self.subgroup.try_inject(CONTROL, &put)?)
    }

    /// Returns whether a descriptor of [`CONTROL`] is done.
    pub(crate) fn check_done(&mut self, number: Option<u64>) -> Result<bool, Error> {
        match number {
            None => Ok(true),
            Some(number) => Ok(self.subgroup.injection().check_done(CONTROL, number)?),
        }
    }

    /// Returns the cell of the answer to a question.
    pub(crate) fn cell(&self, rank: Rank, serial: u64) -> Result<SharedU64, Error> {
        Ok(self.memory.u64(self.layout.cells(rank) + 8 * (serial % CELLS))?)
    }

    /// Asks a rank's unit for its session number at the address `identity`. Returns the sequence
    /// number, or `None` when there is no room now. The caller must wait for the end of the one
    /// before.
    pub(crate) fn ask(
        &mut self,
        rank: Rank,
        route: &Route,
        identity: u64,
        serial: u64,
    ) -> Result<Option<u64>, Error> {
        let cell = self.layout.cells(rank) + 8 * (serial % CELLS);
        self.memory.u64(cell)?.store(0, std::sync::atomic::Ordering::Release);
        let answer = self.answer(route, identity, self.memory.iova() + cell)?;

        let offset = self.layout.question(rank);
        self.memory.write(offset, answer.as_bytes())?;
        note_store();
        self.fetch(route, self.memory.iova() + offset, DESCRIPTOR)
    }

    /// Returns the descriptor with which a rank's unit puts 8 bytes of its memory to `cell`, in one
    /// access.
    pub(crate) fn answer(&self, route: &Route, identity: u64, cell: u64) -> Result<Descriptor, Error> {
        let sink = self.memory.iova() + self.layout.sink();
        let offset = store_offset(cell, Store::Store)?;
        self.put_here(route, Payload::memory(identity, 8), offset, sink)
    }

    /// Returns the descriptor with which a rank's unit puts data of its memory to an offset here,
    /// and decrements the counter at `counter`.
    pub(crate) fn put_here(
        &self,
        route: &Route,
        payload: Payload,
        offset: u64,
        counter: u64,
    ) -> Result<Descriptor, Error> {
        let whole = self.subgroup.base_address_id(WHOLE);
        let counter_offset = store_offset(counter, Store::Add)?;
        let target =
            DirectPut { payload_base: whole, offset, counter_base: whole, counter_offset, paced: false };
        Ok(direct_put(payload, route.back, &target)?)
    }

    /// Sends descriptors of this rank's memory to a rank's unit, which carries them out.
    pub(crate) fn fetch(&mut self, route: &Route, address: u64, bytes: u64) -> Result<Option<u64>, Error> {
        let target = RemoteGet { fifo: route.gets() };
        let get = remote_get(Payload::memory(address, bytes), route.way, &target)?;
        Ok(self.subgroup.try_inject(CONTROL, &get)?)
    }

    /// Restarts the FIFO for the gets of others, if a descriptor of theirs has stopped it. Returns
    /// whether it has.
    pub(crate) fn mend_gets(&mut self) -> Result<bool, Error> {
        if self.subgroup.injection().fault(GETS)?.is_none() {
            return Ok(false);
        }
        self.subgroup.restart_injection(GETS)?;
        Ok(true)
    }
}

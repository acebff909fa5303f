//! The hardware of a node, as a test of the firmware needs it: streams, engines and client memory
//! without time or packets.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nicforge_hwi::seastar::{CommandResult, KERNEL, Piece};
use nicforge_seastar_firmware::chip::{
    Channel, Chip, Client, Event, Halted, Incarnation, MAX_CALLS, MAX_HOST_WRITE, MAX_TRANSMISSIONS, Pieces,
    Stream, TransferStatus, Transmit,
};

/// Bytes of memory of each client. Its addresses begin at 0.
pub(crate) const MEMORY: usize = 1 << 16;

/// An input that waits for the firmware.
#[derive(Debug)]
pub(crate) enum Input {
    Event(Event),
    Incarnation { node: u32, incarnation: u32 },
}

/// A stream of the receiver.
#[derive(Debug)]
pub(crate) struct Receiving {
    pub(crate) source: u32,
    pub(crate) source_incarnation: u32,
    /// Where the data go, when the firmware has said it.
    pub(crate) destination: Option<(u32, Pieces)>,
    /// The data, when they have arrived.
    pub(crate) data: Option<(Vec<u8>, TransferStatus)>,
}

/// The hardware of a node.
#[derive(Debug)]
pub(crate) struct FakeChip {
    pub(crate) node: u32,
    pub(crate) now: u64,
    pub(crate) inputs: VecDeque<Input>,
    /// The incarnations of all nodes as the firmware sees them.
    pub(crate) seen: Vec<u32>,
    /// Number of the node's incarnations, and whether it has one now.
    pub(crate) incarnations: u32,
    pub(crate) booted: bool,
    /// The last change of `booted` has not been announced.
    pub(crate) changed: bool,
    pub(crate) memory: BTreeMap<u16, Vec<u8>>,
    /// Ends of the memory that may be written or read, by client.
    pub(crate) mapped: BTreeMap<u16, u64>,
    /// Clients that have detached, which the firmware has not seen yet.
    pub(crate) gone: BTreeSet<u16>,
    pub(crate) results: BTreeMap<(u16, u32), CommandResult>,
    pub(crate) data: VecDeque<(Transmit, u32)>,
    /// The message that the engine sends: its header has gone.
    pub(crate) sending: Option<(Transmit, u32, Vec<u8>, TransferStatus)>,
    pub(crate) control: VecDeque<(Transmit, u32)>,
    pub(crate) streams: Vec<Option<Receiving>>,
    pub(crate) interrupts: u32,
    pub(crate) timer: Option<u64>,
    pub(crate) calls: usize,
    pub(crate) cycles: u64,
}

impl FakeChip {
    pub(crate) fn new(node: u32, nodes: u32, streams: usize) -> Self {
        Self {
            node,
            now: 0,
            inputs: VecDeque::new(),
            seen: vec![0; nodes as usize],
            incarnations: 0,
            booted: false,
            changed: false,
            memory: BTreeMap::new(),
            mapped: BTreeMap::new(),
            gone: BTreeSet::new(),
            results: BTreeMap::new(),
            data: VecDeque::new(),
            sending: None,
            control: VecDeque::new(),
            streams: (0..streams).map(|_| None).collect(),
            interrupts: 0,
            timer: None,
            calls: 0,
            cycles: 0,
        }
    }

    pub(crate) fn push(&mut self, event: Event) {
        self.inputs.push_back(Input::Event(event));
    }

    pub(crate) fn incarnation_number(&self) -> u32 {
        if self.booted { self.incarnations } else { 0 }
    }

    /// Returns the time for which the firmware has set the timer.
    pub(crate) fn timer(&self) -> Option<u64> {
        self.timer
    }

    /// Returns the number of streams in use.
    pub(crate) fn streams_in_use(&self) -> usize {
        self.streams.iter().flatten().count()
    }

    fn call(&mut self) {
        self.calls += 1;
        assert!(self.calls <= MAX_CALLS, "too many calls in a poll");
    }

    /// Checks that a process may be read or written there.
    fn check(&self, client: u16, address: u64, length: u64) {
        let Some(end) = self.mapped.get(&client) else { return };
        assert!(
            address.checked_add(length).is_some_and(|sum| sum <= *end),
            "client {client} at {address:#x} with {length} bytes is outside its map"
        );
    }

    pub(crate) fn memory(&mut self, client: u16) -> &mut Vec<u8> {
        self.memory.entry(client).or_insert_with(|| vec![0; MEMORY])
    }

    /// Returns the pieces of memory, or `None` if their list can't be read.
    fn pieces(pieces: &Pieces) -> Option<Vec<Piece>> {
        match pieces {
            Pieces::None => Some(Vec::new()),
            Pieces::One(piece) => Some(vec![*piece]),
            Pieces::Few { count, pieces } => Some(pieces[..usize::from(*count)].to_vec()),
            Pieces::List { .. } => None,
        }
    }

    /// Returns the bytes of client memory, or `None` if it does not exist.
    fn bytes(&mut self, piece: &Piece, length: usize) -> Option<&mut [u8]> {
        if self.gone.contains(&piece.attachment) {
            return None;
        }
        self.check(piece.attachment, piece.address, length as u64);
        let start = usize::try_from(piece.address).ok()?;
        let end = start.checked_add(length)?;
        self.memory(piece.attachment).get_mut(start..end)
    }

    /// Reads a message. Bytes that can't be read are zero.
    pub(crate) fn gather(&mut self, pieces: &Pieces, length: usize) -> (Vec<u8>, TransferStatus) {
        let mut data = Vec::new();
        for piece in Self::pieces(pieces).unwrap_or_default() {
            let part = (piece.length as usize).min(length - data.len());
            let Some(bytes) = self.bytes(&piece, part) else { break };
            data.extend_from_slice(bytes);
        }

        let end = if data.len() == length { TransferStatus::Complete } else { TransferStatus::MemoryFault };
        data.resize(length, 0);
        (data, end)
    }

    /// Writes a message. Returns whether all of it could be written.
    fn scatter(&mut self, pieces: &Pieces, data: &[u8]) -> bool {
        let mut rest = data;
        for piece in Self::pieces(pieces).unwrap_or_default() {
            let (part, others) = rest.split_at(rest.len().min(piece.length as usize));
            let Some(bytes) = self.bytes(&piece, part.len()) else { return false };
            bytes.copy_from_slice(part);
            rest = others;
        }
        rest.is_empty()
    }

    /// Ends a stream whose data have arrived and have a destination.
    pub(crate) fn finish(&mut self, stream: usize) {
        let Some(entry) = &self.streams[stream] else { return };
        let (Some((length, pieces)), Some((data, end))) = (entry.destination, entry.data.clone()) else {
            return;
        };

        let kept = (length as usize).min(data.len());
        let is_stored = end != TransferStatus::Complete || self.scatter(&pieces, &data[..kept]);
        let end = if is_stored { end } else { TransferStatus::MemoryFault };
        self.streams[stream] = None;
        self.push(Event::Received { stream: Stream(stream as u16), status: end });
    }

    /// Takes the next event of the firmware.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        while let Some(input) = self.inputs.pop_front() {
            match input {
                Input::Event(event) => {
                    if let Event::Detached { client, .. } = event {
                        self.gone.remove(&client.0);
                        self.memory.remove(&client.0);
                    }
                    return Some(event);
                }
                Input::Incarnation { node, incarnation } => {
                    let former = core::mem::replace(&mut self.seen[node as usize], incarnation);
                    if former != 0 && former != incarnation {
                        return Some(Event::NodeDown { node });
                    }
                }
            }
        }
        None
    }

    /// Ends a stream whose message is over.
    pub(crate) fn cut(&mut self, stream: usize) {
        if let Some(entry) = &mut self.streams[stream] {
            entry.data = Some((Vec::new(), TransferStatus::Cut));
        }
        self.finish(stream);
    }
}

impl Chip for FakeChip {
    fn charge(&mut self, cycles: u32) {
        self.now += u64::from(cycles) * 2;
        self.cycles += u64::from(cycles);
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn node(&self) -> u32 {
        self.node
    }

    fn nodes(&self) -> u32 {
        self.seen.len() as u32
    }

    fn incarnation(&self, node: u32) -> Option<Incarnation> {
        let incarnation =
            if node == self.node { self.incarnation_number() } else { *self.seen.get(node as usize)? };
        (incarnation != 0).then_some(Incarnation(incarnation))
    }

    fn answer(&mut self, client: Client, number: u32, result: CommandResult) -> Result<(), Halted> {
        self.call();
        assert!(self.results.insert((client.0, number), result).is_none());
        Ok(())
    }

    fn transmit(&mut self, message: &Transmit) -> Result<(), Halted> {
        self.call();
        let incarnation = self.incarnation_number();
        match message.channel {
            Channel::Control => self.control.push_back((*message, incarnation)),
            Channel::Data => {
                self.data.push_back((*message, incarnation));
                let count = self.data.len() + usize::from(self.sending.is_some());
                assert!(count <= usize::from(MAX_TRANSMISSIONS));
            }
        }
        Ok(())
    }

    fn receive(&mut self, stream: Stream, length: u32, pieces: Pieces) -> Result<(), Halted> {
        self.call();
        let entry = self.streams[usize::from(stream.0)].as_mut().expect("the stream is in use");
        assert!(entry.destination.replace((length, pieces)).is_none(), "a stream has one destination");
        self.finish(usize::from(stream.0));
        Ok(())
    }

    fn write_host(&mut self, client: Client, address: u64, bytes: &[u8]) -> Result<(), Halted> {
        self.call();
        assert!((1..=MAX_HOST_WRITE).contains(&bytes.len()));
        let piece = Piece { address, attachment: client.0, ..Piece::default() };
        if let Some(target) = self.bytes(&piece, bytes.len()) {
            target.copy_from_slice(bytes);
        }
        Ok(())
    }

    fn interrupt(&mut self, client: Client, _: u16) -> Result<(), Halted> {
        self.call();
        assert_eq!(client.0, KERNEL);
        self.interrupts += 1;
        Ok(())
    }

    fn set_booted(&mut self, booted: bool) -> Result<(), Halted> {
        self.call();
        assert_ne!(self.booted, booted);
        self.booted = booted;
        self.incarnations += u32::from(booted);
        self.changed = true;
        Ok(())
    }

    fn set_timer(&mut self, time: u64) -> Result<(), Halted> {
        self.call();
        self.timer = Some(time);
        Ok(())
    }
}

//! Events that own their data.

use std::fmt::{self, Write as _};

use nicforge_core::{
    dma::{DmaError, WordUpdate},
    fabric::{Direction, LinkId},
    ids::{Address, AttachmentId, FunctionId},
    interrupt::Raised,
    time::Nanos,
    trace::Event,
};
use serde::{Deserialize, Serialize};

/// Number of bytes of each event's data that a record keeps.
pub const KEPT: usize = 64;
/// Upper bound of the memory that a record takes.
const RECORD_BYTES: usize = 200;
/// Number of named values of a device's own event that a record keeps.
const VALUES: usize = 6;

/// The start of an event's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// Length of the whole data in bytes.
    length: u32,
    /// Number of bytes in `start`.
    kept: u8,
    start: [u8; KEPT],
}

impl Bytes {
    /// Returns the first of `data`, as the start of `length` bytes.
    fn new(data: &[u8], length: usize) -> Self {
        let kept = data.len().min(KEPT);
        let mut start = [0; KEPT];
        start[..kept].copy_from_slice(&data[..kept]);
        Self { length: u32::try_from(length).unwrap_or(u32::MAX), kept: kept as u8, start }
    }

    /// Returns the bytes that were kept.
    pub fn start(&self) -> &[u8] {
        &self.start[..usize::from(self.kept)]
    }

    /// Returns the length of the whole data in bytes.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Returns the value of data of 1 to 8 bytes, as a register has.
    pub fn value(&self) -> Option<u64> {
        let start = self.start();
        if start.is_empty() || start.len() > 8 || start.len() != self.length as usize {
            return None;
        }
        let mut value = [0; 8];
        value[..start.len()].copy_from_slice(start);
        Some(u64::from_le_bytes(value))
    }
}

/// A text of at most [`Text::MAX`] bytes, whose rest is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    length: u8,
    bytes: [u8; Self::MAX],
}

impl Text {
    /// The longest text in bytes.
    pub const MAX: usize = 96;

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl Default for Text {
    fn default() -> Self {
        Self { length: 0, bytes: [0; Self::MAX] }
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let start = usize::from(self.length);
        let room = Self::MAX - start;
        let ends = text.char_indices().map(|(at, character)| at + character.len_utf8());
        let end = ends.take_while(|&end| end <= room).last().unwrap_or(0);
        self.bytes[start..start + end].copy_from_slice(&text.as_bytes()[..end]);
        self.length += end as u8;
        if end < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// The kind of an event, by which a filter selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A client came or left.
    Client,
    /// A reset.
    Reset,
    /// A trapped read.
    Read,
    /// A trapped write.
    Write,
    /// A record of a posted-write ring.
    Posted,
    /// A write that the device refused for now, or carried out after that.
    Stall,
    /// An MSI-X vector or the INTx line.
    Interrupt,
    /// An access of the device to client memory.
    Dma,
    /// A packet on a link.
    Packet,
    /// An error bit, a dropped packet, or a refused access.
    Warning,
    /// An event of the device's own.
    Device,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::Client,
        Self::Reset,
        Self::Read,
        Self::Write,
        Self::Posted,
        Self::Stall,
        Self::Interrupt,
        Self::Dma,
        Self::Packet,
        Self::Warning,
        Self::Device,
    ];

    /// Returns the name in filters and in text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Reset => "reset",
            Self::Read => "read",
            Self::Write => "write",
            Self::Posted => "posted",
            Self::Stall => "stall",
            Self::Interrupt => "interrupt",
            Self::Dma => "dma",
            Self::Packet => "packet",
            Self::Warning => "warning",
            Self::Device => "device",
        }
    }

    /// Returns the bit of the kind in a mask of kinds.
    pub(crate) const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// An event that owns its data. The fields are those of [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the event among those that the filter has let pass.
    pub sequence: u64,
    /// Time of the event.
    pub time: Nanos,
    /// The function. Of a packet it is the sender.
    pub function: FunctionId,
    /// The attachment, unless the event concerns the whole function.
    pub attachment: Option<AttachmentId>,
    /// The event itself.
    pub what: What,
}

/// An [`Event`] that owns the start of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of `Event`, which documents them")]
pub enum What {
    Attached,
    Detached,
    Reset,
    Read {
        at: Address,
        data: Bytes,
    },
    Write {
        at: Address,
        data: Bytes,
    },
    Posted {
        at: Address,
        data: Bytes,
    },
    Stalled {
        at: Address,
    },
    Resumed {
        at: Address,
    },
    Interrupt {
        vector: u16,
        raised: Raised,
    },
    Intx {
        asserted: bool,
    },
    DmaRead {
        iova: u64,
        length: usize,
        outcome: Result<Bytes, DmaError>,
    },
    DmaWrite {
        iova: u64,
        data: Bytes,
        outcome: Result<(), DmaError>,
    },
    DmaUpdate {
        iova: u64,
        update: WordUpdate,
        outcome: Result<u64, DmaError>,
    },
    Packet {
        link: LinkId,
        direction: Direction,
        channel: u8,
        packet: u64,
        header: u64,
        arrives: Nanos,
        repeats: u64,
        data: Bytes,
    },
    Warning {
        effect: &'static str,
        rule: Text,
        register: Option<Address>,
        value: Option<u64>,
    },
    Device {
        name: &'static str,
        values: [(&'static str, u64); VALUES],
        count: u8,
    },
}

// A recorder keeps many of them.
const _: () = assert!(size_of::<Record>() <= RECORD_BYTES);

impl What {
    /// Returns the kind of the event.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Attached | Self::Detached => Kind::Client,
            Self::Reset => Kind::Reset,
            Self::Read { .. } => Kind::Read,
            Self::Write { .. } => Kind::Write,
            Self::Posted { .. } => Kind::Posted,
            Self::Stalled { .. } | Self::Resumed { .. } => Kind::Stall,
            Self::Interrupt { .. } | Self::Intx { .. } => Kind::Interrupt,
            Self::DmaRead { .. } | Self::DmaWrite { .. } | Self::DmaUpdate { .. } => Kind::Dma,
            Self::Packet { .. } => Kind::Packet,
            Self::Warning { .. } => Kind::Warning,
            Self::Device { .. } => Kind::Device,
        }
    }

    /// Returns a copy of an event.
    pub(crate) fn of(event: &Event<'_>) -> Self {
        let all = |data: &[u8]| Bytes::new(data, data.len());
        match *event {
            Event::Attached => Self::Attached,
            Event::Detached => Self::Detached,
            Event::Reset => Self::Reset,
            Event::Read { at, data } => Self::Read { at, data: all(data) },
            Event::Write { at, data } => Self::Write { at, data: all(data) },
            Event::Posted { at, data } => Self::Posted { at, data: all(data) },
            Event::Stalled { at } => Self::Stalled { at },
            Event::Resumed { at } => Self::Resumed { at },
            Event::Interrupt { vector, raised } => Self::Interrupt { vector, raised },
            Event::Intx { asserted } => Self::Intx { asserted },

            Event::DmaRead { iova, length, outcome } => {
                Self::DmaRead { iova, length, outcome: outcome.map(|data| Bytes::new(data, length)) }
            }
            Event::DmaWrite { iova, data, outcome } => Self::DmaWrite { iova, data: all(data), outcome },
            Event::DmaUpdate { iova, update, outcome } => Self::DmaUpdate { iova, update, outcome },

            Event::Packet(crossing) => Self::Packet {
                link: crossing.link,
                direction: crossing.direction,
                channel: crossing.channel,
                packet: crossing.packet,
                header: crossing.header,
                arrives: crossing.arrives,
                repeats: crossing.repeats,
                data: Bytes::new(crossing.data, crossing.length),
            },
            Event::Warning(warning) => {
                let mut rule = Text::default();
                // A rule that is too long is cut off.
                let _ = write!(rule, "{}", warning.rule());
                let (effect, register) = (warning.effect(), warning.address());
                Self::Warning { effect, rule, register, value: warning.given_value() }
            }
            Event::Device { name, values } => {
                let count = values.len().min(VALUES);
                let mut kept = [("", 0); VALUES];
                kept[..count].copy_from_slice(&values[..count]);
                Self::Device { name, values: kept, count: count as u8 }
            }
            _ => Self::Device { name: "unknown", values: [("", 0); VALUES], count: 0 },
        }
    }
}

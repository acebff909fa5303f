//! Messages, and who sends them.

use std::fmt;

use nicforge_hwi::extoll_velo::{self, header};

/// Bytes of a message at most. All lengths are multiples of 8, and not 0.
pub const MAX_MESSAGE: usize = extoll_velo::MAX_MESSAGE;

/// A process: a VPID of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The card's node id.
    pub node: u32,
    /// The process's VPID there.
    pub vpid: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VPID {} of node {}", self.vpid, self.node)
    }
}

/// A message that was received.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Who sent it: as the sender's card says, not the sender.
    pub from: Address,
    /// Its tag.
    pub tag: u8,
    length: u8,
    /// What is behind its end is of no message.
    pub(crate) data: [u8; MAX_MESSAGE],
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        (self.from, self.tag, self.bytes()) == (other.from, other.tag, other.bytes())
    }
}

impl Eq for Message {}

impl Message {
    /// Room for a message, for [`crate::Port::poll_into`]: no message yet.
    pub const ROOM: Self =
        Self { from: Address { node: 0, vpid: 0 }, tag: 0, length: 0, data: [0; MAX_MESSAGE] };

    /// Becomes the message that a slot's header is of, but for its data, for which it gives the room. `None` of an empty slot.
    #[inline]
    pub(crate) fn head(&mut self, word: u64) -> Option<&mut [[u8; 8]]> {
        let (node, vpid, tag, quadwords) = header::decode(word)?;
        (self.from, self.tag) = (Address { node, vpid }, tag);
        // Only the card writes headers, and 1 to 8 quadwords; memory is memory.
        let quadwords = quadwords.min(MAX_MESSAGE / 8);
        self.length = quadwords as u8 * 8;
        self.data.as_chunks_mut().0.get_mut(..quadwords)
    }

    /// With room for the data, from a slot's header; `None` of an empty slot.
    #[inline]
    pub(crate) fn of_header(word: u64) -> Option<Self> {
        let (node, vpid, tag, quadwords) = header::decode(word)?;
        // Only the card writes headers, and 1 to 8 quadwords; memory is memory.
        let length = (quadwords * 8).min(MAX_MESSAGE) as u8;
        Some(Self { from: Address { node, vpid }, tag, length, data: [0; MAX_MESSAGE] })
    }

    /// What was sent.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.data[..usize::from(self.length)]
    }

    /// Quadword `index` of it, little-endian; 0 behind its end.
    #[inline]
    pub fn quadword(&self, index: usize) -> u64 {
        self.bytes().as_chunks::<8>().0.get(index).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Bytes of it: 8 to 64.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a message is never empty")]
    pub fn len(&self) -> usize {
        usize::from(self.length)
    }
}

/// Which messages a call is for. The default is all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Filter {
    /// Only those with this tag.
    pub tag: Option<u8>,
    /// Only those of this sender.
    pub from: Option<Address>,
}

impl Filter {
    /// All messages.
    pub const ANY: Self = Self { tag: None, from: None };

    /// Messages with a tag.
    pub const fn tag(tag: u8) -> Self {
        Self { tag: Some(tag), from: None }
    }

    /// Messages of a sender.
    pub const fn from(address: Address) -> Self {
        Self { tag: None, from: Some(address) }
    }

    /// Whether it lets a message through.
    #[inline]
    pub fn admits(&self, message: &Message) -> bool {
        self.tag.is_none_or(|tag| tag == message.tag) && self.from.is_none_or(|from| from == message.from)
    }
}

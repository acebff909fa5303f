//! Messages, and the addresses of their senders.

use std::fmt;

use nicforge_hwi::extoll_velo::{self, MessageFields, header};

/// Length of the longest message in bytes. All lengths are nonzero multiples of 8.
pub const MAX_MESSAGE: usize = extoll_velo::MAX_MESSAGE;

/// Length of the shortest message in bytes.
pub(crate) const QUADWORD: usize = 8;

/// Address of a process: a VPID of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The card's node id.
    pub node: u32,
    /// The VPID on that node.
    pub vpid: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VPID {} of node {}", self.vpid, self.node)
    }
}

/// A received message.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The sender, as the sender's card has recorded it. The sender itself can't forge it.
    pub from: Address,
    /// The tag.
    pub tag: u8,
    /// Length in bytes.
    length: u8,
    /// The data, and after the first `length` bytes the remains of earlier messages.
    pub(crate) data: [u8; MAX_MESSAGE],
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        (self.from, self.tag, self.bytes()) == (other.from, other.tag, other.bytes())
    }
}

impl Eq for Message {}

impl Message {
    /// An empty message, as the buffer for [`crate::Port::poll_into`].
    pub const ROOM: Self =
        Self { from: Address { node: 0, vpid: 0 }, tag: 0, length: 0, data: [0; MAX_MESSAGE] };

    /// Sets the sender, tag and length to those in a slot's header, and returns the part of the
    /// buffer for the data. Returns `None` for an empty slot, and changes nothing then.
    #[inline]
    pub(crate) fn set_header(&mut self, word: u64) -> Option<&mut [[u8; QUADWORD]]> {
        let MessageFields { node, vpid, tag, quadwords } = header::decode(word)?;
        (self.from, self.tag) = (Address { node, vpid }, tag);

        // Only the card writes headers, and only with 1 to 8 quadwords. The ring is still memory
        // that other software can write.
        let quadwords = quadwords.min(MAX_MESSAGE / QUADWORD);
        self.length = (quadwords * QUADWORD) as u8;
        self.data.as_chunks_mut().0.get_mut(..quadwords)
    }

    /// Returns a message with a slot's header and zeroed data; `None` for an empty slot.
    #[inline]
    pub(crate) fn of_header(word: u64) -> Option<Self> {
        let MessageFields { node, vpid, tag, quadwords } = header::decode(word)?;
        // As above: the length is bounded whatever the ring contains.
        let length = (quadwords * QUADWORD).min(MAX_MESSAGE) as u8;
        Some(Self { from: Address { node, vpid }, tag, length, data: [0; MAX_MESSAGE] })
    }

    /// Returns a message of one quadword.
    #[inline(always)]
    pub(crate) fn of_quadword(from: Address, tag: u8, quadword: u64) -> Self {
        let mut data = [0; MAX_MESSAGE];
        data[..QUADWORD].copy_from_slice(&quadword.to_ne_bytes());
        Self { from, tag, length: QUADWORD as u8, data }
    }

    /// Returns the data.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.data[..usize::from(self.length)]
    }

    /// Returns quadword `index` of the data, little-endian; 0 after its end.
    #[inline]
    pub fn quadword(&self, index: usize) -> u64 {
        self.bytes().as_chunks::<QUADWORD>().0.get(index).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Returns the length in bytes: 8 to 64.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a message is never empty")]
    pub fn len(&self) -> usize {
        usize::from(self.length)
    }
}

/// Selects messages for a call. The default selects all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Filter {
    /// Only messages with this tag.
    pub tag: Option<u8>,
    /// Only messages of this sender.
    pub from: Option<Address>,
}

impl Filter {
    /// Selects all messages.
    pub const ANY: Self = Self { tag: None, from: None };

    /// Selects messages with a tag.
    pub const fn tag(tag: u8) -> Self {
        Self { tag: Some(tag), from: None }
    }

    /// Selects messages of a sender.
    pub const fn from(address: Address) -> Self {
        Self { tag: None, from: Some(address) }
    }

    /// Returns whether the filter selects a message.
    #[inline]
    pub fn admits(&self, message: &Message) -> bool {
        self.tag.is_none_or(|tag| tag == message.tag) && self.from.is_none_or(|from| from == message.from)
    }
}

//! Envelopes of messages, and selectors of receives.

/// Number of a process of the transport, from 0.
pub type Rank = u32;

/// The part of a message that matching compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// The other rank: the destination of a send, the source of a received message.
    pub peer: Rank,
    /// The matching context: MPI's communicator. No wildcard exists for it.
    pub context: u32,
    /// The tag: MPI's tag, or all match bits of libfabric.
    pub tag: u64,
}

impl Envelope {
    /// Creates an envelope.
    pub const fn new(peer: Rank, context: u32, tag: u64) -> Self {
        Self { peer, context, tag }
    }
}

/// Selects the messages that a receive or a probe takes.
///
/// Receives with the same kind of wildcard form a class: whether they name a source, and which tag
/// bits they ignore. Up to eight classes at a time have tables; MPI needs four. With more classes,
/// receives and searches of the others walk a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Selector {
    /// The source; `None` for any source (`MPI_ANY_SOURCE`).
    pub source: Option<Rank>,
    /// The matching context.
    pub context: u32,
    /// The tag.
    pub tag: u64,
    /// Bits of the tag that are not compared, as in libfabric. All bits are set for `MPI_ANY_TAG`.
    pub ignore: u64,
}

impl Selector {
    /// Selects a source and a tag.
    pub const fn exact(source: Rank, context: u32, tag: u64) -> Self {
        Self { source: Some(source), context, tag, ignore: 0 }
    }

    /// Selects a tag from any source.
    pub const fn any_source(context: u32, tag: u64) -> Self {
        Self { source: None, context, tag, ignore: 0 }
    }

    /// Selects any tag from a source.
    pub const fn any_tag(source: Rank, context: u32) -> Self {
        Self { source: Some(source), context, tag: 0, ignore: u64::MAX }
    }

    /// Selects any message of a context.
    pub const fn any(context: u32) -> Self {
        Self { source: None, context, tag: 0, ignore: u64::MAX }
    }

    /// Returns the selector with the tag bits in `ignore` not compared.
    #[must_use]
    pub const fn ignoring(self, ignore: u64) -> Self {
        Self { ignore, ..self }
    }

    /// Returns whether the selector takes a message with `envelope`.
    #[inline]
    pub fn matches(&self, envelope: &Envelope) -> bool {
        self.context == envelope.context
            && (self.tag ^ envelope.tag) & !self.ignore == 0
            && self.source.is_none_or(|source| source == envelope.peer)
    }
}

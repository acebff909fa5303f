//! Which message a receive takes.

/// A process of the transport, numbered from 0.
pub type Rank = u32;

/// What a message carries beside its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// The other side: the destination of a send, the source of a received message.
    pub peer: Rank,
    /// The matching context: MPI's communicator. There is no wildcard for it.
    pub context: u32,
    /// The tag: MPI's, or all match bits of libfabric.
    pub tag: u64,
}

impl Envelope {
    /// An envelope.
    pub const fn new(peer: Rank, context: u32, tag: u64) -> Self {
        Self { peer, context, tag }
    }
}

/// Which messages a receive or a probe takes.
///
/// Receives with the same kind of wildcard, which is whether they name a source and which bits they ignore, form a class. Up to
/// eight classes at a time have tables; MPI needs four. With more, the receives and searches of the others walk a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Selector {
    /// The source; `None` takes any (`MPI_ANY_SOURCE`).
    pub source: Option<Rank>,
    /// The matching context.
    pub context: u32,
    /// The tag.
    pub tag: u64,
    /// Bits of the tag that are not compared, as in libfabric; all of them for `MPI_ANY_TAG`.
    pub ignore: u64,
}

impl Selector {
    /// This source and tag.
    pub const fn exact(source: Rank, context: u32, tag: u64) -> Self {
        Self { source: Some(source), context, tag, ignore: 0 }
    }

    /// This tag from any source.
    pub const fn any_source(context: u32, tag: u64) -> Self {
        Self { source: None, context, tag, ignore: 0 }
    }

    /// Any tag from this source.
    pub const fn any_tag(source: Rank, context: u32) -> Self {
        Self { source: Some(source), context, tag: 0, ignore: u64::MAX }
    }

    /// Any message of this context.
    pub const fn any(context: u32) -> Self {
        Self { source: None, context, tag: 0, ignore: u64::MAX }
    }

    /// With the bits set in `ignore` not compared.
    #[must_use]
    pub const fn ignoring(self, ignore: u64) -> Self {
        Self { ignore, ..self }
    }

    /// Whether it takes a message with `envelope`.
    #[inline]
    pub fn matches(&self, envelope: &Envelope) -> bool {
        self.context == envelope.context
            && (self.tag ^ envelope.tag) & !self.ignore == 0
            && self.source.is_none_or(|source| source == envelope.peer)
    }
}

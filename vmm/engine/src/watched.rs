//! Tokens of watched descriptors: each names the owner that an event is for.

/// A client: the number of its attachment among those served, and which client of that attachment
/// it is. Events and results for an earlier client are recognized by the generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientKey {
    pub(crate) index: usize,
    pub(crate) generation: u32,
}

/// The owner of a watched descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    Stop,
    Waker,
    /// The listening socket of the attachment with this number.
    Listener(usize),
    /// A client's first socket.
    Client(ClientKey),
    /// The eventfd by which a client unmasks INTx.
    Unmask(ClientKey),
    /// A client's second socket.
    SecondSocket(ClientKey),
}

/// Bits of an attachment's index in a token.
const INDEX_BITS: u32 = 24;
/// Bits of a client's generation in a token.
const GENERATION_BITS: u32 = 32;
/// Maximum number of attachments that an engine serves.
pub(crate) const MAX_ATTACHMENTS: usize = 1 << INDEX_BITS;

impl Watched {
    /// Returns the token. From its most significant bits on it consists of the kind of the owner,
    /// the client's generation, and the attachment's index.
    pub(crate) fn token(self) -> u64 {
        let none = ClientKey { index: 0, generation: 0 };
        let (kind, key) = match self {
            Self::Stop => (0, none),
            Self::Waker => (1, none),
            Self::Listener(index) => (2, ClientKey { index, generation: 0 }),
            Self::Client(key) => (3, key),
            Self::Unmask(key) => (4, key),
            Self::SecondSocket(key) => (5, key),
        };
        kind << (INDEX_BITS + GENERATION_BITS) | u64::from(key.generation) << INDEX_BITS | key.index as u64
    }

    /// Returns the owner that a token names, or `None` for a token that no descriptor has.
    pub(crate) fn from_token(token: u64) -> Option<Self> {
        let index = (token & ((1 << INDEX_BITS) - 1)) as usize;
        let key = ClientKey { index, generation: (token >> INDEX_BITS) as u32 };
        Some(match token >> (INDEX_BITS + GENERATION_BITS) {
            0 => Self::Stop,
            1 => Self::Waker,
            2 => Self::Listener(index),
            3 => Self::Client(key),
            4 => Self::Unmask(key),
            5 => Self::SecondSocket(key),
            _ => return None,
        })
    }
}

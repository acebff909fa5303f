//! The decision where a packet goes.

/// Decides where the packets of one node go. Each router has a policy of its own, which knows the
/// node.
///
/// The router asks once for each packet that is first in an input, and keeps the answer until the
/// packet has left. An answer may depend on the route word, the node and the source alone.
pub trait Policy {
    /// Returns where a packet with this route word goes. The route word is the packet's
    /// [`nicforge_core::fabric::Contents::header`].
    fn decide(&self, word: u64, from: Source) -> Decision;

    /// Returns the exit of [`Decision::One`], if the decision is known to be that without a search.
    /// The router asks this first, because most packets have one exit.
    #[inline]
    fn only_exit(&self, word: u64, from: Source) -> Option<Exit> {
        match self.decide(word, from) {
            Decision::One(exit) => Some(exit),
            _ => None,
        }
    }

    /// Returns whether the decision is [`Decision::Local`].
    #[inline]
    fn is_local(&self, word: u64, from: Source) -> bool {
        self.decide(word, from) == Decision::Local
    }

    /// Returns whether the policy can decide [`Decision::Any`]. The ports that such a packet finds
    /// idle depend on the order in which a router decides, so that it decides in its steps alone.
    #[inline]
    fn has_candidates(&self) -> bool {
        true
    }

    /// Returns the reception FIFO for packets with this route word. The router delivers to no FIFO
    /// that does not exist: it drops such packets and counts them.
    #[inline]
    fn reception(&self, word: u64, from: Source) -> u8 {
        let _ = (word, from);
        0
    }
}

/// The input of a router in which a packet waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A virtual channel of the link at a port.
    Link {
        /// The port.
        port: u8,
        /// The virtual channel.
        vc: u8,
    },
    /// An injection FIFO.
    Injection {
        /// Number of the FIFO.
        fifo: u8,
    },
}

/// A virtual channel by which a packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(align(4))]
pub struct Exit {
    /// The port.
    pub port: u8,
    /// The virtual channel.
    pub vc: u8,
    /// The room that the packet needs in the next buffer.
    pub room: Room,
}

/// The room that a packet needs at the far end of a link, counted in packets of the longest kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Room {
    /// Its own place: the packet moves along its ring, or there is no ring.
    #[default]
    One,
    /// Its own place and one more, which stays free: the packet enters a ring that has the bubble
    /// rule, from an injection FIFO, another dimension or another virtual channel.
    Two,
}

/// Exits from which the router chooses by load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Candidates {
    /// The ports, one bit for each.
    pub ports: u64,
    /// The virtual channels of these ports, one bit for each. None of them may have the bubble
    /// rule.
    pub vcs: u16,
    /// The exit that is taken if none of the others has room.
    pub escape: Option<Exit>,
}

/// The targets of a packet with several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Targets {
    /// The ports, one bit for each, at least one.
    pub ports: u64,
    /// The virtual channel at these ports.
    pub vc: u8,
    /// The room that each copy needs in the next buffer.
    pub room: Room,
    /// Whether a copy is delivered here.
    pub local: bool,
}

/// Where a packet goes from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// To a reception FIFO of this node.
    Local,
    /// By one exit.
    One(Exit),
    /// By the least loaded of several exits.
    Any(Candidates),
    /// To several targets, a copy to each.
    Many(Targets),
    /// Nowhere: the route word has no meaning. The router drops the packet and counts it.
    Drop,
}

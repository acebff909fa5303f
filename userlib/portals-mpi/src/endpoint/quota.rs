//! The operations of Portals that the rank can have in progress, and their division among peers.
//!
//! A put to a peer whose card takes nothing stays in progress, and so does a get that a peer never
//! answers. An operation with a peer may therefore begin only while more operations are free than
//! are in progress with this peer. One such peer thus takes half of all, and *n* of them leave one
//! part of *n* + 1 to the others. Some operations are reserved for control messages, without which
//! such a peer would not be noticed.

/// Number of operations that are reserved for control messages, on a card with enough of them.
const RESERVED: u32 = 2;

/// Operations in progress with one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Puts whose end the card has not reported.
    pub(super) puts: u32,
    /// Gets without a reply.
    gets: u32,
}

/// Operations in progress with all peers.
#[derive(Debug)]
pub(super) struct Quota {
    /// Maximum number of operations in progress.
    limit: u32,
    /// Number of operations in progress.
    used: u32,
    /// Number of operations that are reserved for control messages.
    reserved: u32,
}

impl Quota {
    /// Makes the quota of a process that can have `limit` operations in progress.
    pub(super) fn new(limit: u16) -> Self {
        let limit = u32::from(limit);
        Self { limit, used: 0, reserved: RESERVED.min(limit / 4) }
    }

    /// Returns the number of operations that can begin.
    fn free(&self) -> u32 {
        self.limit.saturating_sub(self.used)
    }

    /// Returns whether a put of data to a peer may begin, or a get.
    pub(super) fn has_room(&self, usage: &Usage) -> bool {
        self.free() > self.reserved + usage.puts + usage.gets
    }

    /// Returns whether a control message to a peer may begin. It may use one of the reserved
    /// operations if no put to the peer is in progress.
    pub(super) fn has_room_for_control(&self, usage: &Usage) -> bool {
        self.has_room(usage) || usage.puts == 0 && self.free() > 0
    }

    /// Counts a put that begins.
    pub(super) fn begin_put(&mut self, usage: &mut Usage) {
        usage.puts += 1;
        self.used += 1;
    }

    /// Counts the end of a put.
    pub(super) fn end_put(&mut self, usage: &mut Usage) {
        if usage.puts > 0 {
            usage.puts -= 1;
            self.used -= 1;
        }
    }

    /// Counts a get that begins.
    pub(super) fn begin_get(&mut self, usage: &mut Usage) {
        usage.gets += 1;
        self.used += 1;
    }

    /// Counts the end of a get.
    pub(super) fn end_get(&mut self, usage: &mut Usage) {
        if usage.gets > 0 {
            usage.gets -= 1;
            self.used -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins puts of data to peers that take none of them, as many as there is room for.
    fn fill(quota: &mut Quota, peers: &mut [Usage]) {
        for peer in peers {
            while quota.has_room(peer) {
                quota.begin_put(peer);
            }
        }
    }

    #[test]
    fn peers_that_take_nothing_leave_room_for_others() {
        for (limit, stuck) in [(64, 5), (8, 2), (4096, 10)] {
            let mut quota = Quota::new(limit);
            let mut peers = vec![Usage::default(); stuck];
            fill(&mut quota, &mut peers);
            assert!(quota.has_room(&Usage::default()), "{limit}: {peers:?}");
        }
    }

    #[test]
    fn control_messages_have_room_when_data_have_none() {
        for limit in [1, 2, 4, 8, 64] {
            let mut quota = Quota::new(limit);
            let mut peers = [Usage::default(); 40];
            fill(&mut quota, &mut peers);

            let other = Usage::default();
            assert!(!quota.has_room(&other), "{limit}");
            assert_eq!(quota.has_room_for_control(&other), limit >= 4, "{limit}");
            assert!(!quota.has_room_for_control(&peers[0]), "{limit}");
        }
    }

    #[test]
    fn operations_that_end_make_room() {
        let (mut quota, mut peer) = (Quota::new(8), Usage::default());
        quota.begin_get(&mut peer);
        fill(&mut quota, std::slice::from_mut(&mut peer));
        assert!(!quota.has_room(&peer));

        quota.end_get(&mut peer);
        quota.end_put(&mut peer);
        assert!(quota.has_room(&peer));
        quota.end_get(&mut peer);
        assert_eq!((peer.puts, peer.gets, quota.used), (1, 0, 1));
    }
}

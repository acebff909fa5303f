//! State of the connections with one address.

use nicforge_driver::RingPosition;

use crate::tenant::Tenant;

/// Number of refusals that a tenant receives in a row. A later connect is answered only when
/// credits are free. Otherwise a peer that connects repeatedly and reads nothing would fill its
/// ring with answers, and block everything that this port has posted after them.
const MAX_REFUSALS: u8 = 4;

/// Number of unresponsive tenants of an address, after which the port answers no tenant of it. A
/// tenant is unresponsive when the watchdog has dropped a credit message for it.
const MAX_UNRESPONSIVE: u8 = 3;

/// State of the connections with one address, one in each direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer {
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    pub(crate) due: DueControl,
    pub(crate) refusals: Refusals,
    pub(crate) unresponsive: Unresponsive,
    /// Kept messages of tenants whose grant has ended. They use up part of the node's budget.
    pub(crate) kept_without_grant: u32,
    /// Whether [`crate::Port::admit`] excludes it, so that it is granted nothing.
    pub(crate) excluded: bool,
}

/// The connection to a peer: its receiver grants credits, and this port spends them.
///
/// Invariant: `answered`, `refused` and `credits` are of `connection`, and each message spends one
/// credit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outgoing {
    /// The tenant that this port sends to.
    pub(crate) receiver: Option<Tenant>,
    /// Number of the last connection to the peer's address. It counts the connects, modulo 256.
    pub(crate) connection: u8,
    /// Whether it has sent a credit message, which may be a refusal.
    pub(crate) answered: bool,
    /// Whether its last credit message was a refusal.
    pub(crate) refused: bool,
    /// Messages that this port may send to it.
    pub(crate) credits: u32,
}

impl Outgoing {
    /// Returns the next connection to the same address, which has no credits yet.
    pub(crate) fn next(self, receiver: Tenant) -> Self {
        let connection = self.connection.wrapping_add(1);
        Self { receiver: Some(receiver), connection, ..Self::default() }
    }

    /// Takes over the credits of a credit message; 0 is a refusal. The message has no effect if it
    /// is of an earlier `connection`.
    ///
    /// The connection never has more than `window` credits, which is what its connect has asked
    /// for.
    pub(crate) fn add_credits(&mut self, connection: u8, messages: u32, window: u32) {
        if self.receiver.is_some() && connection == self.connection {
            self.credits = self.credits.saturating_add(messages).min(window);
            (self.answered, self.refused) = (true, messages == 0);
        }
    }
}

/// The connection from a peer: this port grants credits, and the sender spends them.
///
/// Invariant: credits are granted once for each connection, and only to a `sender`. Later credits
/// return those that the sender has spent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Incoming {
    /// The tenant that sends to this port.
    pub(crate) sender: Option<Tenant>,
    /// The sender's number of the connection, which credit messages repeat.
    pub(crate) connection: u8,
    /// Credits that its connect asked for.
    pub(crate) requested: u32,
    /// Credits that this port has granted to it.
    pub(crate) granted: u32,
    /// Spent credits that are due to return to it.
    pub(crate) unreturned: u32,
}

impl Incoming {
    /// Returns whether the sender has credits of this port.
    #[inline]
    pub(crate) fn has_grant(&self) -> bool {
        self.granted != 0
    }

    /// Counts the credit of a received message. Returns whether half of the grant is due; the
    /// sender spends the other half meanwhile.
    #[inline]
    pub(crate) fn add_spent(&mut self) -> bool {
        self.unreturned += 1;
        // Twice the number fits: a grant is at most the slots of a receive ring.
        2 * self.unreturned >= self.granted
    }
}

/// Control messages that are due to a peer.
///
/// Invariant: a peer with a close, a refusal or half a grant of unreturned credits is in the queue
/// of pending control messages, and it is there at most once. At most two credit messages for it
/// are in flight in the posted-write ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DueControl {
    /// Whether the peer is in the queue.
    pub(crate) queued: bool,
    /// Whether a refusal is due.
    pub(crate) refusal: bool,
    /// The tenant to which a close is due.
    pub(crate) close: Option<Tenant>,
    /// Ring positions after the last two credit messages for it, the older one first.
    pub(crate) credit_positions: [Option<RingPosition>; 2],
}

/// The refused connects of one tenant.
///
/// Invariant: a tenant is refused at most [`MAX_REFUSALS`] times in a row. After that it waits
/// until credits are free.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusals {
    tenant: Option<Tenant>,
    in_a_row: u8,
    /// Whether the tenant has asked again after its last refusal, and waits for free credits.
    pub(crate) awaits_grant: bool,
}

impl Refusals {
    /// Counts for `tenant` from now on, from 0 if it is another one.
    pub(crate) fn count_for(&mut self, tenant: Tenant) {
        if !tenant.is(self.tenant) {
            (self.tenant, self.in_a_row) = (Some(tenant), 0);
        }
    }

    /// Counts the answer to a connect. Returns whether the answer may be sent.
    pub(crate) fn count_answer(&mut self, is_refusal: bool) -> bool {
        self.awaits_grant = is_refusal && self.in_a_row >= MAX_REFUSALS;
        if self.awaits_grant {
            return false;
        }

        self.in_a_row = if is_refusal { self.in_a_row + 1 } else { 0 };
        true
    }
}

/// Tenants of an address that do not read their credit messages.
///
/// Invariant: such a tenant receives no more credit messages. After [`MAX_UNRESPONSIVE`] of them no
/// tenant of the address does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unresponsive {
    last: Option<Tenant>,
    tenants: u8,
}

impl Unresponsive {
    /// Records that a tenant has not read a credit message.
    pub(crate) fn record(&mut self, tenant: Option<Tenant>) {
        self.tenants = self.tenants.saturating_add(u8::from(self.last != tenant));
        self.last = tenant;
    }

    /// Returns whether the port answers connects of a tenant.
    pub(crate) fn allows(&self, tenant: Tenant) -> bool {
        !tenant.is(self.last) && self.tenants < MAX_UNRESPONSIVE
    }
}

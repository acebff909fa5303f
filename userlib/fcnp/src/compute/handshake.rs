//! The RESET handshake: it links this core to the process on the I/O node, and withdraws requests.

use std::sync::{
    MutexGuard, PoisonError, TryLockError,
    atomic::{Ordering, fence},
};

use nicforge_driver::{Deadline, runtime};
use nicforge_hwi::tree::CORES;

use super::{ComputeCore, Direction, link::IoNodeLink};
use crate::{
    Error,
    protocol::{Control, Kind, ResetHead, Scope},
    tree::Generation,
    wait::Waiter,
};

impl ComputeCore {
    /// Returns a link on which a call may start. It first repeats the withdrawal of a request that
    /// could not be withdrawn. The I/O node would otherwise take that request for one of a later
    /// call.
    pub(super) fn ensure_linked(&self, waiter: &mut Waiter<'_>) -> Result<IoNodeLink, Error> {
        loop {
            if let (Some(link), None) = (self.link(), self.direction_to_reset()) {
                return Ok(link);
            }

            let mut token = self.lock_handshake(waiter)?;
            match (self.link(), self.direction_to_reset()) {
                // Another thread has completed the handshake meanwhile.
                (Some(_), None) => {}
                (Some(_), Some(direction)) => self.reset(direction.scope(), &mut token, waiter)?,
                (None, _) => {
                    // A RESET of everything must not overtake data that another thread of this core
                    // still sends to the process that is gone.
                    fence(Ordering::SeqCst);
                    while self.directions.iter().any(|state| state.running.load(Ordering::Acquire)) {
                        waiter.pause("the other call of this core to notice that the I/O node is gone")?;
                    }
                    self.reset(Scope::All, &mut token, waiter)?;
                }
            }
        }
    }

    /// Returns a direction whose request could not be withdrawn.
    #[inline]
    fn direction_to_reset(&self) -> Option<Direction> {
        Direction::BOTH
            .into_iter()
            .find(|direction| self.state(*direction).needs_reset.load(Ordering::Acquire))
    }

    /// Waits until no other thread is in a handshake, and locks the token of the last RESET.
    fn lock_handshake(&self, waiter: &mut Waiter<'_>) -> Result<MutexGuard<'_, u32>, Error> {
        loop {
            match self.handshake.try_lock() {
                Ok(token) => return Ok(token),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(PoisonError::into_inner(poisoned)),
                Err(TryLockError::WouldBlock) => waiter.pause("another thread's RESET")?,
            }
        }
    }

    /// Withdraws the request of a failed call. If that does not succeed within
    /// [`Config::recovery`](crate::Config::recovery), the next call repeats it.
    pub(super) fn withdraw(&self, direction: Direction) {
        let mut waiter = Waiter::new(&self.node.channel, Deadline::after(self.config.recovery), None);
        let done = self
            .lock_handshake(&mut waiter)
            .and_then(|mut token| self.reset(direction.scope(), &mut token, &mut waiter));

        if done.is_err() {
            self.state(direction).needs_reset.store(true, Ordering::Release);
        }
    }

    /// Performs the RESET handshake for `scope`. A RESET of everything is repeated until a process
    /// on the I/O node has acknowledged it. Another RESET fails when the linked process is gone.
    /// `token` is that of the last RESET, and is advanced.
    fn reset(&self, scope: Scope, token: &mut u32, waiter: &mut Waiter<'_>) -> Result<(), Error> {
        let io_node = self.node.channel.info().io_node;
        // Any process may acknowledge a RESET of everything.
        let linked = self.link().filter(|_| scope != Scope::All);
        if scope != Scope::All && linked.is_none() {
            return Err(Error::PeerGone { peer: self.peer() });
        }

        loop {
            let generations = self.node.channel.node_presence(io_node);
            if !generations.iter().any(|generation| generation.is_up()) {
                waiter.pause("a process on the I/O node")?;
                continue;
            }

            *token = token.wrapping_add(1);
            match self.reset_once(scope, *token, linked, generations, waiter) {
                Ok(link) if !self.is_gone(link) => {
                    self.finish_reset(scope, link);
                    return Ok(());
                }
                Ok(_) | Err(Error::PeerGone { .. }) if scope == Scope::All => waiter.progress(),
                Ok(_) => return Err(Error::PeerGone { peer: self.peer() }),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends one RESET and waits for its acknowledgement by the process of `linked`, or by any
    /// process on the I/O node without a link. It ends early when that process is gone, or without
    /// a link when any process comes or goes. It also ends when this core's own generation changes.
    fn reset_once(
        &self,
        scope: Scope,
        token: u32,
        linked: Option<IoNodeLink>,
        generations: [Generation; CORES as usize],
        waiter: &mut Waiter<'_>,
    ) -> Result<IoNodeLink, Error> {
        let io_node = self.node.channel.info().io_node;
        let (resets, own_generation) = (self.resets(), self.own_generation());
        let has_own_changed = || self.own_generation() != own_generation || self.resets() != resets;
        let has_peer_changed = || match linked {
            Some(link) => self.peer_is_gone(link),
            None => self.node.channel.node_presence(io_node) != generations,
        };
        let changed = || has_peer_changed() || has_own_changed();

        let head = ResetHead {
            token: token.into(),
            core: self.node.name.core as u8,
            generation: own_generation.0,
            reserved: 0.into(),
        };
        let request = Control::new(Kind::Reset, self.node.name, scope as u32)
            .with_head(zerocopy::IntoBytes::as_bytes(&head));
        self.send_control(&request, changed, waiter)?;

        loop {
            let (answer, _receiver) =
                self.await_acknowledgement(Kind::Reset, changed, waiter, "the acknowledgement of a RESET")?;
            let head = ResetHead::of(&answer);
            if head.token.get() == token && answer.size == scope as u32 && u16::from(head.core) < CORES {
                let generation = Generation(head.generation);
                return Ok(IoNodeLink { core: head.core.into(), generation, own_generation, resets });
            }
            self.node.counters.strays.add(1);
        }
    }

    /// Updates the state after an acknowledged RESET. No packet of a withdrawn transfer can arrive
    /// any more.
    fn finish_reset(&self, scope: Scope, link: IoNodeLink) {
        if scope.has_read() {
            self.node.discard_delivered(Kind::Read);
            self.state(Direction::Read).needs_reset.store(false, Ordering::Release);
        }
        if scope.has_write() {
            self.node.discard_delivered(Kind::Write);
            self.state(Direction::Write).needs_reset.store(false, Ordering::Release);
        }

        if scope == Scope::All {
            self.link.store(link.to_word(), Ordering::Release);
        }

        self.node.counters.resets.add(1);
    }
}

/// Returns the first token. It is random, so that an acknowledgement for an earlier process on the
/// core is not taken for one of this process.
pub(super) fn first_token() -> u32 {
    runtime::random() as u32
}

//! The list of a VPID's commands, from the write of the descriptor to their end.

use std::collections::VecDeque;

use nicforge_hwi::extoll_rma::{Command, MAX_COMMANDS, MAX_IMMEDIATE, MAX_LENGTH, command, status};

use super::part::{Part, max_request_bytes};
use crate::{atu::RegionSerial, packet::Endpoint};

/// Maximum number of targets that one search for a command that can proceed considers.
pub(super) const LOOK_AHEAD: usize = 8;

/// The request of a command. It does not change after the command was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) target: Endpoint,
    pub(super) command: u8,
    pub(super) notify: u8,
    /// Bytes of the command; 0 if the descriptor is invalid.
    pub(super) length: u32,
    pub(super) source: u64,
    pub(super) destination: u64,
}

impl Request {
    /// Returns whether the command is a get.
    #[inline]
    pub(super) fn is_get(&self) -> bool {
        self.command == command::GET
    }
}

/// Whether the client that wrote a command is still there to be notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The VPID was not reset since the command was written. `queue_generation` names the
    /// notification queue that was enabled at that time: see
    /// [`super::notify::Notifications::generation`].
    SameClient { queue_generation: u32 },
    /// The VPID was reset, or its client left. The command gets no notifications, and no more parts
    /// of it are sent.
    Orphaned,
}

/// The stages of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No part was sent.
    New,
    /// Some parts were sent.
    Sending,
    /// All parts were sent; answers end the command.
    Sent,
    /// The command has ended.
    Ended,
}

/// How far a command has come: its bytes that were sent and answered, and the memory of these
/// bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CommandProgress {
    /// Bytes that were sent, or requested by a get.
    pub(super) sent: u32,
    /// Bytes of a get that were answered.
    pub(super) answered: u32,
    /// The region at this card: a put's source or a get's destination. `None` before the lookup,
    /// and for an immediate put.
    pub(super) region: Option<RegionSerial>,
    /// The region at the target that a get reads, from the first answer.
    pub(super) read_region: Option<RegionSerial>,
    /// The generation of the responder's notification queue, from the first answer to a get.
    pub(super) responder_queue: Option<u32>,
}

/// The watchdog's view of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchdogState {
    /// A part was sent or answered since the last check.
    Progressed,
    /// Nothing has moved for this number of nanoseconds. They are counted while the command is the
    /// first one for its target.
    Waiting(u64),
    /// The watchdog ends the command.
    Expired,
}

/// A command in flight.
#[derive(Clone, Debug)]
pub(super) struct InFlightCommand {
    pub(super) request: Request,
    pub(super) owner: Owner,
    pub(super) state: State,
    /// [`status::DONE`] until something fails.
    pub(super) status: u8,
    pub(super) progress: CommandProgress,
    pub(super) watchdog_state: WatchdogState,
}

impl InFlightCommand {
    /// Returns the entry of a newly written command. If the descriptor is invalid, it has an error
    /// status from the beginning, and moves no data.
    fn new(written: &Command, queue_generation: u32) -> Self {
        let valid = is_valid(written);
        Self {
            request: Request {
                target: Endpoint { node: written.node(), vpid: written.vpid() },
                command: written.command(),
                notify: written.notify(),
                length: if valid { written.length() } else { 0 },
                source: written.source,
                destination: written.destination,
            },
            owner: Owner::SameClient { queue_generation },
            state: State::New,
            status: if valid { status::DONE } else { status::COMMAND },
            progress: CommandProgress::default(),
            watchdog_state: WatchdogState::Waiting(0),
        }
    }

    /// Returns whether no more data of the command are sent or requested.
    #[inline]
    pub(super) fn is_stopped(&self) -> bool {
        self.owner == Owner::Orphaned || self.status != status::DONE
    }

    /// Returns the number of bytes that were not sent or requested.
    #[inline]
    pub(super) fn rest(&self) -> u32 {
        self.request.length - self.progress.sent
    }

    /// Returns the number of bytes of a get that were requested and not answered.
    #[inline]
    pub(super) fn outstanding(&self) -> u32 {
        self.progress.sent.saturating_sub(self.progress.answered)
    }

    /// Returns the status of a get after this answer, and records the region that the first answer
    /// names. If a later part is refused, or is read from another region, the first region was
    /// withdrawn in between.
    pub(super) fn status_with(&mut self, answer: &Part) -> u8 {
        let status = if self.status == status::DONE { answer.status } else { self.status };
        let read_elsewhere = match status {
            // The address of an answer is the region that was read.
            status::DONE => *self.progress.read_region.get_or_insert(answer.address) != answer.address,
            status::REMOTE_ADDRESS | status::NO_RECEIVER => self.progress.read_region.is_some(),
            _ => false,
        };

        if read_elsewhere || self.owner == Owner::Orphaned { status::WITHDRAWN } else { status }
    }

    /// Returns the next part of the command, as large as packets of `mtu` bytes of data allow.
    #[inline]
    pub(super) fn next_part(&self, id: u32, mtu: u32) -> Part {
        let Request { command, notify, length: total, source, destination, .. } = self.request;
        let rest = self.rest();
        let maximum = if command == command::GET { max_request_bytes(mtu) } else { mtu };
        Part {
            id,
            command,
            notify,
            status: self.status,
            is_last: false,
            staged: false,
            length: rest.min(maximum),
            rest,
            total,
            queue_generation: 0,
            address: if command == command::GET { source } else { destination },
            data: 0,
        }
    }

    /// Returns whether the command has expired.
    fn is_expired(&self) -> bool {
        self.watchdog_state == WatchdogState::Expired
    }
}

/// The targets seen in one search. Only the first unsent command for each target is considered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TargetSearch {
    targets: [Endpoint; LOOK_AHEAD],
    count: usize,
}

impl TargetSearch {
    /// Returns whether the search has seen a command for this target.
    fn contains(&self, target: Endpoint) -> bool {
        self.targets[..self.count].contains(&target)
    }
}

/// A VPID's commands, in the order in which they were written.
#[derive(Default)]
pub(super) struct Commands {
    pub(super) list: VecDeque<InFlightCommand>,
    /// Number of the first command in the list. Commands are numbered in their order.
    pub(super) first: u32,
    /// Number of commands at the front that were sent completely.
    pub(super) sent: usize,
    /// Number of gets that have not ended.
    pub(super) gets: u32,
    /// Bytes that these gets have requested and not received.
    pub(super) outstanding_bytes: u32,
}

impl Commands {
    /// Returns whether the list is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns whether the list can take no more commands.
    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= MAX_COMMANDS
    }

    /// Appends a written command, whose notifications go to the queue of `queue_generation`.
    /// Returns false if the descriptor is invalid; the command then completes with an error.
    pub(super) fn push(&mut self, written: &Command, queue_generation: u32) -> bool {
        if self.list.capacity() == 0 {
            self.list.reserve_exact(MAX_COMMANDS);
        }

        let in_flight = InFlightCommand::new(written, queue_generation);
        let valid = in_flight.status == status::DONE;
        self.gets += u32::from(in_flight.request.is_get());
        self.list.push_back(in_flight);

        valid
    }

    /// Returns whether there are commands that were not sent completely.
    pub(super) fn is_sending(&self) -> bool {
        self.sent < self.list.len()
    }

    /// Marks all commands as those of a VPID that was reset.
    pub(super) fn orphan(&mut self) {
        for in_flight in &mut self.list {
            in_flight.owner = Owner::Orphaned;
        }
    }

    /// Returns the command with a number, if it has not ended.
    pub(super) fn in_flight(&mut self, id: u32) -> Option<&mut InFlightCommand> {
        self.list
            .get_mut(id.wrapping_sub(self.first) as usize)
            .filter(|in_flight| in_flight.state != State::Ended)
    }

    /// Returns the number of the command at an index of the list.
    pub(super) fn id(&self, index: usize) -> u32 {
        // The index is below MAX_COMMANDS, so it fits.
        self.first.wrapping_add(index as u32)
    }

    /// Returns whether an earlier command for the same target keeps this one from starting. A
    /// command that has failed waits for all earlier ones, so that they end in order. A put waits
    /// only for gets.
    pub(super) fn has_to_wait(&self, index: usize, has_failed: bool) -> bool {
        let Some(in_flight) = self.list.get(index) else { return true };

        if !has_failed && (in_flight.request.is_get() || self.gets == 0) {
            return false;
        }

        self.list.iter().take(index).any(|earlier| {
            earlier.state != State::Ended
                && earlier.request.target == in_flight.request.target
                && (has_failed || earlier.request.is_get())
        })
    }

    /// Skips the commands that were sent completely, and drops those at the front that have ended.
    pub(super) fn skip_sent_and_drop_ended(&mut self) {
        while self
            .list
            .get(self.sent)
            .is_some_and(|in_flight| matches!(in_flight.state, State::Sent | State::Ended))
        {
            self.sent += 1;
        }

        while self.list.front().is_some_and(|in_flight| in_flight.state == State::Ended) {
            self.list.pop_front();
            self.first = self.first.wrapping_add(1);
            self.sent = self.sent.saturating_sub(1);
        }
    }

    /// Returns the index of the next command from `from` on that may proceed: the first one with
    /// parts to send whose target the search has not seen. Adds that target to the search. Commands
    /// for one target thus keep their order.
    #[inline]
    pub(super) fn next_to_send(&self, search: &mut TargetSearch, from: usize) -> Option<usize> {
        if search.count == LOOK_AHEAD || from > self.list.len() {
            return None;
        }

        let may_send = |in_flight: &InFlightCommand| {
            matches!(in_flight.state, State::New | State::Sending)
                && !search.contains(in_flight.request.target)
        };
        let index = from + self.list.range(from..).position(may_send)?;

        search.targets[search.count] = self.list[index].request.target;
        search.count += 1;
        Some(index)
    }

    /// Performs the watchdog's check, `elapsed` nanoseconds after the last one. Marks all commands
    /// for a target as expired if that target has made no progress for `limit`.
    ///
    /// Time counts for the first command of each target, since later ones can't pass it. No
    /// time counts for commands that can't be sent because [`LOOK_AHEAD`] other targets are before
    /// them.
    pub(super) fn check_progress(&mut self, elapsed: u64, limit: u64) {
        // Collect the targets to which a command may be sent now.
        let (mut search, mut from) = (TargetSearch::default(), self.sent);
        while let Some(index) = self.next_to_send(&mut search, from) {
            from = index + 1;
        }

        for index in 0..self.list.len() {
            let InFlightCommand { request: Request { target, .. }, state, .. } = self.list[index];
            let has_target = |in_flight: &&InFlightCommand| in_flight.request.target == target;
            let is_first = state != State::Ended
                && self.list.iter().take(index).filter(has_target).all(|before| before.state == State::Ended);
            let may_proceed = state == State::Sent || search.contains(target);
            if !is_first || !may_proceed {
                continue;
            }

            let has_progressed = self
                .list
                .iter()
                .filter(has_target)
                .any(|in_flight| in_flight.watchdog_state == WatchdogState::Progressed);
            let waited = match self.list[index].watchdog_state {
                WatchdogState::Progressed => 0,
                _ if has_progressed => 0,
                WatchdogState::Waiting(waited) => waited.saturating_add(elapsed),
                WatchdogState::Expired => limit,
            };

            if waited < limit {
                self.list[index].watchdog_state = WatchdogState::Waiting(waited);
            } else {
                self.list
                    .iter_mut()
                    .filter(|in_flight| in_flight.request.target == target)
                    .for_each(|in_flight| in_flight.watchdog_state = WatchdogState::Expired);
            }
        }

        // The next check looks for new progress.
        for in_flight in
            self.list.iter_mut().filter(|in_flight| in_flight.watchdog_state == WatchdogState::Progressed)
        {
            in_flight.watchdog_state = WatchdogState::Waiting(0);
        }
    }

    /// Returns the number of the first command that has expired and not ended.
    pub(super) fn first_expired(&self) -> Option<u32> {
        let index = self
            .list
            .iter()
            .position(|in_flight| in_flight.is_expired() && in_flight.state != State::Ended)?;
        Some(self.id(index))
    }
}

/// Returns whether a descriptor has a known command, a length in its range, and no reserved bit.
fn is_valid(written: &Command) -> bool {
    let maximum = match written.command() {
        command::PUT | command::GET => MAX_LENGTH,
        command::IMMEDIATE_PUT => MAX_IMMEDIATE,
        _ => return false,
    };
    written.head & Command::RESERVED == 0 && (1..=maximum).contains(&written.length())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit of the watchdog.
    const LIMIT: u64 = 100;

    /// Returns a list of puts for these VPIDs of node 0.
    fn puts_for(targets: &[u16]) -> Commands {
        let mut commands = Commands::default();
        for &vpid in targets {
            assert!(commands.push(&Command::new(0, vpid, command::PUT, 0, 8, 0, 0), 0));
        }
        commands
    }

    /// Returns the indices of the commands that have expired.
    fn expired(commands: &Commands) -> Vec<usize> {
        (0..commands.list.len()).filter(|&index| commands.list[index].is_expired()).collect()
    }

    #[test]
    fn progress_of_one_command_restarts_the_watchdog_for_its_target_only() {
        let mut commands = puts_for(&[1, 2, 1]);

        for _ in 0..3 {
            commands.list[2].watchdog_state = WatchdogState::Progressed;
            commands.check_progress(LIMIT / 2, LIMIT);
        }

        assert_eq!(expired(&commands), [1]);
        assert_eq!(commands.first_expired(), Some(1));
        commands.check_progress(LIMIT / 2, LIMIT);
        assert_eq!(expired(&commands), [1]);

        commands.check_progress(LIMIT / 2, LIMIT);
        assert_eq!(expired(&commands), [0, 1, 2]);
    }

    #[test]
    fn time_queued_after_too_many_other_targets_does_not_count() {
        let targets: Vec<u16> = (0..LOOK_AHEAD as u16 + 2).flat_map(|vpid| [vpid; 3]).collect();
        let mut commands = puts_for(&targets);

        commands.check_progress(LIMIT, LIMIT);
        assert_eq!(expired(&commands), (0..3 * LOOK_AHEAD).collect::<Vec<_>>());

        // Time counts for a command that waits for its answer, whatever commands come before it.
        commands.list.back_mut().unwrap().state = State::Sent;
        commands.list[3 * LOOK_AHEAD + 3].state = State::Ended;
        commands.list[3 * LOOK_AHEAD + 4].state = State::Ended;

        commands.check_progress(LIMIT, LIMIT);
        assert!(commands.list.back().unwrap().is_expired() && !commands.list[3 * LOOK_AHEAD].is_expired());
    }

    #[test]
    fn time_counts_only_while_a_command_is_the_first_for_its_target() {
        let mut commands = puts_for(&[1, 1]);

        commands.check_progress(LIMIT - 1, LIMIT);
        commands.list[0].state = State::Ended;
        commands.check_progress(LIMIT - 1, LIMIT);

        assert_eq!(commands.first_expired(), None);
        commands.check_progress(1, LIMIT);
        assert_eq!(commands.first_expired(), Some(1));
    }

    #[test]
    fn invalid_descriptors_are_listed_with_an_error_status_and_no_data() {
        const UNKNOWN_COMMAND: u8 = 7;
        let put = Command::new(0, 1, command::PUT, 0, 8, 0, 0);
        let invalid = [
            Command { head: put.head | Command::RESERVED, ..put },
            Command::new(0, 1, command::PUT, 0, 0, 0, 0),
            Command::new(0, 1, command::PUT, 0, MAX_LENGTH + 1, 0, 0),
            Command::new(0, 1, command::IMMEDIATE_PUT, 0, MAX_IMMEDIATE + 1, 0, 0),
            Command::new(0, 1, UNKNOWN_COMMAND, 0, 8, 0, 0),
        ];

        let mut commands = Commands::default();
        for written in &invalid {
            assert!(!commands.push(written, 0));
        }
        assert!(
            commands
                .list
                .iter()
                .all(|in_flight| in_flight.status == status::COMMAND && in_flight.request.length == 0)
        );
    }
}

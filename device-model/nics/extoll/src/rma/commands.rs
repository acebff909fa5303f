//! The list of a VPID's commands, from the write of the descriptor to their end.

use std::collections::VecDeque;

use nicforge_hwi::extoll_rma::{Command, MAX_COMMANDS, MAX_IMMEDIATE, MAX_LENGTH, command, status};

/// Targets that are considered in the search for a command that can proceed.
pub(crate) const LOOK_AHEAD: usize = 8;

/// Progress of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No part was sent.
    New,
    /// Some parts were sent.
    Sending,
    /// All parts were sent; answers end the command.
    Sent,
    /// The command has ended.
    Ended,
}

/// A command in flight.
#[derive(Clone, Debug)]
pub(crate) struct InFlightCommand {
    pub(crate) target: (u32, u16),
    pub(crate) command: u8,
    pub(crate) notify: u8,
    pub(crate) status: u8,
    pub(crate) state: State,
    /// Whether its VPID was reset: it gets no notifications, and no more parts are sent.
    pub(crate) orphan: bool,
    pub(crate) length: u32,
    /// Bytes that were sent, or requested by a get.
    pub(crate) sent: u32,
    /// Bytes of a get that were answered.
    pub(crate) answered: u32,
    pub(crate) source: u64,
    pub(crate) destination: u64,
    /// The queue for its notifications, as in [`super::Client::tenancy`].
    pub(crate) tenancy: u32,
    /// The region at this card: a put's source or a get's destination. 0 before the lookup.
    pub(crate) region: u64,
    /// The region that a get reads, from the first answer.
    pub(crate) read: Option<u64>,
    /// Whether a part was sent or answered since the watchdog's last look.
    pub(crate) moved: bool,
    /// Nanoseconds without progress that the watchdog has counted while this was the first command
    /// for its target.
    waited: u64,
    /// Whether the watchdog ends the command.
    expired: bool,
}

impl InFlightCommand {
    /// Returns a command as written. A command that makes no sense gets the status to end with.
    fn new(written: &Command, tenancy: u32) -> Self {
        let sound = is_sound(written);
        Self {
            target: (written.node(), written.vpid()),
            command: written.command(),
            notify: written.notify(),
            status: if sound { status::DONE } else { status::COMMAND },
            state: State::New,
            orphan: false,
            length: if sound { written.length() } else { 0 },
            sent: 0,
            answered: 0,
            source: written.source,
            destination: written.destination,
            tenancy,
            region: 0,
            read: None,
            moved: false,
            waited: 0,
            expired: false,
        }
    }
}

/// The targets seen in one search. Only the first unsent command for each target is considered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ahead {
    targets: [(u32, u16); LOOK_AHEAD],
    count: usize,
}

impl Ahead {
    fn contains(&self, target: (u32, u16)) -> bool {
        self.targets[..self.count].contains(&target)
    }
}

/// A VPID's commands, in the order in which they were written.
#[derive(Default)]
pub(crate) struct Commands {
    pub(crate) list: VecDeque<InFlightCommand>,
    /// Number of the first command in the list.
    pub(crate) first: u32,
    /// Number of commands at the front that were sent completely.
    pub(crate) sent: usize,
    /// Number of gets that have not ended.
    pub(crate) gets: u32,
    /// Bytes that these gets have requested and not received.
    pub(crate) asked: u32,
}

impl Commands {
    /// Returns whether the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns whether the list can take no more commands.
    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= MAX_COMMANDS
    }

    /// Appends a written command, with notifications for the queue of `tenancy`. Returns false if
    /// the command makes no sense; it then ends with an error.
    pub(crate) fn push(&mut self, written: &Command, tenancy: u32) -> bool {
        if self.list.capacity() == 0 {
            self.list.reserve_exact(MAX_COMMANDS);
        }

        let in_flight = InFlightCommand::new(written, tenancy);
        let sound = in_flight.status == status::DONE;
        self.gets += u32::from(in_flight.command == command::GET);
        self.list.push_back(in_flight);

        sound
    }

    /// Returns whether there are commands that were not sent completely.
    pub(crate) fn is_sending(&self) -> bool {
        self.sent < self.list.len()
    }

    /// Marks all commands as those of a VPID that was reset.
    pub(crate) fn orphan(&mut self) {
        for in_flight in &mut self.list {
            in_flight.orphan = true;
        }
    }

    /// Returns the command with a number, if it has not ended.
    pub(crate) fn in_flight(&mut self, id: u32) -> Option<&mut InFlightCommand> {
        self.list
            .get_mut(id.wrapping_sub(self.first) as usize)
            .filter(|in_flight| in_flight.state != State::Ended)
    }

    /// Returns the number of the command at an index.
    pub(crate) fn id(&self, index: usize) -> u32 {
        // The index is below MAX_COMMANDS, so it fits.
        self.first.wrapping_add(index as u32)
    }

    /// Returns whether an earlier command for the same target keeps this one from starting. A
    /// command that has failed waits for all of them, a put only for gets.
    pub(crate) fn has_to_wait(&self, index: usize, failed: bool) -> bool {
        let Some(this) = self.list.get(index) else { return true };

        if !failed && (this.command == command::GET || self.gets == 0) {
            return false;
        }

        self.list.iter().take(index).any(|before| {
            before.state != State::Ended
                && before.target == this.target
                && (failed || before.command == command::GET)
        })
    }

    /// Skips the commands that were sent completely, and drops those at the front that have ended.
    pub(crate) fn tidy(&mut self) {
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

    /// Returns the next command from `from` on that may proceed, for a target that is not in
    /// `ahead` yet, and adds the target. Commands for one target keep their order.
    #[inline]
    pub(crate) fn next_ahead(&self, ahead: &mut Ahead, from: usize) -> Option<usize> {
        if ahead.count == LOOK_AHEAD || from > self.list.len() {
            return None;
        }

        let open = |in_flight: &InFlightCommand| matches!(in_flight.state, State::New | State::Sending);
        let mut rest = self.list.range(from..);
        let index = from + rest.position(|in_flight| open(in_flight) && !ahead.contains(in_flight.target))?;

        ahead.targets[ahead.count] = self.list[index].target;
        ahead.count += 1;
        Some(index)
    }

    /// Performs the watchdog's look, `elapsed` nanoseconds after the last one. Marks all commands
    /// for a target as expired if that target has made no progress for `limit`.
    ///
    /// Time counts for the first command of each target, since those behind it can't pass it. No
    /// time counts for commands that can't be sent because [`LOOK_AHEAD`] other targets are before
    /// them.
    pub(crate) fn check_progress(&mut self, elapsed: u64, limit: u64) {
        let (mut ahead, mut from) = (Ahead::default(), self.sent);
        while let Some(index) = self.next_ahead(&mut ahead, from) {
            from = index + 1;
        }

        for index in 0..self.list.len() {
            let InFlightCommand { target, state, .. } = self.list[index];
            let same = |in_flight: &&InFlightCommand| in_flight.target == target;
            if state == State::Ended
                || self.list.iter().take(index).filter(same).any(|before| before.state != State::Ended)
            {
                continue;
            }

            if state != State::Sent && !ahead.contains(target) {
                continue;
            }

            let moved = self.list.iter().filter(same).any(|in_flight| in_flight.moved);
            let this = &mut self.list[index];
            this.waited = if moved { 0 } else { this.waited.saturating_add(elapsed) };

            if this.waited >= limit {
                self.list
                    .iter_mut()
                    .filter(|in_flight| in_flight.target == target)
                    .for_each(|in_flight| in_flight.expired = true);
            }
        }

        self.list.iter_mut().for_each(|in_flight| in_flight.moved = false);
    }

    /// Returns the number of the first command that has expired and not ended.
    pub(crate) fn expired(&self) -> Option<u32> {
        let index =
            self.list.iter().position(|in_flight| in_flight.expired && in_flight.state != State::Ended)?;
        Some(self.id(index))
    }
}

/// Returns whether a descriptor makes sense by itself.
fn is_sound(written: &Command) -> bool {
    let most = match written.command() {
        command::PUT | command::GET => MAX_LENGTH,
        command::IMMEDIATE_PUT => MAX_IMMEDIATE,
        _ => return false,
    };
    written.head & Command::RESERVED == 0 && (1..=most).contains(&written.length())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 100;

    fn list(targets: &[u16]) -> Commands {
        let mut commands = Commands::default();
        for &vpid in targets {
            assert!(commands.push(&Command::new(0, vpid, command::PUT, 0, 8, 0, 0), 0));
        }
        commands
    }

    fn expired(commands: &Commands) -> Vec<usize> {
        (0..commands.list.len()).filter(|&index| commands.list[index].expired).collect()
    }

    #[test]
    fn progress_of_one_command_keeps_only_the_commands_for_its_target() {
        let mut commands = list(&[1, 2, 1]);

        for _ in 0..3 {
            commands.list[2].moved = true;
            commands.check_progress(LIMIT / 2, LIMIT);
        }

        assert_eq!(expired(&commands), [1]);
        assert_eq!(commands.expired(), Some(1));
        commands.check_progress(LIMIT / 2, LIMIT);
        assert_eq!(expired(&commands), [1]);

        commands.check_progress(LIMIT / 2, LIMIT);
        assert_eq!(expired(&commands), [0, 1, 2]);
    }

    #[test]
    fn time_does_not_count_behind_too_many_other_targets() {
        let targets: Vec<u16> = (0..LOOK_AHEAD as u16 + 2).flat_map(|vpid| [vpid; 3]).collect();
        let mut commands = list(&targets);

        commands.check_progress(LIMIT, LIMIT);
        assert_eq!(expired(&commands), (0..3 * LOOK_AHEAD).collect::<Vec<_>>());

        // An answer is waited for whatever commands are before it.
        commands.list.back_mut().unwrap().state = State::Sent;
        commands.list[3 * LOOK_AHEAD + 3].state = State::Ended;
        commands.list[3 * LOOK_AHEAD + 4].state = State::Ended;

        commands.check_progress(LIMIT, LIMIT);
        assert!(commands.list.back().unwrap().expired && !commands.list[3 * LOOK_AHEAD].expired);
    }

    #[test]
    fn time_counts_from_when_a_command_is_the_first_one() {
        let mut commands = list(&[1, 1]);

        commands.check_progress(LIMIT - 1, LIMIT);
        commands.list[0].state = State::Ended;
        commands.check_progress(LIMIT - 1, LIMIT);

        assert_eq!(commands.expired(), None);
        commands.check_progress(1, LIMIT);
        assert_eq!(commands.expired(), Some(1));
    }

    #[test]
    fn invalid_descriptors_are_taken_and_end_with_an_error_status() {
        let put = Command::new(0, 1, command::PUT, 0, 8, 0, 0);
        let bad = [
            Command { head: put.head | Command::RESERVED, ..put },
            Command::new(0, 1, command::PUT, 0, 0, 0, 0),
            Command::new(0, 1, command::PUT, 0, MAX_LENGTH + 1, 0, 0),
            Command::new(0, 1, command::IMMEDIATE_PUT, 0, MAX_IMMEDIATE + 1, 0, 0),
            Command::new(0, 1, 7, 0, 8, 0, 0),
        ];

        let mut commands = Commands::default();
        for written in &bad {
            assert!(!commands.push(written, 0));
        }
        assert!(
            commands
                .list
                .iter()
                .all(|in_flight| in_flight.status == status::COMMAND && in_flight.length == 0)
        );
    }
}

//! Whose turn it is where several VPIDs fill the way out of a card.
//!
//! A machine carries out what a card's clients have posted in the same order in each turn, and the first ones can fill a link every time. So who
//! has waited for a way the longest goes first in the next turn: those that come before it and want the same way wait until it had its try.
//! Nobody waits for one that does not come: after that turn its place is void.

use nicforge_hwi::extoll::LINKS;

/// Ways out: the links, and this card itself.
pub(crate) const WAYS: usize = LINKS + 1;

/// One way.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// Who goes first in this turn, as long as it has not come.
    first: Option<u16>,
    /// Who has waited the longest of those that found no room in this turn, and since which ticket.
    longest: Option<(u64, u16)>,
    /// Messages that have left.
    left: u64,
}

/// All ways of a card.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    lines: [Line; WAYS],
    tickets: u64,
    /// Somebody waits, or is to go first.
    any: bool,
}

impl Lines {
    /// Whether `who` may send that way now.
    #[inline]
    pub(crate) fn admits(&mut self, way: usize, who: u16) -> bool {
        let first = &mut self.lines[way].first;
        if *first == Some(who) {
            *first = None;
        }
        first.is_none()
    }

    /// Messages have left that way.
    #[inline]
    pub(crate) fn leave(&mut self, way: usize, messages: u32) {
        self.lines[way].left += u64::from(messages);
    }

    /// Messages that have left that way so far.
    pub(crate) fn left(&self, way: usize) -> u64 {
        self.lines[way].left
    }

    /// `who` finds no room, as before if it has a ticket already. Gives its ticket.
    pub(crate) fn wait(&mut self, way: usize, who: u16, ticket: Option<u64>) -> u64 {
        let ticket = ticket.unwrap_or_else(|| {
            self.tickets += 1;
            self.tickets
        });
        let longest = &mut self.lines[way].longest;
        if longest.is_none_or(|(earliest, _)| ticket < earliest) {
            *longest = Some((ticket, who));
        }
        self.any = true;
        ticket
    }

    /// A turn is over.
    #[inline]
    pub(crate) fn turn(&mut self) {
        if self.any {
            self.next();
        }
    }

    #[cold]
    fn next(&mut self) {
        self.any = false;
        for line in &mut self.lines {
            line.first = line.longest.take().map(|(_, who)| who);
            self.any |= line.first.is_some();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_waited_the_longest_goes_first_on_its_way_and_only_there() {
        let mut lines = Lines::default();
        let third = lines.wait(2, 3, None);
        let fifth = lines.wait(2, 5, None);
        assert!(lines.admits(2, 0));
        lines.turn();
        assert!(!lines.admits(2, 0) && lines.admits(1, 0));
        assert!(lines.admits(2, 3) && lines.admits(2, 0));
        assert_eq!(lines.wait(2, 5, Some(fifth)), fifth);
        let again = lines.wait(2, 3, None);
        assert!(again > fifth && fifth > third);
        lines.turn();
        assert!(!lines.admits(2, 3) && lines.admits(2, 5));
    }

    #[test]
    fn nobody_waits_for_one_that_does_not_come() {
        let mut lines = Lines::default();
        lines.wait(0, 7, None);
        lines.turn();
        assert!(!lines.admits(0, 1));
        lines.turn();
        assert!(lines.admits(0, 1));
    }
}

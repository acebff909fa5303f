//! Commands that print samples of a served machine: once, or again and again until Ctrl-C.

use std::{io::IsTerminal, time::Duration};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{
    failure::{ErrorContext, Failure, print_line, print_line_unless_signalled},
    signals::Signals,
};

/// ANSI sequences that clear the terminal and move the cursor to its beginning.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Prints the text of `sample`: once, or `every` so often until a signal comes. With `redraws`, a
/// sample takes the place of the one before it, if standard output is a terminal. Returns the exit
/// code.
pub(crate) fn print(
    every: Option<Duration>,
    redraws: bool,
    mut sample: impl FnMut() -> Result<String, Failure>,
) -> Result<u8, Failure> {
    // A single sample leaves signals their usual effect, which is to end the process at once.
    let signals = every.map(|_| Signals::block()).transpose().context(|| "signals".into())?;

    loop {
        let text = sample()?;
        let (Some(every), Some(signals)) = (every, &signals) else {
            print_line(text)?;
            return Ok(0);
        };
        let clear = if redraws && std::io::stdout().is_terminal() { CLEAR } else { "" };
        if !print_line_unless_signalled(clear, text, signals)? {
            return Ok(0);
        }

        let mut fds = [PollFd::new(signals.fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(every).unwrap_or(PollTimeout::MAX);
        if poll(&mut fds, timeout).is_ok_and(|ready| ready > 0) && signals.take().is_some() {
            return Ok(0);
        }
    }
}

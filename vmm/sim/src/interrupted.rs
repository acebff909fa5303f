//! The question whether the user has ended a run.

use std::fmt;

/// Asks whether the user has ended a run. Long simulations ask every few thousand turns, and then
/// end.
#[derive(Clone, Copy)]
pub struct Interrupted<'a>(&'a dyn Fn() -> bool);

impl<'a> Interrupted<'a> {
    /// Returns a question that `ask` answers.
    pub fn new(ask: &'a dyn Fn() -> bool) -> Self {
        Self(ask)
    }

    /// Returns whether the user has ended the run.
    pub fn ask(self) -> bool {
        (self.0)()
    }
}

/// The run that the user cannot end.
impl Default for Interrupted<'_> {
    fn default() -> Self {
        Self(&|| false)
    }
}

impl fmt::Debug for Interrupted<'_> {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("Interrupted")
    }
}

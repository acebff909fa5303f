//! A check of whether the user has ended a run.

use std::fmt;

/// Checks whether the user has ended a run. Long simulations check every few thousand turns, and
/// then end.
#[derive(Clone, Copy)]
pub struct Interrupted<'a>(&'a dyn Fn() -> bool);

impl<'a> Interrupted<'a> {
    /// Returns a handle whose [`Interrupted::is_interrupted`] calls `poll`.
    pub fn new(poll: &'a dyn Fn() -> bool) -> Self {
        Self(poll)
    }

    /// Returns whether the user has ended the run.
    pub fn is_interrupted(self) -> bool {
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

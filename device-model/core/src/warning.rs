//! The log line that says where it goes wrong: one for each error bit that a device sets, each
//! packet that it drops, and each access or command that it refuses.
//!
//! A device describes the event ([`Warning`]) and passes it to [`Context::warn`], which adds the
//! names of the function and of the attachment. All lines have the same fields, and `tracing` gets
//! them at the level `WARN`, with the target of this module.
//!
//! A client can cause such events without end. Each function therefore has [`MAX_LINES`] lines in a
//! second of the machine's time. The events beyond are only counted, and one line says how many
//! they were. An event that is not logged costs a comparison, and nothing is formatted for it.
//!
//! [`Context::warn`]: crate::context::Context::warn

use std::fmt::{self, Display, Formatter};

use tracing::field::display;

use crate::{
    ids::{Address, AttachmentId},
    spec::FunctionSpec,
    time::Nanos,
};

/// Number of lines that the log gets of a function in a second of the machine's time.
pub const MAX_LINES: u32 = 10;
/// The time after which a function may log [`MAX_LINES`] again, in nanoseconds.
const INTERVAL: u64 = 1_000_000_000;

/// The answer of a device to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// It has refused an access or a command.
    Refused,
    /// It has dropped a packet.
    Dropped,
    /// It has set an error bit, or stopped a queue.
    Failed,
}

impl Effect {
    fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Dropped => "dropped",
            Self::Failed => "failed",
        }
    }
}

/// An event that a device logs.
///
/// ```
/// # use nicforge_core::{ids::Address, warning::Warning};
/// let at = Address { bar: 0, offset: 0x40 };
/// let warning = Warning::refused(&"a message has at most 120 bytes").register(at).value(4096);
/// ```
#[derive(Clone, Copy)]
pub struct Warning<'a> {
    effect: Effect,
    /// The rule that was broken.
    rule: &'a (dyn Display + Sync),
    register: Option<Address>,
    value: Option<u64>,
}

impl<'a> Warning<'a> {
    /// Returns the warning of a refused access or command. `rule` is the rule that it has broken.
    pub fn refused(rule: &'a (dyn Display + Sync)) -> Self {
        Self::new(Effect::Refused, rule)
    }

    /// Returns the warning of a dropped packet. `rule` is the reason.
    pub fn dropped(rule: &'a (dyn Display + Sync)) -> Self {
        Self::new(Effect::Dropped, rule)
    }

    /// Returns the warning of an error that a device has noted, such as an error bit or a queue
    /// that has stopped. `rule` is the rule that was broken.
    pub fn failed(rule: &'a (dyn Display + Sync)) -> Self {
        Self::new(Effect::Failed, rule)
    }

    fn new(effect: Effect, rule: &'a (dyn Display + Sync)) -> Self {
        Self { effect, rule, register: None, value: None }
    }

    /// Adds the register that the event is about.
    #[must_use]
    pub fn register(self, at: Address) -> Self {
        Self { register: Some(at), ..self }
    }

    /// Adds the value that the event is about: that of a write, or an address, a queue's number or
    /// a count, as the rule says.
    #[must_use]
    pub fn value(self, value: u64) -> Self {
        Self { value: Some(value), ..self }
    }

    /// Adds the value of a register write. A write of more than 8 bytes has none.
    #[must_use]
    pub fn written(self, data: &[u8]) -> Self {
        let mut value = [0; 8];
        match value.get_mut(..data.len()) {
            Some(bytes) => bytes.copy_from_slice(data),
            None => return self,
        }
        self.value(u64::from_le_bytes(value))
    }

    /// Returns what the device has done: `refused`, `dropped` or `failed`.
    pub fn effect(&self) -> &'static str {
        self.effect.name()
    }

    /// Returns the rule that was broken.
    pub fn rule(&self) -> &'a (dyn Display + Sync) {
        self.rule
    }

    /// Returns the register that the event is about, if any.
    pub fn address(&self) -> Option<Address> {
        self.register
    }

    /// Returns the value that the event is about, if any.
    pub fn given_value(&self) -> Option<u64> {
        self.value
    }

    /// Logs the warning of a function, unless the function's lines are used up.
    #[cold]
    pub(crate) fn log(
        self,
        limit: &mut WarningLimit,
        now: Nanos,
        node: &str,
        spec: &FunctionSpec,
        from: Option<AttachmentId>,
    ) {
        if !tracing::enabled!(tracing::Level::WARN) {
            return;
        }
        if limit.is_over(now) {
            limit.log_suppressed(node);
        }
        if !limit.take_line(now) {
            return;
        }

        let attachment = from.and_then(|id| spec.attachments.get(usize::from(id.0)));
        let attachment = attachment.map(|attachment| attachment.name.as_str());
        let register = self.register.map(|at| display(Register(at)));
        let value = self.value.map(|value| display(Hex(value)));
        tracing::warn!(node, attachment, register, value, rule = %self.rule, "{}", self.effect.name());
    }
}

impl fmt::Debug for Warning<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Warning")
            .field("effect", &self.effect)
            .field("rule", &format_args!("{}", self.rule))
            .field("register", &self.register)
            .field("value", &self.value)
            .finish()
    }
}

/// A register in a line: its BAR and its offset there.
struct Register(Address);

impl Display for Register {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Address { bar, offset } = self.0;
        write!(f, "BAR{bar}+{offset:#x}")
    }
}

/// A value in a line.
struct Hex(u64);

impl Display for Hex {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The lines of a function in the current interval.
#[derive(Debug, Default)]
pub(crate) struct WarningLimit {
    /// Start of the interval.
    begin: Nanos,
    /// Lines logged since then.
    lines: u32,
    /// Warnings since the last line that were only counted.
    suppressed: u64,
}

impl WarningLimit {
    /// Returns whether the interval is over in which warnings were suppressed.
    #[inline]
    pub(crate) fn is_over(&self, now: Nanos) -> bool {
        self.suppressed > 0 && now >= self.begin.after(INTERVAL)
    }

    /// Takes a line of the interval that `now` lies in. Returns false, and counts the warning, if
    /// none is left.
    fn take_line(&mut self, now: Nanos) -> bool {
        if self.lines == 0 || now >= self.begin.after(INTERVAL) {
            (self.begin, self.lines) = (now, 0);
        }

        let has_line = self.lines < MAX_LINES;
        if has_line {
            self.lines += 1;
        } else {
            self.suppressed += 1;
        }
        has_line
    }

    /// Counts warnings as suppressed.
    pub(crate) fn suppress(&mut self, count: u64) {
        if tracing::enabled!(tracing::Level::WARN) {
            self.suppressed += count;
        }
    }

    /// Logs how many warnings were suppressed, if there were any.
    #[cold]
    pub(crate) fn log_suppressed(&mut self, node: &str) {
        let suppressed = std::mem::take(&mut self.suppressed);
        if suppressed > 0 {
            tracing::warn!(node, suppressed, "more warnings came than the log takes in a second");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_a_number_of_lines_and_begins_with_the_first_one() {
        let mut limit = WarningLimit::default();
        let start = Nanos(500);
        assert!((0..MAX_LINES).all(|_| limit.take_line(start)));
        assert!(!limit.take_line(start.after(INTERVAL - 1)));
        assert!(!limit.is_over(start.after(INTERVAL - 1)));

        assert!(limit.is_over(start.after(INTERVAL)));
        assert!(limit.take_line(start.after(INTERVAL)));
        assert_eq!(limit.suppressed, 1);
    }
}

//! Panics of devices: what is reported of one.
//!
//! A device whose method panics is dropped, and its function is *out of service* from then on: see
//! [`crate::machine::Machine::device_panic`]. The other functions of the machine continue.
//!
//! Containment needs unwinding. A program that is built with `panic = "abort"` ends at the first
//! panic, and should report at its start that [`CONTAINS_PANICS`] is false.

use std::{
    any::Any,
    fmt,
    panic::{self, AssertUnwindSafe},
};

/// Whether this build contains panics of devices. It is false with `panic = "abort"`.
pub const CONTAINS_PANICS: bool = cfg!(panic = "unwind");

/// Longest message that is kept of a panic, in bytes.
const MAX_MESSAGE: usize = 1024;

/// A method of [`crate::device::Device`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceMethod {
    /// `spec`
    Spec,
    /// `attached`
    Attached,
    /// `detached`
    Detached,
    /// `reset`
    Reset,
    /// `read`
    Read,
    /// `write`
    Write,
    /// `drain`, or `write` for a record of a posted-write ring
    Drain,
    /// `dma_done`
    DmaDone,
    /// `leases_ended`
    LeasesEnded,
    /// `link_changed`
    LinkChanged,
    /// `step`
    Step,
    /// `counters`
    Counters,
    /// `peek`
    Peek,
}

impl DeviceMethod {
    /// Returns the method's name in Rust.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::Attached => "attached",
            Self::Detached => "detached",
            Self::Reset => "reset",
            Self::Read => "read",
            Self::Write => "write",
            Self::Drain => "drain",
            Self::DmaDone => "dma_done",
            Self::LeasesEnded => "leases_ended",
            Self::LinkChanged => "link_changed",
            Self::Step => "step",
            Self::Counters => "counters",
            Self::Peek => "peek",
        }
    }
}

/// The panic that took a function out of service. It is displayed as `panicked in METHOD: MESSAGE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePanic {
    /// The method that was in progress.
    pub method: DeviceMethod,
    /// The panic's message in one line of at most 1024 bytes.
    pub message: String,
}

impl fmt::Display for DevicePanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "panicked in {}: {}", self.method.name(), self.message)
    }
}

/// Returns the message in a panic's payload, as it is.
pub fn text_of(payload: &(dyn Any + Send)) -> &str {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text.as_str(),
        (None, None) => "a panic without a message",
    }
}

/// Returns the message of a panic in one line of at most 1024 bytes, and drops the payload.
pub fn message_of(payload: Box<dyn Any + Send>) -> String {
    let mut message = String::new();
    for word in text_of(payload.as_ref()).split_whitespace() {
        if !message.is_empty() {
            message.push(' ');
        }
        message.push_str(word);
        if message.len() > MAX_MESSAGE {
            let end = (0..=MAX_MESSAGE).rev().find(|&end| message.is_char_boundary(end));
            message.truncate(end.unwrap_or(0));
            break;
        }
    }

    // The payload belongs to the device, so its drop can panic too. The payload of that panic is
    // leaked: its drop might panic again.
    if let Err(second) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }

    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_one_line_and_bounded() {
        assert_eq!(message_of(Box::new("one\n  two".to_owned())), "one two");
        assert_eq!(message_of(Box::new("three")), "three");
        assert_eq!(message_of(Box::new(3)), "a panic without a message");
        assert_eq!(message_of(Box::new("ä".repeat(2000))).len(), MAX_MESSAGE);
    }

    #[test]
    fn payload_whose_drop_panics_is_dropped() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                std::panic::panic_any(0);
            }
        }

        assert_eq!(message_of(Box::new(Bomb)), "a panic without a message");
    }
}

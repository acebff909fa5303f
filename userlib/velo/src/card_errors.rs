//! Errors that the card counts in its mirror.

use std::sync::atomic::Ordering;

use nicforge_hwi::{extoll::mirror, extoll_velo::address};
use nicforge_shm::SharedU64;

use crate::{Address, CONTROL_TAG, DeviceError, Error, card::MirrorPage};

/// The card's count of errors, and how many of them this port has handled.
///
/// Invariant: `reported` and `checked` are values that `count` had. Errors after `reported` are
/// still to be returned to the caller. Errors after `checked` may still name a dropped control
/// message.
pub(crate) struct CardErrors {
    count: SharedU64,
    last: SharedU64,
    reported: u64,
    checked: u64,
}

/// Errors that were not returned to the caller yet.
#[derive(Clone, Copy)]
pub(crate) struct UnreportedErrors {
    /// Number of these errors.
    pub(crate) count: u64,
    /// The last error of all, reported or not.
    pub(crate) last: ErrorWord,
}

/// The card's description of its last error.
#[derive(Clone, Copy)]
pub(crate) struct ErrorWord(u64);

impl ErrorWord {
    /// Returns the error.
    pub(crate) fn error(self) -> DeviceError {
        DeviceError::of_word(self.0)
    }

    /// Returns the receiver of a control message that the card's watchdog has dropped. On a port
    /// without flow control the message is the application's.
    pub(crate) fn dropped_control(self) -> Option<Address> {
        // The word has the offset of the send above the error code.
        let tag = address::decode(self.0 >> 8 & 0xffff_ffff).tag;

        match self.error() {
            DeviceError::Watchdog { to } if tag == CONTROL_TAG => Some(to),
            _ => None,
        }
    }
}

impl CardErrors {
    /// Opens the words of a mirror page that count errors.
    pub(crate) fn open(page: &MirrorPage) -> Result<Self, Error> {
        Ok(Self {
            count: page.word(mirror::ERRORS)?,
            last: page.word(mirror::LAST_ERROR)?,
            reported: 0,
            checked: 0,
        })
    }

    /// Counts all errors until now as handled.
    pub(crate) fn skip(&mut self) {
        self.reported = self.count.load(Ordering::Acquire);
        self.checked = self.reported;
    }

    /// Returns whether the card has found errors since the last report.
    #[inline]
    pub(crate) fn has_unreported(&self) -> bool {
        self.count.load(Ordering::Acquire) != self.reported
    }

    /// Returns the errors since the last report.
    pub(crate) fn unreported(&self) -> UnreportedErrors {
        let count = self.count.load(Ordering::Acquire).wrapping_sub(self.reported);
        UnreportedErrors { count, last: ErrorWord(self.last.load(Ordering::Acquire)) }
    }

    /// As [`CardErrors::unreported`], and counts these errors as reported.
    pub(crate) fn take_unreported(&mut self) -> UnreportedErrors {
        let errors = self.unreported();
        self.reported = self.reported.wrapping_add(errors.count);
        errors
    }

    /// Returns the last error if it is not checked yet, and counts it as checked.
    #[inline]
    pub(crate) fn take_unchecked(&mut self) -> Option<ErrorWord> {
        let count = self.count.load(Ordering::Acquire);
        if count == self.checked {
            return None;
        }

        self.checked = count;
        Some(ErrorWord(self.last.load(Ordering::Acquire)))
    }
}

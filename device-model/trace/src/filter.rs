//! Which events are kept.

use std::ops::Range;

use nicforge_core::ids::{AttachmentId, FunctionId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    names::Names,
    record::{Kind, Record, What},
};

/// Selects events. An event passes if it meets each of the conditions that are given.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// The functions, or their attachments. An empty list lets all pass.
    sources: Vec<(FunctionId, Option<AttachmentId>)>,
    /// Mask of the kinds that do not pass.
    hidden_kinds: u16,
    /// Ranges of BARs. If there is one, register accesses elsewhere do not pass, and no other
    /// events do.
    registers: Vec<(FunctionId, u8, Range<u64>)>,
}

/// The conditions of a [`Filter`], by names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// Functions and attachments: `cn0`, or `cn0.core1`. An empty list means all.
    pub sources: Vec<String>,
    /// Kinds of events. An empty list means all.
    pub kinds: Vec<Kind>,
    /// Registers by their declared names. An empty list means all events; otherwise only accesses
    /// of these registers pass.
    pub registers: Vec<String>,
}

/// Reason why a [`Selection`] does not suit a machine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FilterError {
    /// No function or attachment has the name.
    #[error("there is no node or attachment {name}; there are {}", known.join(", "))]
    NoSource {
        /// The name.
        name: String,
        /// Some names that exist.
        known: Vec<String>,
    },
    /// No selected function has a register of that name.
    #[error("no selected device declares a register {name}; declared are {}", known.join(", "))]
    NoRegister {
        /// The name.
        name: String,
        /// Some names that exist.
        known: Vec<String>,
    },
}

impl Filter {
    /// Returns a filter that lets all events pass.
    pub fn all() -> Self {
        Self::default()
    }

    /// Returns the filter of a selection on the machine with these names.
    ///
    /// # Errors
    /// [`FilterError`] for a name that the machine does not have.
    pub fn new(selection: &Selection, names: &Names) -> Result<Self, FilterError> {
        let mut filter = Self::all();
        for name in &selection.sources {
            filter.sources.push(names.source(name)?);
        }
        if !selection.kinds.is_empty() {
            let shown: u16 = selection.kinds.iter().fold(0, |mask, kind| mask | kind.bit());
            filter.hidden_kinds = !shown;
        }
        for name in &selection.registers {
            let of_functions = names.register_ranges(name, |function| filter.has_source(function, None))?;
            filter.registers.extend(of_functions);
        }
        Ok(filter)
    }

    /// Returns whether events of the function, or of its attachment, are selected.
    fn has_source(&self, function: FunctionId, attachment: Option<AttachmentId>) -> bool {
        let is_meant = |&(of, only): &(FunctionId, Option<AttachmentId>)| {
            of == function && (only.is_none() || attachment.is_none() || only == attachment)
        };
        self.sources.is_empty() || self.sources.iter().any(is_meant)
    }

    /// Returns whether a record passes.
    pub fn accepts(&self, record: &Record) -> bool {
        let Record { function, attachment, what, .. } = record;
        let is_selected =
            self.hidden_kinds & what.kind().bit() == 0 && self.has_source(*function, *attachment);
        is_selected && (self.registers.is_empty() || self.has_register(*function, what))
    }

    /// Returns whether an event accesses a selected register.
    fn has_register(&self, function: FunctionId, what: &What) -> bool {
        let (at, length) = match *what {
            What::Read { at, data } | What::Write { at, data } | What::Posted { at, data } => {
                (at, data.length())
            }
            What::Stalled { at } | What::Resumed { at } => (at, 1),
            _ => return false,
        };
        let end = at.offset.saturating_add(length.into());
        self.registers.iter().any(|(of, bar, range)| {
            *of == function && *bar == at.bar && at.offset < range.end && range.start < end
        })
    }
}

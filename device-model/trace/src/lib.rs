//! Records of a machine's trace, and what a person reads of them.
//!
//! A machine passes each [`Event`] to a sink. This crate has two:
//!
//! - a [`Recorder`] keeps the last events in memory, at a bounded cost for each. It suits a machine
//!   that serves clients: another thread reads the records later, and what did not fit counts as
//!   lost.
//! - a [`Stream`] writes each event at once. It suits tests and virtual time, where the machine may
//!   wait for a file.
//!
//! A [`Record`] becomes an [`Entry`] by the [`Names`] of the machine, and a [`Writer`] gives
//! entries the form of text lines, of JSON lines, or of a file that Perfetto's UI opens. A
//! [`Filter`] selects events before they are kept.
//!
//! ```
//! use nicforge_core::machine::Machine;
//! use nicforge_trace::{Filter, Format, Names, Recorder, Writer};
//!
//! let mut machine = Machine::new();
//! machine.set_trace(Some(Box::new(Recorder::new(Filter::all(), 1000))));
//! // ... the machine runs ...
//!
//! let names = Names::of(&mut machine);
//! let batch = machine.trace_sink::<Recorder>().unwrap().read(0, 1000);
//! let mut text = Writer::new(Format::Text, Vec::new());
//! for record in &batch.records {
//!     text.write(&names.entry(record))?;
//! }
//! text.finish()?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! [`Event`]: nicforge_core::trace::Event

mod capture;
mod entry;
mod filter;
mod names;
mod observer;
mod perfetto;
mod record;
mod recorder;
mod stream;
mod writer;

pub use self::{
    capture::{Capture, CaptureError, PREFIX},
    entry::{Crossed, Entry},
    filter::{Filter, FilterError, Selection},
    names::Names,
    observer::Observer,
    record::{Bytes, KEPT, Kind, Record, Text, What},
    recorder::{Batch, Recorder},
    stream::Stream,
    writer::{Format, Writer},
};

//! The sink of a served machine: a recorder and captures at once.

use std::any::Any;

use nicforge_core::{
    ids::{AttachmentId, FunctionId},
    machine::Machine,
    time::Nanos,
    trace::{Event, TraceSink},
};

use crate::{capture::Capture, record::KEPT, recorder::Recorder};

/// A sink with a recorder, with captures, or with both.
#[derive(Debug, Default)]
pub struct Observer {
    /// The recorder, if events are recorded.
    pub recorder: Option<Recorder>,
    /// The captures, one for each file.
    pub captures: Vec<Capture>,
}

impl Observer {
    /// Changes the observer of a machine, which takes the place of another sink, and taps the
    /// links that it needs. One that observes nothing any more is removed.
    pub fn change<R>(machine: &mut Machine, change: impl FnOnce(&mut Self) -> R) -> R {
        let former: Option<Box<dyn Any>> = machine.set_trace(None).map(|sink| sink as Box<dyn Any>);
        let mut observer = former.and_then(|sink| sink.downcast::<Self>().ok()).unwrap_or_default();
        let result = change(&mut observer);

        let Self { recorder, captures } = &*observer;
        machine.fabric().set_taps(recorder.is_some().then_some(KEPT));
        captures.iter().for_each(|capture| capture.set_taps(machine.fabric()));
        if recorder.is_some() || !captures.is_empty() {
            machine.set_trace(Some(observer));
        }
        result
    }
}

impl TraceSink for Observer {
    fn event(
        &mut self,
        now: Nanos,
        function: FunctionId,
        attachment: Option<AttachmentId>,
        event: &Event<'_>,
    ) {
        if let Some(recorder) = &mut self.recorder {
            recorder.event(now, function, attachment, event);
        }
        if let Event::Packet(crossing) = event {
            self.captures.iter_mut().for_each(|capture| capture.add(now.0, crossing));
        }
    }
}

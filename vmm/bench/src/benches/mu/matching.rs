//! Messages of 8 bytes with matching over Message Units: one thread is both ranks.

use std::time::{Duration, Instant};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::Deadline;
use nicforge_hwi::mu::FIRST_SUBGROUP;
use nicforge_matching::Endpoint;
use nicforge_mpi_programs::{
    drive,
    message_rate::{End, Parameters, Side},
};
use nicforge_mu_transport::{Config, Job, MuTransport, RankAddress};

use super::nodes::{BYTES, STEP_TIMEOUT};
use crate::{
    contest::Measurement,
    machine::{AttachmentOfNode, Host, never_sleeping_wait},
    ranks::endpoints_of,
};

/// Messages of a window.
const WINDOW: u32 = 64;
/// The subgroup of both ranks. The one before belongs to the bare FIFOs.
const SUBGROUP: u16 = 1;
/// Windows of an exchange of messages. The clock is read after each exchange.
const WINDOWS: u32 = 16;

/// A rank on each of two nodes, which have found each other.
pub(super) struct Ranks {
    endpoints: Vec<Endpoint<MuTransport>>,
    /// The last matching context in use.
    context: u32,
}

impl Ranks {
    /// Opens the ranks.
    pub(super) fn open(machine: &Host) -> Result<Self, Failure> {
        let job = Job::new((0..2).map(|node| RankAddress { node, subgroup: SUBGROUP }).collect());
        let open = |node| {
            let attachment = AttachmentOfNode { name: "s1", index: usize::from(FIRST_SUBGROUP + SUBGROUP) };
            let device = machine.open(node, attachment, STEP_TIMEOUT)?;
            MuTransport::open(&device, &job, Config::default()).context(|| format!("the rank of {node}"))
        };

        let ranks = vec![open("bgq0")?, open("bgq1")?];
        Ok(Self { endpoints: endpoints_of(ranks, MuTransport::is_complete, STEP_TIMEOUT)?, context: 0 })
    }

    /// Measures the rate of messages, in windows that the receiver answers.
    pub(super) fn rate(&mut self, sustained: Duration) -> Result<Measurement, Failure> {
        let (start, mut messages) = (Instant::now(), 0);
        while start.elapsed() < sustained {
            self.context += 1;
            let terms =
                Parameters { bytes: BYTES as usize, window: WINDOW, windows: WINDOWS, context: self.context };
            let [sender, receiver] = &mut self.endpoints[..] else {
                return Err(Failure::result("there are not two ranks"));
            };
            let mut sides = [
                Side::new(receiver, End::Receiver, 0, terms).context(|| "a receiver".into())?,
                Side::new(sender, End::Sender, 1, terms).context(|| "a sender".into())?,
            ];
            drive(&mut sides, Deadline::after(STEP_TIMEOUT), &mut never_sleeping_wait())
                .context(|| "the message rate".into())?;
            messages += terms.messages();
        }
        Ok(Measurement::of_rate(messages as f64 / start.elapsed().as_secs_f64()))
    }
}

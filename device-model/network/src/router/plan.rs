//! The plan of a router: the part that all routers of one description share.

use std::sync::Arc;

use nicforge_core::fabric::{MAX_CHANNELS, Ports};

use super::{
    MAX_INPUTS, PRIORITIES, RouterError, RouterSpec, Source, requests::Inputs, slots::TrackedChannels,
};

/// The part that the routers of one description share: the numbers of their inputs, and the rules.
///
/// A network of many nodes takes less memory, and is faster, if all its routers have one plan
/// ([`super::Router::with_plan`]).
#[derive(Clone, Debug)]
pub struct RouterPlan(pub(super) Arc<Plan>);

impl RouterPlan {
    /// Returns the plan of routers of a description.
    ///
    /// # Errors
    /// [`RouterError`] names the value that does not fit.
    pub fn new(spec: &RouterSpec) -> Result<Self, RouterError> {
        spec.check()?;

        let layout = Layout::new(spec);
        let vcs = usize::from(layout.vcs);
        let longest_credits = spec.longest_credits();
        Ok(Self(Arc::new(Plan {
            rules: Rules::new(spec, &layout),
            tracked: TrackedChannels::new(&spec.link.credits[..vcs], spec.bubble_vcs, longest_credits),
            layout,
            longest_credits,
            spec: spec.clone(),
        })))
    }
}

/// The contents of a [`RouterPlan`].
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) layout: Layout,
    pub(super) rules: Rules,
    /// Virtual channels with the bubble rule.
    pub(super) tracked: TrackedChannels,
    /// Credits of the longest packet.
    pub(super) longest_credits: u32,
    pub(super) spec: RouterSpec,
}

/// Numbers of ports and inputs. The input of a port's virtual channel is `vc * ports + port`;
/// those of the injection FIFOs follow.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) ports: u8,
    pub(super) vcs: u8,
    /// Number of inputs that are virtual channels.
    pub(super) links: usize,
    /// Mask of all ports, and of the inputs that are injection FIFOs.
    pub(super) all_ports: u64,
    pub(super) injection: Inputs,
    /// Source of each input.
    pub(super) sources: Vec<Source>,
}

impl Layout {
    fn new(spec: &RouterSpec) -> Self {
        let (ports, vcs) = (spec.ports, spec.priorities.len() as u8);
        let links = (0..vcs).flat_map(|vc| (0..ports).map(move |port| Source::Link { port, vc }));
        let fifos = (0..spec.injection.len() as u8).map(|fifo| Source::Injection { fifo });
        let sources: Vec<_> = links.chain(fifos).collect();
        let links = usize::from(ports) * usize::from(vcs);
        let all_ports = u64::MAX >> (64 - u32::from(ports));
        let injection = if links == MAX_INPUTS { 0 } else { Inputs::MAX << links };
        Self { ports, vcs, links, all_ports, injection, sources }
    }

    /// Returns the number of an input, if it exists.
    pub(super) fn input(&self, source: Source) -> Option<usize> {
        let input = match source {
            Source::Link { port, vc } if port < self.ports && vc < self.vcs => {
                usize::from(vc) * usize::from(self.ports) + usize::from(port)
            }
            Source::Link { .. } => return None,
            Source::Injection { fifo } => self.links + usize::from(fifo),
        };
        (input < self.sources.len()).then_some(input)
    }

    /// Returns the inputs that are links with a whole packet, and those with the head of one.
    #[inline]
    pub(super) fn arrived_inputs(&self, ports: &Ports<'_>) -> [Inputs; 2] {
        ports.arrivals_and_heads().map(|masks| {
            // Most routers have one or two virtual channels, for which a loop costs more than its
            // body.
            let mut inputs = masks[0] & self.all_ports;
            if self.vcs > 1 {
                inputs |= (masks[1] & self.all_ports) << self.ports;
            }
            if self.vcs > 2 {
                inputs |= self.further_inputs(masks);
            }
            inputs
        })
    }

    /// Returns the inputs with a set bit on virtual channels from the third on.
    #[inline(never)]
    fn further_inputs(&self, masks: &[u64; MAX_CHANNELS]) -> Inputs {
        let channels = masks.iter().zip(0..u32::from(self.vcs)).skip(2);
        channels
            .fold(0, |inputs, (mask, vc)| inputs | (mask & self.all_ports) << (vc * u32::from(self.ports)))
    }
}

/// The rules of a choice, which are the same for all ports.
#[derive(Debug)]
pub(super) struct Rules {
    /// Inputs of each priority.
    priorities: [Inputs; PRIORITIES],
    /// Inputs that are injection FIFOs.
    pub(super) injection: Inputs,
    /// The fabric reports each credit that a port waits for:
    /// [`nicforge_core::fabric::Ports::take_freed`].
    pub(super) reports_credits: bool,
}

impl Rules {
    fn new(spec: &RouterSpec, layout: &Layout) -> Self {
        let mut priorities = [0; PRIORITIES];
        for (input, source) in layout.sources.iter().enumerate() {
            let priority = match *source {
                Source::Link { vc, .. } => spec.priorities[usize::from(vc)],
                Source::Injection { fifo } => spec.injection[usize::from(fifo)].priority,
            };
            priorities[usize::from(priority)] |= 1 << input;
        }

        Self { priorities, injection: layout.injection, reports_credits: spec.link.delay > 0 }
    }

    /// Returns the highest priority of some inputs, and those of them that have it.
    #[inline]
    pub(super) fn highest(&self, inputs: Inputs) -> (usize, Inputs) {
        let first = inputs & self.priorities[0];
        if first != 0 {
            return (0, first);
        }
        let of_priority = self.priorities.iter().map(|of| inputs & of).enumerate();
        of_priority.into_iter().find(|(_, first)| *first != 0).unwrap_or((0, 0))
    }
}

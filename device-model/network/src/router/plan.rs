//! The plan of a router: the part that all routers of one description share.

use std::sync::Arc;

use nicforge_core::fabric::{CreditUnit, LinkSpec};

use super::{
    LinkInput, MAX_INPUTS, PRIORITIES, RouterError, RouterSpec, Source, requests::Inputs,
    slots::BubbleChannels,
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
            bubble_channels: BubbleChannels::new(&spec.link.credits[..vcs], spec.bubble_vcs, longest_credits),
            layout,
            longest_credits,
            spec: spec.clone(),
        })))
    }
}

/// Returns whether packets take no time on a link, and one credit each.
fn takes_no_time(link: &LinkSpec) -> bool {
    link.delay == 0 && link.bits_per_second == 0 && link.credit_unit == CreditUnit::Packets
}

/// The contents of a [`RouterPlan`].
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) layout: Layout,
    pub(super) rules: Rules,
    /// Virtual channels with the bubble rule.
    pub(super) bubble_channels: BubbleChannels,
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
    /// Number of inputs.
    pub(super) inputs: usize,
    /// Source of each input.
    sources: [Source; MAX_INPUTS],
}

impl Layout {
    fn new(spec: &RouterSpec) -> Self {
        let (ports, vcs) = (spec.ports, spec.priorities.len() as u8);
        let links = (0..vcs).flat_map(|vc| (0..ports).map(move |port| Source::Link { port, vc }));
        let fifos = (0..spec.injection.len() as u8).map(|fifo| Source::Injection { fifo });
        let mut sources = [Source::Injection { fifo: 0 }; MAX_INPUTS];
        let mut inputs = 0;
        for (slot, source) in sources.iter_mut().zip(links.chain(fifos)) {
            *slot = source;
            inputs += 1;
        }
        let links = usize::from(ports) * usize::from(vcs);
        let all_ports = u64::MAX >> (64 - u32::from(ports));
        let injection = if links == MAX_INPUTS { 0 } else { Inputs::MAX << links };
        Self { ports, vcs, links, all_ports, injection, inputs, sources }
    }

    /// Returns the source of an input.
    #[inline(always)]
    pub(super) fn source(&self, input: usize) -> Source {
        self.sources[input % MAX_INPUTS]
    }

    /// Returns an input that is a virtual channel.
    #[inline(always)]
    pub(super) fn link_input(&self, input: usize) -> LinkInput {
        let Source::Link { port, vc } = self.source(input) else {
            return LinkInput { number: input as u8, port: 0, vc: 0 };
        };
        LinkInput { number: input as u8, port, vc }
    }

    /// Returns the sources of all inputs, in their order.
    fn all_sources(&self) -> &[Source] {
        &self.sources[..self.inputs]
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
        (input < self.inputs).then_some(input)
    }
}

/// The rules of a choice, which are the same for all ports.
#[derive(Debug)]
pub(super) struct Rules {
    /// Inputs of each priority.
    priorities: [Inputs; PRIORITIES],
    /// Priority of each input.
    of_input: [u8; MAX_INPUTS],
    /// Inputs that are injection FIFOs.
    pub(super) injection: Inputs,
    /// Packets move in rows: the links take no time, and each packet takes one credit.
    pub(super) has_rows: bool,
}

impl Rules {
    fn new(spec: &RouterSpec, layout: &Layout) -> Self {
        let (mut priorities, mut of_input) = ([0; PRIORITIES], [0; MAX_INPUTS]);
        for (input, source) in layout.all_sources().iter().enumerate() {
            let priority = match *source {
                Source::Link { vc, .. } => spec.priorities[usize::from(vc)],
                Source::Injection { fifo } => spec.injection[usize::from(fifo)].priority,
            };
            priorities[usize::from(priority)] |= 1 << input;
            of_input[input] = priority;
        }

        Self { priorities, of_input, injection: layout.injection, has_rows: takes_no_time(&spec.link) }
    }

    /// Returns the priority of an input.
    #[inline(always)]
    pub(super) fn priority(&self, input: usize) -> u8 {
        self.of_input[input % MAX_INPUTS]
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

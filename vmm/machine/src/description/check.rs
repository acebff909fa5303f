//! Checks of the values in a machine file.

use std::{collections::BTreeSet, fmt, ops::Range};

use nicforge_hwi::{extoll, tree};
use toml::Spanned;

use super::{
    Description, Extoll, Link, MAX_COMPUTE_NODES,
    error::{DescriptionError, FilePosition},
};

/// Checks a description against the text that it was read from.
pub(super) struct Checker<'a> {
    pub(super) text: &'a str,
    pub(super) path: &'a str,
}

impl Checker<'_> {
    /// Checks everything, and returns the first error.
    pub(super) fn check(&self, description: &Description) -> Result<(), DescriptionError> {
        self.check_name(&description.name)?;
        if description.pset.is_empty() && description.extoll.is_empty() && description.function.is_empty() {
            let expected = "at least one [[pset]], [[extoll]] or [[function]]";
            return Err(self.value_error(0..0, "the machine", "empty", expected));
        }

        let mut nodes = 0;
        for pset in &description.pset {
            let compute = &pset.as_ref().compute_nodes;
            self.check_range("compute_nodes", compute, 1, MAX_COMPUTE_NODES)?;
            nodes += compute.as_ref() + 1;
            if nodes > tree::MAX_NODES {
                let expected = format!("at most {} nodes in all psets together", tree::MAX_NODES);
                return Err(self.value_error(compute.span(), "compute_nodes", compute.as_ref(), expected));
            }

            if let Some(depth) = &pset.as_ref().fifo_depth
                && (!depth.as_ref().is_power_of_two() || *depth.as_ref() > tree::MAX_FIFO_DEPTH)
            {
                let expected = format!("a power of two, at most {}", tree::MAX_FIFO_DEPTH);
                return Err(self.value_error(depth.span(), "fifo_depth", depth.as_ref(), expected));
            }

            self.check_link(&pset.as_ref().link)?;
        }

        let mut cards = 0;
        for network in &description.extoll {
            cards += self.check_extoll(network)?;
            if cards > u64::from(extoll::MAX_NODES) {
                let expected = format!("at most {} cards in all networks together", extoll::MAX_NODES);
                return Err(self.value_error(network.span(), "the networks' cards", cards, expected));
            }
        }

        // A file of the largest size has tens of thousands of functions, so each name is looked up
        // once.
        let mut names: BTreeSet<_> = crate::build::network_node_names(description).collect();
        for function in &description.function {
            let name = &function.as_ref().name;
            self.check_name(name)?;

            if !names.insert(name.as_ref().clone()) {
                return Err(self.value_error(
                    name.span(),
                    "name",
                    name.as_ref(),
                    "a name that no other node has",
                ));
            }
        }
        Ok(())
    }

    /// Checks a network, and returns its number of cards.
    fn check_extoll(&self, network: &Spanned<Extoll>) -> Result<u64, DescriptionError> {
        let extoll = network.as_ref();

        if let Some(vpids) = &extoll.vpids {
            self.check_range("vpids", vpids, 1, extoll::MAX_VPIDS)?;
        }
        if let Some(watchdog) = &extoll.watchdog_ms {
            self.check_range("watchdog_ms", watchdog, 0, 60_000)?;
        }
        if let Some(watchdog) = &extoll.rma_watchdog_ms {
            self.check_range("rma_watchdog_ms", watchdog, 0, 60_000)?;
        }

        self.check_link(&extoll.link)?;

        match extoll.topology() {
            Some(Ok(topology)) => Ok(topology.nodes().into()),
            Some(Err(error)) => {
                Err(self.value_error(network.span(), "the network", "impossible", error.to_string()))
            }
            None => {
                let expected = "one of torus = [2, 2, 2], hypercube = 3, mesh = 4";
                Err(self.value_error(network.span(), "the network's shape", "none or several", expected))
            }
        }
    }

    fn check_link(&self, link: &Link) -> Result<(), DescriptionError> {
        if let Some(delay) = &link.delay_ns {
            self.check_range("delay_ns", delay, 0, 1_000_000_000)?;
        }
        if let Some(credits) = &link.credits {
            self.check_range("credits", credits, 1, 1024)?;
        }

        if let Some(rate) = &link.gbit_s
            // The smallest rate is one bit a second. The value 0 means no limit.
            && !(*rate.as_ref() == 0.0 || (1e-9..=10_000.0).contains(rate.as_ref()))
        {
            return Err(self.value_error(
                rate.span(),
                "gbit_s",
                rate.as_ref(),
                "0 (no limit), or 1e-9 to 10000",
            ));
        }
        Ok(())
    }

    fn check_name(&self, name: &Spanned<String>) -> Result<(), DescriptionError> {
        let good = (1..=32).contains(&name.as_ref().len())
            && name.as_ref().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');

        if good {
            return Ok(());
        }

        Err(self.value_error(name.span(), "name", name.as_ref(), "1 to 32 letters, digits and '-'"))
    }

    fn check_range<T: PartialOrd + fmt::Display>(
        &self,
        what: &'static str,
        value: &Spanned<T>,
        least: T,
        most: T,
    ) -> Result<(), DescriptionError> {
        if *value.as_ref() >= least && *value.as_ref() <= most {
            return Ok(());
        }
        Err(self.value_error(value.span(), what, value.as_ref(), format!("{least} to {most}")))
    }

    fn value_error(
        &self,
        span: Range<usize>,
        what: &'static str,
        found: impl fmt::Display,
        expected: impl Into<String>,
    ) -> DescriptionError {
        DescriptionError::Value {
            position: FilePosition {
                path: self.path.to_owned(),
                line: line_of(self.text, span),
                message: None,
            },
            what,
            found: found.to_string(),
            expected: expected.into(),
        }
    }
}

/// Returns the number of the line in which a span begins, from 1.
pub(super) fn line_of(text: &str, span: Range<usize>) -> usize {
    let end = span.start.min(text.len());
    text.as_bytes()[..end].iter().filter(|&&byte| byte == b'\n').count() + 1
}

//! The ranks, all in one thread.

use std::time::{Duration, Instant};

use nicforge::{
    failure::{ErrorContext, Failure},
    serve::Served,
};
use nicforge_driver::{Deadline, Device, OpenOptions};
use nicforge_extoll_transport::{Config, ExtollTransport, Job};
use nicforge_matching::Endpoint;
use nicforge_mpi_programs::{
    drive,
    message_rate::{End, Parameters, Side},
    ping_pong,
    random_access::{Table, Updates},
};
use nicforge_velo::Address;

use super::{super::cards::vpid_at, Effort, Measurement, RankMeasurement, WINDOW};
use crate::{
    machine::{never_sleeping_wait, open},
    ranks::endpoints_of,
    samples::Samples,
};

/// Upper bound for the duration of each step.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// The first VPID of the ranks of RandomAccess. The VPIDs before it belong to the pairs.
const RANDOM_ACCESS_VPID: u16 = 8;

/// Opens the device of a VPID. The previous client of the VPID may still be detaching.
pub(super) fn open_device(server: &Served, address: Address) -> Result<Device, Failure> {
    open(&vpid_at(server, address)?, OpenOptions::default(), STEP_TIMEOUT)
}

/// Opens the ranks of a job on the devices that `open_device` returns, and waits until they have
/// found each other.
fn open_ranks(
    open_device: impl Fn(Address) -> Result<Device, Failure>,
    addresses: Vec<Address>,
) -> Result<Vec<Endpoint<ExtollTransport>>, Failure> {
    let job = Job::new(addresses.clone());
    let open = |address: Address| {
        ExtollTransport::open(open_device(address)?, &job, Config::default()).context(|| address.to_string())
    };
    let ranks = addresses.into_iter().map(open).collect::<Result<_, _>>()?;
    endpoints_of(ranks, ExtollTransport::is_complete, STEP_TIMEOUT)
}

/// The senders on the first card, followed by as many receivers on the second.
pub(super) struct Ranks {
    endpoints: Vec<Endpoint<ExtollTransport>>,
    pairs: u16,
    /// The matching context of the latest measurement. Each has its own, so that it gets no message
    /// of an earlier one.
    context: u32,
}

impl Ranks {
    /// Opens the ranks of `pairs` pairs on the devices that `open_device` returns. They have the
    /// lowest VPIDs of both cards.
    pub(super) fn open(
        open_device: impl Fn(Address) -> Result<Device, Failure>,
        pairs: u16,
    ) -> Result<Self, Failure> {
        let of_node = |node| (0..pairs).map(move |vpid| Address { node, vpid });
        Ok(Self {
            endpoints: open_ranks(open_device, of_node(0).chain(of_node(1)).collect())?,
            pairs,
            context: 0,
        })
    }

    /// Returns both ends of the first `pairs` pairs for a new measurement of `windows` windows. The
    /// receiver of a pair comes before its sender.
    pub(super) fn sides(
        &mut self,
        pairs: u16,
        bytes: usize,
        windows: u32,
    ) -> Result<Vec<Side<'_, Endpoint<ExtollTransport>>>, Failure> {
        self.context += 1;
        let terms = Parameters { bytes, window: WINDOW, windows, context: self.context };
        let (senders, receivers) = self.endpoints.split_at_mut(self.pairs.into());
        let mut sides = Vec::with_capacity(2 * usize::from(pairs));

        for (number, (sender, receiver)) in (0..pairs).zip(senders.iter_mut().zip(receivers)) {
            let (sender_rank, receiver_rank) = (u32::from(number), u32::from(number + self.pairs));
            sides.push(
                Side::new(receiver, End::Receiver, sender_rank, terms).context(|| "a receiver".into())?,
            );
            sides.push(Side::new(sender, End::Sender, receiver_rank, terms).context(|| "a sender".into())?);
        }

        Ok(sides)
    }

    /// Measures the rate of messages, in windows, on the first `pairs` pairs at once.
    pub(super) fn measure_rate(
        &mut self,
        pairs: u16,
        bytes: usize,
        effort: &Effort,
    ) -> Result<Measurement, Failure> {
        let mut sides = self.sides(pairs, bytes, effort.windows)?;
        let start = Instant::now();
        drive(&mut sides, Deadline::after(STEP_TIMEOUT), &mut never_sleeping_wait())
            .context(|| "the message rate".into())?;
        let messages = u64::from(effort.windows) * u64::from(WINDOW) * u64::from(pairs);
        Ok(Measurement::of_rate(messages as f64 / start.elapsed().as_secs_f64()))
    }

    /// Measures round trips of one message between the ranks of the first pair.
    pub(super) fn measure_latency(&mut self, bytes: usize, effort: &Effort) -> Result<Measurement, Failure> {
        self.context += 1;
        let (senders, receivers) = self.endpoints.split_at_mut(self.pairs.into());
        let (Some(sender), Some(receiver)) = (senders.first_mut(), receivers.first_mut()) else {
            return Err(Failure::result("there is no pair"));
        };
        let (sender_rank, receiver_rank) = (0, u32::from(self.pairs));

        let side = |endpoint, sends_first, peer| {
            ping_pong::Side::new(endpoint, sends_first, peer, bytes, effort.round_trips, self.context)
                .context(|| "an end of the ping-pong".into())
        };
        let mut sides = [side(receiver, false, sender_rank)?, side(sender, true, receiver_rank)?];
        drive(&mut sides, Deadline::after(STEP_TIMEOUT), &mut never_sleeping_wait())
            .context(|| "the ping-pong".into())?;

        // Only the side that sends first measures times.
        let mut samples = Samples::with_capacity(effort.round_trips as usize);
        sides[1].times().iter().for_each(|time| samples.add(*time));

        Ok(Measurement::of_samples(samples))
    }
}

/// Measures RandomAccess with `size` ranks of its own, in alternation on both cards.
pub(super) fn random_access(server: &Served, size: u32, effort: &Effort) -> Result<RankMeasurement, Failure> {
    let address = |rank: u32| Address { node: rank % 2, vpid: RANDOM_ACCESS_VPID + (rank / 2) as u16 };
    let mut endpoints = open_ranks(|address| open_device(server, address), (0..size).map(address).collect())?;
    let tables = (0..size).map(|rank| Table::new(rank, size, effort.order).context(|| "a table".into()));
    let mut tables = tables.collect::<Result<Vec<_>, _>>()?;
    let mut duration = Duration::ZERO;

    // The second pass restores the table, so that wrong words can be counted. It is not timed.
    for pass in 0..2 {
        let context = pass;
        let updates = endpoints
            .iter_mut()
            .zip(&mut tables)
            .map(|(endpoint, table)| Updates::new(endpoint, table, context).context(|| "a rank".into()));
        let mut updates = updates.collect::<Result<Vec<_>, _>>()?;

        let start = Instant::now();
        drive(&mut updates, Deadline::after(STEP_TIMEOUT), &mut never_sleeping_wait())
            .context(|| "RandomAccess".into())?;
        if pass == 0 {
            duration = start.elapsed();
        }
    }

    let sum = |count_of: fn(&Table) -> u64| tables.iter().map(count_of).sum::<u64>() as f64;
    let (updates, words, wrong_words) = (sum(Table::updates), sum(Table::len), sum(Table::count_wrong));

    let measurement = Measurement::of_rate(updates / duration.as_secs_f64());
    Ok(RankMeasurement { measurement, wrong_percent: wrong_words * 100.0 / words })
}

//! The waits of a call: deadline, cancellation, and the pauses of the loop.

use std::time::Duration;

use nicforge_driver::{Cancel, Deadline, Waiter as DriverWaiter};
use nicforge_hwi::tree::PAYLOAD;

use crate::{Error, tree::TreeChannel};

/// Number of packets that a transfer moves between two checks of its deadline and its cancellation
/// token. A transfer at full speed never waits, so it needs checks of its own.
pub(crate) const PACKETS_PER_CHECK: usize = 1024;

/// Returns the part of a message from `at` on that a transfer may receive before its next check.
pub(crate) fn until_next_check(body: &mut [u8], at: usize) -> &mut [u8] {
    let end = body.len().min(at.saturating_add(PACKETS_PER_CHECK * PAYLOAD));
    body.get_mut(at..end).unwrap_or_default()
}

/// The state of one call's waiting loops.
pub(crate) struct Waiter<'a> {
    channel: &'a TreeChannel,
    waits: DriverWaiter<'a>,
    /// Number of packets until the next check.
    packets_until_check: usize,
}

impl<'a> Waiter<'a> {
    /// Starts to wait.
    pub(crate) fn new(channel: &'a TreeChannel, deadline: Deadline, cancel: Option<&'a Cancel>) -> Self {
        Self {
            channel,
            // The cores of a node hand packets and locks over to each other.
            waits: DriverWaiter::new(channel.device(), deadline, cancel).wait_for_programs_too(),
            packets_until_check: PACKETS_PER_CHECK,
        }
    }

    /// Records progress: the next pause is a short one again.
    #[inline]
    pub(crate) fn progress(&mut self) {
        self.waits.progress();
    }

    /// Counts packets that were moved, and checks the call's end after each
    /// [`PACKETS_PER_CHECK`]. `operation` names the event in an error.
    #[inline]
    pub(crate) fn count_packets(&mut self, packets: usize, operation: &'static str) -> Result<(), Error> {
        self.progress();
        self.packets_until_check = self.packets_until_check.saturating_sub(packets);
        if self.packets_until_check == 0 { self.check_now(operation) } else { Ok(()) }
    }

    /// Checks the call's end, and starts to count packets anew.
    #[cold]
    fn check_now(&mut self, operation: &'static str) -> Result<(), Error> {
        self.packets_until_check = PACKETS_PER_CHECK;
        self.check(operation)
    }

    /// Returns the time until the call's deadline, or `None` if it has none.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.waits.deadline().remaining()
    }

    /// Checks whether the call must end.
    pub(crate) fn check(&self, operation: &'static str) -> Result<(), Error> {
        self.waits.check().map_err(|end| Error::of_wait(end, operation))
    }

    /// Pauses once in a loop that waits for `operation`.
    pub(crate) fn pause(&mut self, operation: &'static str) -> Result<(), Error> {
        self.check(operation)?;
        Ok(self.waits.pause(self.channel.device())?)
    }
}

#[cfg(test)]
mod tests {
    use nicforge_driver::Device;
    use nicforge_machine::{build::build, description::parse, in_process::LocalMachine};
    use nicforge_nics::families;

    use super::*;

    fn channel() -> TreeChannel {
        let description =
            parse("name = \"p\"\n[[pset]]\ncompute_nodes = 1\n", "p.toml", &families()).unwrap();
        let machine = LocalMachine::new(build(&description).unwrap().0);
        let device = Device::from_backing(machine.open_named("cn0", "core0").unwrap()).unwrap();
        TreeChannel::open(device).unwrap()
    }

    /// Counts batches of packets until the call ends. Returns the number of packets and the error.
    fn move_packets_until_the_call_ends(waiter: &mut Waiter<'_>, batch: usize) -> (usize, Error) {
        let mut packets = 0;
        loop {
            packets += batch;
            if let Err(error) = waiter.count_packets(batch, "data") {
                return (packets, error);
            }
        }
    }

    #[test]
    fn transfer_that_never_waits_checks_its_cancellation_and_its_deadline() {
        let (channel, cancel) = (channel(), Cancel::new().unwrap());
        let mut cancelled = Waiter::new(&channel, Deadline::never(), Some(&cancel));
        cancel.cancel();
        let mut late = Waiter::new(&channel, Deadline::now(), None);

        let ends = [
            move_packets_until_the_call_ends(&mut cancelled, 8),
            move_packets_until_the_call_ends(&mut late, 8),
        ];
        let operation = "data";
        assert_eq!(
            ends,
            [
                (PACKETS_PER_CHECK, Error::Cancelled { what: operation }),
                (PACKETS_PER_CHECK, Error::Timeout { what: operation })
            ]
        );
    }

    #[test]
    fn parts_cover_a_message_and_are_limited_to_a_check_interval() {
        let mut message = vec![0; 2 * PACKETS_PER_CHECK * PAYLOAD + 300];
        let mut at = 0;

        let mut sizes = Vec::new();
        while at < message.len() {
            sizes.push(until_next_check(&mut message, at).len());
            at += sizes.last().unwrap();
        }
        assert_eq!(sizes, [PACKETS_PER_CHECK * PAYLOAD, PACKETS_PER_CHECK * PAYLOAD, 300]);
    }
}

//! RandomAccess with the rules of the HPC Challenge, MPI version.
//!
//! - A table of 64-bit words is distributed over all ranks in equal parts.
//! - The updates are a sequence of pseudo-random numbers `a`: word `a mod size` is replaced by
//!   itself xor `a`.
//! - There are four updates for each word. Each rank makes its part of the sequence, and stores at
//!   most 1,024 updates before it sends them.
//! - The rate is given in updates in a second; 10^9 are one GUPS.
//! - The same updates a second time must restore the table. At most 1 % of the words may be wrong.
//!   Here no word is wrong, because no update is lost, and each is done by the one owner of its
//!   word.
//!
//! Updates for another rank go to that rank's bucket. When a rank stores the maximum number of
//! updates, it sends the fullest bucket as one message.
//!
//! Messages may complete in another order than they were sent in: one that finds no memory at its
//! receiver completes after later ones. So a rank that has sent all its updates announces to each
//! other rank how many messages it has sent to it, and the receiver waits for all of them.

use std::convert::Infallible;

use nicforge_driver::runtime::{Cost, burst, charge};
use nicforge_matching::{Envelope, Kind, Rank, Selector};

use crate::{Buffer, Endpoint, Error, ErrorOf, Program, succeeded};

/// Maximum number of updates that a rank stores before it sends some.
pub const MAX_STORED: usize = 1024;
/// Greatest number of updates of a message: those of an eager message with the default threshold.
const MAX_SENT: usize = 256;
/// Number of updates for each word.
const UPDATES: u64 = 4;
/// The polynomial x^64 + x^2 + x + 1 of the sequence, over the field of two elements, without its
/// highest term.
const POLYNOMIAL: u64 = 7;
/// The period of the sequence.
const PERIOD: u64 = 1_317_624_576_693_539_401;
/// Number of updates that one step makes, except in virtual time: there it is one, as in the
/// original program, which calls the library after each update.
const BATCH: usize = 64;
/// Number of posted receives of a rank.
const RECEIVES: usize = 8;
/// Number of messages that a rank has in flight at most.
const SENDS: usize = 4;
/// Bytes of an update.
const WORD: usize = size_of::<u64>();

/// Tag of messages with updates.
const UPDATES_TAG: u64 = 1;
/// Tag of the announcement that a rank has sent all its updates.
const END_TAG: u64 = 2;

/// Returns the number of the sequence after this one: its product with x, modulo the polynomial of
/// the sequence.
#[inline]
fn next(number: u64) -> u64 {
    number << 1 ^ if number >> 63 != 0 { POLYNOMIAL } else { 0 }
}

/// Returns number `index` of the sequence, which begins with 1, by repeated squaring.
fn number_at(index: u64) -> u64 {
    let index = index % PERIOD;
    if index == 0 {
        return 1;
    }

    // Number `index` is x^`index`, and bit `i` of a number stands for x^i. `squares[i]` is x^(2i).
    // So the square of a number is the sum of the squares of its set bits.
    let mut squares = [0_u64; 64];
    let mut number = 1_u64;
    for square in &mut squares {
        *square = number;
        number = next(next(number));
    }

    // The highest bit of the index gives x, which is 2. Each further bit squares, and multiplies by
    // x if it is set.
    let mut result = 2_u64;
    for bit in (0..index.ilog2()).rev() {
        let set_bits = (0..64).filter(|position| result >> position & 1 != 0);
        result = set_bits.fold(0, |sum, position| sum ^ squares[position]);

        if index >> bit & 1 != 0 {
            result = next(result);
        }
    }
    result
}

/// A rank's part of the table.
pub struct Table {
    words: Vec<u64>,
    /// Number of words of all ranks, less one: the bits of an update that are a word's number.
    mask: u64,
    /// Number of the first word of this part.
    first: u64,
}

impl Table {
    /// Creates the part of rank `rank` of `size`. Each part has 2^`order` words, and each word
    /// holds its own number.
    ///
    /// # Errors
    /// [`Error::BadParameter`] when `size` is no power of two, or the table is too long.
    pub fn new(rank: Rank, size: u32, order: u32) -> Result<Self, Error<Infallible>> {
        if !size.is_power_of_two() {
            return Err(Error::BadParameter {
                what: "the number of ranks",
                value: size.into(),
                rule: "a power of two",
            });
        }
        if order > 32 {
            return Err(Error::BadParameter {
                what: "the table's order",
                value: order.into(),
                rule: "32 or less",
            });
        }

        let words_of_rank = 1_u64 << order;
        let first = u64::from(rank) << order;
        Ok(Self {
            words: (first..first + words_of_rank).collect(),
            mask: (u64::from(size) << order) - 1,
            first,
        })
    }

    /// Returns the number of words that do not hold their own number.
    pub fn count_wrong(&self) -> u64 {
        (self.first..).zip(&self.words).filter(|(number, word)| number != *word).count() as u64
    }

    /// Returns the number of words of this part.
    #[allow(clippy::len_without_is_empty, reason = "a table is never empty")]
    pub fn len(&self) -> u64 {
        self.words.len() as u64
    }

    /// Returns the number of updates that this rank makes.
    pub fn updates(&self) -> u64 {
        UPDATES * self.len()
    }

    /// Returns the rank whose part has the word that an update changes.
    fn rank_of(&self, number: u64) -> usize {
        ((number & self.mask) / self.len()) as usize
    }

    /// Applies an update to its word, which must be in this part.
    #[inline]
    fn update<E>(&mut self, number: u64) -> Result<(), Error<E>> {
        let index = (number & self.mask).wrapping_sub(self.first) as usize;

        match self.words.get_mut(index) {
            Some(word) => {
                *word ^= number;
                charge(Cost::Compute, 1);
                Ok(())
            }
            None => Err(Error::Wrong {
                what: "the index of an update",
                found: number & self.mask,
                expected: self.first,
            }),
        }
    }
}

/// One pass of a rank's updates.
pub struct Updates<'a, E: Endpoint> {
    endpoint: &'a mut E,
    table: &'a mut Table,
    /// The matching context of the messages.
    context: u32,
    /// The current number of the sequence, which is the last update made.
    number: u64,
    /// Number of updates still to make.
    left: u64,
    /// Updates for each rank that were made and not sent.
    buckets: Vec<Vec<u64>>,
    /// Number of updates in all buckets.
    stored: usize,
    /// Buffers for further sends.
    free: Vec<E::Buffer>,
    /// Number of sends that are not complete.
    sending: usize,
    /// Posted receives.
    receives: Vec<E::Request>,
    /// Number of other ranks to which this rank has announced that it has sent all its updates.
    announced: u32,
    /// Number of other ranks that have announced the same to this one.
    ended: u32,
    /// Number of messages with updates that were sent to each rank.
    sent: Vec<u64>,
    /// Number of messages with updates that have arrived.
    received: u64,
    /// Number of messages with updates for this rank, by the announcements that have arrived.
    expected: u64,
}

impl<'a, E: Endpoint> Updates<'a, E> {
    /// Creates a pass of this rank's updates, whose messages have their own matching context.
    ///
    /// # Errors
    /// Errors of the endpoint.
    pub fn new(endpoint: &'a mut E, table: &'a mut Table, context: u32) -> Result<Self, ErrorOf<E>> {
        let (ranks, updates) = (endpoint.size() as usize, table.updates());

        let number = number_at(u64::from(endpoint.rank()) * updates);
        let free = (0..SENDS).map(|_| endpoint.buffer(MAX_SENT * WORD)).collect::<Result<_, _>>()?;
        let mut pass = Self {
            endpoint,
            table,
            context,
            number,
            left: updates,
            buckets: vec![Vec::with_capacity(MAX_STORED); ranks],
            stored: 0,
            free,
            sending: 0,
            receives: Vec::with_capacity(RECEIVES),
            announced: 0,
            ended: 0,
            sent: vec![0; ranks],
            received: 0,
            expected: 0,
        };

        for _ in 0..RECEIVES {
            let buffer = pass.endpoint.buffer(MAX_SENT * WORD)?;
            pass.receive(buffer)?;
        }
        Ok(pass)
    }

    /// Starts the sequence of all ranks at a later index: this pass is a part of a longer run.
    /// Close to the beginning of the sequence, some ranks have to make more updates than others.
    #[must_use]
    pub fn starting_at(mut self, index: u64) -> Self {
        let first = u64::from(self.endpoint.rank()) * self.left;
        self.number = number_at(index.wrapping_add(first));
        self
    }

    /// Returns the number of messages with updates that were sent.
    pub fn messages(&self) -> u64 {
        self.sent.iter().sum()
    }

    /// Returns the number of other ranks.
    fn other_ranks(&self) -> u32 {
        self.endpoint.size() - 1
    }

    /// Posts a receive of any message of this pass.
    fn receive(&mut self, buffer: E::Buffer) -> Result<(), ErrorOf<E>> {
        let request = self.endpoint.irecv(Selector::any(self.context), buffer, 0)?;
        self.receives.push(request);
        Ok(())
    }

    /// Makes updates until the maximum number of them is stored, or `maximum` were made. Applies
    /// those to the own part of the table. Returns their number.
    fn make_updates(&mut self, maximum: usize) -> Result<usize, ErrorOf<E>> {
        let own_rank = self.endpoint.rank() as usize;
        let mut made = 0;
        while made < maximum && self.left > 0 && self.stored < MAX_STORED {
            self.number = next(self.number);

            let rank = self.table.rank_of(self.number);
            if rank == own_rank {
                self.table.update(self.number)?;
            } else if let Some(bucket) = self.buckets.get_mut(rank) {
                bucket.push(self.number);
                self.stored += 1;
            }

            self.left -= 1;
            made += 1;
        }
        Ok(made)
    }

    /// Sends up to [`MAX_SENT`] updates of the fullest bucket, if a buffer is free. Returns the
    /// number of messages sent.
    fn send_bucket(&mut self) -> Result<usize, ErrorOf<E>> {
        let Some(mut data) = self.free.pop() else { return Ok(0) };

        let fullest = self.buckets.iter_mut().enumerate().max_by_key(|(_, bucket)| bucket.len());
        let Some((rank, bucket)) = fullest.filter(|(_, bucket)| !bucket.is_empty()) else {
            self.free.push(data);
            return Ok(0);
        };
        let count = bucket.len().min(MAX_SENT);

        data.clear();
        for number in bucket.drain(bucket.len() - count..) {
            data.append(&number.to_le_bytes());
        }

        self.stored -= count;
        self.sending += 1;
        self.sent[rank] += 1;

        self.endpoint.isend(Envelope::new(rank as u32, self.context, UPDATES_TAG), data, 0)?;
        Ok(1)
    }

    /// Announces to one other rank how many messages with updates this rank has sent to it, if a
    /// buffer is free. Returns the number of messages sent.
    fn announce_end(&mut self) -> Result<usize, ErrorOf<E>> {
        let Some(mut data) = self.free.pop() else { return Ok(0) };
        let rank = (self.endpoint.rank() + 1 + self.announced) % self.endpoint.size();

        data.clear();
        data.append(&self.sent[rank as usize].to_le_bytes());
        self.announced += 1;
        self.sending += 1;
        self.endpoint.isend(Envelope::new(rank, self.context, END_TAG), data, 0)?;
        Ok(1)
    }

    /// Returns whether nothing is left to send or to receive.
    fn is_over(&self) -> bool {
        self.left == 0
            && self.stored == 0
            && self.sending == 0
            && self.announced == self.other_ranks()
            && self.ended == self.other_ranks()
            && self.received == self.expected
    }

    /// Cancels the remaining receives, for which no message will arrive.
    fn cancel_receives(&mut self) -> Result<(), ErrorOf<E>> {
        while let Some(request) = self.receives.pop() {
            self.endpoint.cancel(request)?;
            self.endpoint.test(request)?;
        }
        Ok(())
    }

    /// Handles a message with updates, or the announcement that a rank has sent all its updates.
    /// Posts its buffer for another receive.
    fn handle_message(&mut self, tag: u64, length: usize, data: E::Buffer) -> Result<(), ErrorOf<E>> {
        let word_at = |index: usize| {
            let mut bytes = [0; WORD];
            data.read(index * WORD, &mut bytes);
            u64::from_le_bytes(bytes)
        };

        if tag == END_TAG {
            self.ended += 1;
            self.expected += if length == WORD { word_at(0) } else { 0 };
        } else {
            for index in 0..length / WORD {
                self.table.update(word_at(index))?;
            }
            self.received += 1;
        }
        self.receive(data)
    }
}

impl<E: Endpoint> Program for Updates<'_, E> {
    type Endpoint = E;

    fn step(&mut self) -> Result<usize, ErrorOf<E>> {
        let mut steps = self.make_updates(burst(BATCH))?;
        if self.stored >= MAX_STORED || self.left == 0 && self.stored > 0 {
            steps += self.send_bucket()?;
        } else if self.left == 0 && self.announced < self.other_ranks() {
            steps += self.announce_end()?;
        }

        steps += self.endpoint.progress()?;

        while let Some(done) = self.endpoint.next_completion() {
            steps += 1;
            let done = succeeded(done)?;
            let (request, kind, tag, length) = (done.request, done.kind, done.envelope.tag, done.length);

            let data = done.buffer;
            if kind == Kind::Send {
                self.sending -= 1;
                self.free.push(data);
            } else {
                self.receives.retain(|other| *other != request);
                self.handle_message(tag, length, data)?;
            }
        }

        if self.is_over() {
            self.cancel_receives()?;
        }
        Ok(steps)
    }

    fn is_done(&self) -> bool {
        self.is_over() && self.receives.is_empty()
    }

    fn endpoint(&mut self) -> &mut E {
        self.endpoint
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use nicforge_driver::{Deadline, Relax};
    use nicforge_matching::{
        Config, Endpoint,
        memory::{Fabric, FabricConfig},
    };

    use super::*;
    use crate::drive;

    #[test]
    fn the_sequence_can_be_entered_anywhere() {
        let mut number = 1;
        for index in 0..2_000 {
            assert_eq!(number_at(index), number, "place {index}");
            number = next(number);
        }

        assert_eq!(next(number_at(1 << 40)), number_at((1 << 40) + 1));
        assert_eq!(number_at(PERIOD), 1);
    }

    /// Applies the same updates twice on `size` ranks, and asserts that this restores the table.
    fn assert_restored(size: u32, seed: u64, config: Config) {
        let (_fabric, ports) = Fabric::new(size, FabricConfig { seed, ..FabricConfig::default() });
        let mut endpoints: Vec<_> =
            ports.into_iter().map(|port| Endpoint::new(port, config).unwrap()).collect();
        let mut tables: Vec<_> = (0..size).map(|rank| Table::new(rank, size, 10).unwrap()).collect();

        for pass in 0..2 {
            let mut ranks: Vec<_> = endpoints
                .iter_mut()
                .zip(&mut tables)
                .map(|(endpoint, table)| Updates::new(endpoint, table, pass).unwrap())
                .collect();

            drive(&mut ranks, Deadline::after(Duration::from_secs(120)), &mut Relax::new()).unwrap();
            drop(ranks);

            let wrong: u64 = tables.iter().map(Table::count_wrong).sum();
            // After one pass many words differ.
            assert_eq!(wrong > 100, pass == 0, "{wrong} of {size} ranks");
            assert_eq!(wrong == 0, pass == 1);
        }

        assert!(endpoints.iter().all(|endpoint| endpoint.outstanding() == 0));
    }

    #[test]
    fn the_same_updates_twice_restore_the_table() {
        for size in [1, 2, 8] {
            for seed in [0, 1] {
                assert_restored(size, seed, Config::default());
            }
        }
    }

    /// The announcements are eager, and the updates before them need a rendezvous.
    #[test]
    fn updates_that_complete_after_later_messages_are_not_lost() {
        for seed in 0..8 {
            assert_restored(8, seed, Config { eager_threshold: 64, ..Config::default() });
        }
    }

    #[test]
    fn impossible_tables_are_refused() {
        assert!(Table::new(0, 3, 4).is_err());
        assert!(Table::new(0, 2, 33).is_err());
    }
}

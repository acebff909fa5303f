//! RandomAccess after the rules of the HPC Challenge, MPI version.
//!
//! A table of 64-bit words lies on all ranks in equal parts. Updates come from a sequence of pseudo-random numbers `a`: word `a mod size` becomes
//! itself xor `a`. There are four times as many updates as words; each rank makes its part of the sequence, and stores at most 1,024 of its updates
//! before it sends them on. The rate is given in updates a second (10^9 are a GUPS). The same updates once more must restore the table; at most 1 %
//! of the words may be wrong, here none is, since no update is lost or done unlocked.
//!
//! Updates for another rank go to a bucket of that rank. When a rank has stored as many updates as it may, the fullest bucket leaves as one message.

use nicforge_matching::{Endpoint, Envelope, Kind, Mode, Rank, Request, Selector, Transport};

use crate::{Error, Program, succeeded, vector};

/// Updates that a rank may store before they are sent.
pub const MOST_STORED: usize = 1024;
/// Updates of a message at most: an eager message's with the default threshold.
const MOST_SENT: usize = 256;
/// Updates a word.
const UPDATES: u64 = 4;
/// The polynomial of the sequence, over the field of two elements.
const POLYNOMIAL: u64 = 7;
/// The sequence's period.
const PERIOD: u64 = 1_317_624_576_693_539_401;
/// Updates made in one step.
const BATCH: u32 = 64;
/// Receives that wait.
const RECEIVES: usize = 8;
/// Messages that a rank has on its way.
const SENDS: usize = 4;
const WORD: usize = size_of::<u64>();

/// Tags of updates, and of a rank's end.
const SOME: u64 = 1;
const END: u64 = 2;

/// The next number of the sequence.
#[inline]
fn next(number: u64) -> u64 {
    number << 1 ^ if number >> 63 != 0 { POLYNOMIAL } else { 0 }
}

/// Number `place` of the sequence, which begins with 1.
fn number_at(place: u64) -> u64 {
    let place = place % PERIOD;
    if place == 0 {
        return 1;
    }
    // What each bit of a number becomes in two times as many steps as before: squares.
    let mut squares = [0_u64; 64];
    let mut number = 1_u64;
    for square in &mut squares {
        *square = number;
        number = next(next(number));
    }
    let mut result = 2_u64;
    for bit in (0..place.ilog2()).rev() {
        let of_bits = (0..64).filter(|at| result >> at & 1 != 0);
        result = of_bits.fold(0, |sum, at| sum ^ squares[at]);
        if place >> bit & 1 != 0 {
            result = next(result);
        }
    }
    result
}

/// What a rank has.
pub struct Table {
    words: Vec<u64>,
    /// Words of all ranks, less one.
    mask: u64,
    /// The first one here.
    first: u64,
}

impl Table {
    /// The part of rank `rank` of `size`, each with 2^`order` words, in which each word is its own number.
    ///
    /// # Errors
    /// [`Error::BadParameter`] when `size` is no power of two or the table is too long.
    pub fn new(rank: Rank, size: u32, order: u32) -> Result<Self, Error> {
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
        let local = 1_u64 << order;
        let first = u64::from(rank) << order;
        Ok(Self { words: (first..first + local).collect(), mask: (u64::from(size) << order) - 1, first })
    }

    /// Words that are not their own number.
    pub fn wrong(&self) -> u64 {
        (self.first..).zip(&self.words).filter(|(number, word)| number != *word).count() as u64
    }

    /// Words here.
    #[allow(clippy::len_without_is_empty, reason = "a table is never empty")]
    pub fn len(&self) -> u64 {
        self.words.len() as u64
    }

    /// Updates of this rank.
    pub fn updates(&self) -> u64 {
        UPDATES * self.len()
    }

    fn rank_of(&self, number: u64) -> usize {
        ((number & self.mask) / self.len()) as usize
    }

    #[inline]
    fn update(&mut self, number: u64) -> Result<(), Error> {
        let place = (number & self.mask).wrapping_sub(self.first) as usize;
        match self.words.get_mut(place) {
            Some(word) => {
                *word ^= number;
                Ok(())
            }
            None => Err(Error::Wrong {
                what: "an update's place",
                found: number & self.mask,
                expected: self.first,
            }),
        }
    }
}

/// One rank's updates, once.
pub struct Updates<'a, T: Transport> {
    endpoint: &'a mut Endpoint<T>,
    table: &'a mut Table,
    context: u32,
    /// The next number, and how many there are still.
    number: u64,
    left: u64,
    /// Updates for each rank.
    buckets: Vec<Vec<u64>>,
    stored: usize,
    /// Memory of messages.
    free: Vec<Vec<u8>>,
    sending: usize,
    receives: Vec<Request>,
    /// Other ranks that are told of this one's end, and that have told of theirs.
    told: u32,
    ended: u32,
    messages: u64,
}

impl<'a, T: Transport> Updates<'a, T> {
    /// The updates of this rank, with messages of a matching context of their own.
    ///
    /// # Errors
    /// Those of the endpoint.
    pub fn new(endpoint: &'a mut Endpoint<T>, table: &'a mut Table, context: u32) -> Result<Self, Error> {
        let (ranks, left) = (endpoint.size() as usize, table.updates());
        let number = number_at(u64::from(endpoint.rank()) * left);
        let mut updates = Self {
            endpoint,
            table,
            context,
            number,
            left,
            buckets: vec![Vec::with_capacity(MOST_STORED); ranks],
            stored: 0,
            free: vec![vec![0; MOST_SENT * WORD]; SENDS],
            sending: 0,
            receives: Vec::with_capacity(RECEIVES),
            told: 0,
            ended: 0,
            messages: 0,
        };
        for _ in 0..RECEIVES {
            updates.receive(vec![0; MOST_SENT * WORD])?;
        }
        Ok(updates)
    }

    /// Messages with updates that were sent.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    fn others(&self) -> u32 {
        self.endpoint.size() - 1
    }

    fn receive(&mut self, buffer: Vec<u8>) -> Result<(), Error> {
        let request = self.endpoint.irecv(Selector::any(self.context), buffer, 0)?;
        self.receives.push(request);
        Ok(())
    }

    /// Makes updates until as many are stored as may be, or `most` were made.
    fn make(&mut self, most: u32) -> Result<usize, Error> {
        let own = self.endpoint.rank() as usize;
        let mut made = 0;
        while made < most as usize && self.left > 0 && self.stored < MOST_STORED {
            self.number = next(self.number);
            let rank = self.table.rank_of(self.number);
            if rank == own {
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

    /// Sends of the fullest bucket.
    fn send(&mut self) -> Result<usize, Error> {
        let Some(mut data) = self.free.pop() else { return Ok(0) };
        let fullest = self.buckets.iter_mut().enumerate().max_by_key(|(_, bucket)| bucket.len());
        let Some((rank, bucket)) = fullest.filter(|(_, bucket)| !bucket.is_empty()) else {
            self.free.push(data);
            return Ok(0);
        };
        let count = bucket.len().min(MOST_SENT);
        data.clear();
        for number in bucket.drain(bucket.len() - count..) {
            data.extend_from_slice(&number.to_le_bytes());
        }
        self.stored -= count;
        self.sending += 1;
        self.messages += 1;
        self.endpoint.isend(Envelope::new(rank as u32, self.context, SOME), Mode::Standard, data, 0)?;
        Ok(1)
    }

    /// Tells the others that nothing more comes.
    fn tell(&mut self) -> Result<usize, Error> {
        let Some(mut data) = self.free.pop() else { return Ok(0) };
        let rank = (self.endpoint.rank() + 1 + self.told) % self.endpoint.size();
        data.clear();
        self.told += 1;
        self.sending += 1;
        self.endpoint.isend(Envelope::new(rank, self.context, END), Mode::Standard, data, 0)?;
        Ok(1)
    }

    /// Whether nothing more is to be sent, nor comes.
    fn is_over(&self) -> bool {
        self.left == 0
            && self.stored == 0
            && self.sending == 0
            && self.told == self.others()
            && self.ended == self.others()
    }

    /// No message will come for those that are left.
    fn cancel_receives(&mut self) -> Result<(), Error> {
        while let Some(request) = self.receives.pop() {
            self.endpoint.cancel(request)?;
            self.endpoint.test(request)?;
        }
        Ok(())
    }

    /// A message with updates, or a rank's end.
    fn received(&mut self, tag: u64, length: usize, data: Vec<u8>) -> Result<(), Error> {
        if tag == END {
            self.ended += 1;
        }
        for bytes in data[..length.min(data.len())].as_chunks::<WORD>().0 {
            self.table.update(u64::from_le_bytes(*bytes))?;
        }
        self.receive(data)
    }
}

impl<T: Transport> Program for Updates<'_, T> {
    type Transport = T;

    fn step(&mut self) -> Result<usize, Error> {
        let mut steps = self.make(BATCH)?;
        if self.stored >= MOST_STORED || self.left == 0 && self.stored > 0 {
            steps += self.send()?;
        } else if self.left == 0 && self.told < self.others() {
            steps += self.tell()?;
        }
        steps += self.endpoint.progress()?;
        while let Some(done) = self.endpoint.next_completion() {
            steps += 1;
            let done = succeeded(done)?;
            let (request, kind, tag, length) = (done.request, done.kind, done.envelope.tag, done.length);
            let data = vector(done);
            if kind == Kind::Send {
                self.sending -= 1;
                self.free.push(data);
            } else {
                self.receives.retain(|other| *other != request);
                self.received(tag, length, data)?;
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

    fn endpoint(&mut self) -> &mut Endpoint<T> {
        self.endpoint
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use nicforge_driver::{Deadline, Relax};
    use nicforge_matching::{
        Config,
        memory::{Fabric, Terms},
    };

    use super::*;
    use crate::drive;

    #[test]
    fn the_sequence_can_be_entered_anywhere() {
        let mut number = 1;
        for place in 0..2_000 {
            assert_eq!(number_at(place), number, "place {place}");
            number = next(number);
        }
        assert_eq!(next(number_at(1 << 40)), number_at((1 << 40) + 1));
        assert_eq!(number_at(PERIOD), 1);
    }

    #[test]
    fn the_same_updates_twice_restore_the_table() {
        for size in [1, 2, 8] {
            for seed in [0, 1] {
                let (_fabric, ports) = Fabric::new(size, Terms { seed, ..Terms::default() });
                let mut endpoints: Vec<_> =
                    ports.into_iter().map(|port| Endpoint::new(port, Config::default()).unwrap()).collect();
                let mut tables: Vec<_> = (0..size).map(|rank| Table::new(rank, size, 10).unwrap()).collect();
                for pass in 0..2 {
                    let mut ranks: Vec<_> = endpoints
                        .iter_mut()
                        .zip(&mut tables)
                        .map(|(endpoint, table)| Updates::new(endpoint, table, pass).unwrap())
                        .collect();
                    drive(&mut ranks, Deadline::after(Duration::from_secs(120)), &mut Relax::new()).unwrap();
                    drop(ranks);
                    let wrong: u64 = tables.iter().map(Table::wrong).sum();
                    // Once, many words are others.
                    assert_eq!(wrong > 100, pass == 0, "{wrong} of {size} ranks");
                    assert_eq!(wrong == 0, pass == 1);
                }
                assert!(endpoints.iter().all(|endpoint| endpoint.outstanding() == 0));
            }
        }
    }

    #[test]
    fn impossible_tables_are_refused() {
        assert!(Table::new(0, 3, 4).is_err());
        assert!(Table::new(0, 2, 33).is_err());
    }
}

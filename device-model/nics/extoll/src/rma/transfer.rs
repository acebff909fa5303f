//! Where bytes move.
//!
//! Memory that is mapped is copied from where it is to where it goes, once. Memory that is reached by messages is read into a [`Stage`] of this card, which
//! takes the place of the source, and written by messages of at most `MAX_DMA` bytes: two copies and a message's round trip for each 64 KiB more.

use std::sync::Arc;

use nicforge_core::{
    context::Context,
    device::{AttachmentId, DmaToken},
    dma::{DmaError, DmaLease, LeaseError, MAX_DMA, Term},
    time::Nanos,
};
use nicforge_hwi::extoll_rma::status;
use nicforge_shm::{SharedMemory, Window};

use super::{Rma, aside::Aside, part::MTU};
use crate::{
    atu::{Atu, Region},
    card::Card,
};

/// How long a client may take to let a message through before its memory counts as withdrawn, in nanoseconds.
pub(crate) const PATIENCE: u64 = 100_000_000;
/// How soon to look again while messages wait, in nanoseconds.
pub(crate) const RETRY: u64 = 20_000;

const _: () = assert!(MTU as usize <= MAX_DMA);

/// How far a packet has come, and since when it waits for a client.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    /// Bytes that are done.
    pub(crate) done: u32,
    /// The region that it was done in.
    region: u64,
    since: Option<Nanos>,
    /// It may not wait any more.
    pub(crate) hurried: bool,
}

impl Waiting {
    /// Begins or continues to wait. Returns whether there is time left.
    pub(crate) fn wait(&mut self, now: Nanos) -> bool {
        let since = *self.since.get_or_insert(now);
        !self.hurried && now < since.after(PATIENCE)
    }

    /// Nanoseconds for which the packet has waited.
    pub(crate) fn waited(&self, now: Nanos) -> u64 {
        self.since.map_or(0, |since| now.0.saturating_sub(since.0))
    }
}

/// The data of a part.
pub(crate) enum Data<'a> {
    /// In memory.
    Memory(&'a DmaLease, u64),
    /// An immediate put's.
    Word([u8; 8]),
    /// Nowhere: the packet is not one that a card sends.
    Missing,
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// All of it is there.
    Done,
    /// Messages have to be answered first.
    Wait,
    /// The memory of one end is not there any more.
    Withdrawn,
}

/// Why bytes did not move.
enum Failed {
    Busy,
    Withdrawn,
}

impl From<LeaseError> for Failed {
    fn from(_: LeaseError) -> Self {
        Self::Withdrawn
    }
}

/// Moves `length` bytes to a place of a region, from byte `done` on.
pub(crate) fn deposit(
    context: &mut Context<'_>,
    scratch: &mut Box<[u8]>,
    (region, offset): (&Region, u64),
    data: &Data<'_>,
    length: u32,
    done: &mut u32,
) -> Moved {
    while *done < length {
        let Some(piece) = region.piece(offset + u64::from(*done), u64::from(length - *done)) else {
            return Moved::Withdrawn;
        };
        let moved = match piece.lease {
            Some((target, within)) => copy(data, *done, target, within, piece.length),
            None => {
                write(context, scratch, AttachmentId(region.owner), data, *done, (piece.iova, piece.length))
            }
        };
        match moved {
            // At most `length`.
            Ok(()) => *done += piece.length as u32,
            Err(Failed::Busy) => return Moved::Wait,
            Err(Failed::Withdrawn) => return Moved::Withdrawn,
        }
    }
    Moved::Done
}

#[inline]
fn copy(data: &Data<'_>, done: u32, target: &DmaLease, within: u64, length: u64) -> Result<(), Failed> {
    match data {
        Data::Memory(source, place) => source.copy_to(place + u64::from(done), target, within, length)?,
        Data::Word(bytes) => target.write(within, word(bytes, done, length)?)?,
        Data::Missing => return Err(Failed::Withdrawn),
    }
    Ok(())
}

fn word(bytes: &[u8; 8], done: u32, length: u64) -> Result<&[u8], Failed> {
    let done = done as usize;
    bytes.get(done..done + length as usize).ok_or(Failed::Withdrawn)
}

/// As [`copy`], to memory that is reached by messages.
fn write(
    context: &mut Context<'_>,
    scratch: &mut Box<[u8]>,
    owner: AttachmentId,
    data: &Data<'_>,
    done: u32,
    (iova, length): (u64, u64),
) -> Result<(), Failed> {
    let written = match data {
        Data::Memory(source, place) => {
            if scratch.is_empty() {
                *scratch = vec![0; MAX_DMA].into_boxed_slice();
            }
            let bytes = scratch.get_mut(..length as usize).ok_or(Failed::Withdrawn)?;
            source.read(place + u64::from(done), bytes)?;
            context.dma_write(owner, iova, bytes)
        }
        Data::Word(bytes) => context.dma_write(owner, iova, word(bytes, done, length)?),
        Data::Missing => return Err(Failed::Withdrawn),
    };
    written.map_err(|error| if error == DmaError::Busy { Failed::Busy } else { Failed::Withdrawn })
}

/// What a stage holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Content {
    #[default]
    Nothing,
    /// The read for this has been started.
    Coming(Wanted),
    Ready(Wanted),
    Failed(Wanted),
}

/// What was read, or is being read, for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The requester: node and VPID.
    pub(crate) requester: (u32, u16),
    pub(crate) id: u32,
    /// Where in the command.
    pub(crate) at: u32,
    pub(crate) iova: u64,
    pub(crate) length: u32,
}

/// Memory of the card, as much as a packet refers to, for what is read by messages. Made when it is first needed.
#[derive(Default)]
pub(crate) struct Stage {
    memory: Option<Window>,
    /// Of what packets refer to.
    term: Term,
    /// What packets refer to. While one does, nothing new is read.
    lease: Option<Arc<DmaLease>>,
    content: Content,
    /// Of the last read: an answer for an earlier one is nobody's.
    generation: u32,
}

impl Stage {
    /// What was read is not needed any more, what comes is nobody's, and what is under way is withdrawn.
    pub(crate) fn abandon(&mut self) {
        self.term.end();
        self.term = Term::default();
        self.lease = None;
        self.content = Content::Nothing;
        self.generation = self.generation.wrapping_add(1);
    }

    /// A command does not want its data any more.
    pub(crate) fn give_up(&mut self, requester: (u32, u16), id: u32) {
        let (Content::Coming(wanted) | Content::Ready(wanted) | Content::Failed(wanted)) = self.content
        else {
            return;
        };
        if (wanted.requester, wanted.id) == (requester, id) {
            self.content = Content::Nothing;
            self.generation = self.generation.wrapping_add(1);
        }
    }

    /// The lease of what was wanted, once it is there: then it is the caller's. `Ok(None)`: not yet.
    ///
    /// # Errors
    /// It can't be had.
    pub(crate) fn fetch(
        &mut self,
        context: &mut Context<'_>,
        owner: AttachmentId,
        role: Role,
        wanted: Wanted,
    ) -> Result<Option<Arc<DmaLease>>, Unreadable> {
        match self.content {
            Content::Ready(there) if there == wanted => {
                self.content = Content::Nothing;
                return Ok(self.lease.clone());
            }
            Content::Failed(there) if there == wanted => {
                self.content = Content::Nothing;
                return Err(Unreadable);
            }
            // On its way, or for a packet in front of another queue, which takes it or gives it up.
            Content::Coming(_) | Content::Ready(_) | Content::Failed(_) => return Ok(None),
            Content::Nothing => {}
        }
        if self.lease.as_ref().is_some_and(|lease| Arc::strong_count(lease) > 1) {
            return Ok(None);
        }
        if self.memory.is_none() {
            let memory = SharedMemory::create("rma-stage", MAX_DMA).map_err(|_| Unreadable)?;
            self.memory = Some(memory.whole());
        }
        if let (Some(memory), None) = (&self.memory, &self.lease) {
            self.lease = Some(Arc::new(DmaLease::new(memory.clone(), self.term.clone())));
        }
        self.generation = self.generation.wrapping_add(1);
        let token = DmaToken(u64::from(self.generation) << 1 | role as u64);
        if context.dma_read(owner, wanted.iova, wanted.length as usize, token).is_ok() {
            self.content = Content::Coming(wanted);
        }
        Ok(None)
    }

    fn arrived(&mut self, generation: u32, result: Result<&[u8], DmaError>) {
        let Content::Coming(wanted) = self.content else { return };
        if generation != self.generation {
            return;
        }
        let there = match (result, &self.memory) {
            (Ok(bytes), Some(memory)) => {
                bytes.len() == wanted.length as usize && memory.write(0, bytes).is_ok()
            }
            _ => false,
        };
        self.content = if there { Content::Ready(wanted) } else { Content::Failed(wanted) };
    }
}

/// Memory that a packet refers to.
pub(crate) struct Lent {
    pub(crate) lease: Arc<DmaLease>,
    /// Where in it the data are, and their length.
    pub(crate) place: u64,
    pub(crate) length: u32,
    /// The memory is its owner's stage.
    pub(crate) staged: bool,
}

/// Memory that can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable;

/// What a stage is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A put of its owner.
    Asking = 0,
    /// A get from its owner.
    Answering = 1,
}

impl Card {
    /// A read by messages has ended.
    pub(crate) fn stage_arrived(
        &mut self,
        who: AttachmentId,
        token: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        let Some(client) = self.rma.client(who) else { return };
        client.unresponsive &= result.is_err();
        client.aside.iter_mut().for_each(Aside::look_now);
        let stage =
            if token.0 & 1 == Role::Asking as u64 { &mut client.asking } else { &mut client.answering };
        stage.arrived((token.0 >> 1) as u32, result);
    }
}

impl Rma {
    /// Moves a part to memory of this card. Returns how it ended, or `None` when it has to wait.
    pub(crate) fn move_in(
        &mut self,
        context: &mut Context<'_>,
        atu: &Atu,
        (address, rest): (u64, u64),
        data: &Data<'_>,
        length: u32,
        waiting: &mut Waiting,
    ) -> Option<u8> {
        let Some((region, offset)) = atu.find(address, rest) else { return Some(status::WITHDRAWN) };

        let before = waiting.done;
        if before > 0 && waiting.region != region.serial {
            return Some(status::WITHDRAWN);
        }

        waiting.region = region.serial;
        let moved = deposit(context, &mut self.scratch, (region, offset), data, length, &mut waiting.done);
        self.bytes += u64::from(waiting.done - before);

        let client = self.clients.get_mut(usize::from(region.owner))?;
        match moved {
            Moved::Done => {
                client.unresponsive = false;
                Some(status::DONE)
            }
            Moved::Withdrawn => Some(status::WITHDRAWN),
            Moved::Wait if !client.unresponsive && waiting.wait(context.now()) => None,
            Moved::Wait => {
                client.unresponsive |= !waiting.hurried;
                Some(status::WITHDRAWN)
            }
        }
    }
}

//! The operations that the programs need of a library for messages.

use nicforge_driver::{Deadline, Relax};
use nicforge_matching::{
    self as matching, Endpoint as MatchingEndpoint, Envelope, Kind, Mode, Rank, Selector, Transport,
};
use nicforge_portals_mpi as portals_mpi;

/// The memory of one message.
pub trait Buffer {
    /// Makes the length 0. The memory stays.
    fn clear(&mut self);

    /// Appends bytes, as far as there is room. Returns the number of appended bytes.
    fn append(&mut self, data: &[u8]) -> usize;

    /// Writes bytes at `offset`, if all of them are within the length. Returns whether they are.
    fn write(&mut self, offset: usize, data: &[u8]) -> bool;

    /// Reads bytes from `offset` on, if all of them are within the length. Returns whether they
    /// are.
    fn read(&self, offset: usize, out: &mut [u8]) -> bool;
}

/// One rank's end of a network, with non-blocking sends and receives and the semantics of MPI.
pub trait Endpoint {
    /// The memory of a message.
    type Buffer: Buffer;
    /// Names an outstanding request.
    type Request: Copy + PartialEq;
    /// Error of a call or a request.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Returns this rank.
    fn rank(&self) -> Rank;

    /// Returns the number of ranks.
    fn size(&self) -> u32;

    /// Makes a buffer of `bytes` bytes of any value.
    ///
    /// # Errors
    /// No memory is left.
    fn buffer(&mut self, bytes: usize) -> Result<Self::Buffer, Self::Error>;

    /// Starts a send of all of a buffer. Its completion may come before a receive has matched.
    ///
    /// # Errors
    /// The request is not possible.
    fn isend(
        &mut self,
        to: Envelope,
        buffer: Self::Buffer,
        cookie: u64,
    ) -> Result<Self::Request, Self::Error>;

    /// Starts a receive into a buffer.
    ///
    /// # Errors
    /// The request is not possible.
    fn irecv(
        &mut self,
        from: Selector,
        buffer: Self::Buffer,
        cookie: u64,
    ) -> Result<Self::Request, Self::Error>;

    /// Cancels a receive that has not matched, which then completes with an error.
    ///
    /// # Errors
    /// The request does not exist.
    fn cancel(&mut self, request: Self::Request) -> Result<(), Self::Error>;

    /// Returns the completion of a request, if it is complete. Makes no progress.
    ///
    /// # Errors
    /// The request does not exist.
    fn test(&mut self, request: Self::Request) -> Result<Option<Completion<Self>>, Self::Error>;

    /// Makes progress until a request is complete.
    ///
    /// # Errors
    /// The deadline has passed; the network has failed.
    fn wait(&mut self, request: Self::Request, deadline: Deadline) -> Result<Completion<Self>, Self::Error>;

    /// Returns the oldest completion that was not taken.
    fn next_completion(&mut self) -> Option<Completion<Self>>;

    /// Handles arrived messages, and sends queued messages as far as possible. Returns the number
    /// of steps. Never blocks.
    ///
    /// # Errors
    /// The network has failed.
    fn progress(&mut self) -> Result<usize, Self::Error>;

    /// Pauses for one iteration of a loop that waits for the network.
    ///
    /// # Errors
    /// The network has failed.
    fn relax(&mut self, relax: &mut Relax) -> Result<(), Self::Error>;
}

/// The completion of a request.
pub struct Completion<E: Endpoint + ?Sized> {
    /// The request.
    pub request: E::Request,
    /// Its kind.
    pub kind: Kind,
    /// The value given to the call that made the request.
    pub cookie: u64,
    /// Envelope of the message.
    pub envelope: Envelope,
    /// Bytes of the message.
    pub length: usize,
    /// The result of the request.
    pub result: Result<(), E::Error>,
    /// The memory of the request.
    pub buffer: E::Buffer,
}

impl Buffer for Vec<u8> {
    #[inline]
    fn clear(&mut self) {
        self.clear();
    }

    #[inline]
    fn append(&mut self, data: &[u8]) -> usize {
        self.extend_from_slice(data);
        data.len()
    }

    #[inline]
    fn write(&mut self, offset: usize, data: &[u8]) -> bool {
        let target = self.get_mut(offset..).and_then(|rest| rest.get_mut(..data.len()));
        target.map(|target| target.copy_from_slice(data)).is_some()
    }

    #[inline]
    fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        let bytes = self.get(offset..).and_then(|rest| rest.get(..out.len()));
        bytes.map(|bytes| out.copy_from_slice(bytes)).is_some()
    }
}

impl<T: Transport> Endpoint for MatchingEndpoint<T> {
    type Buffer = Vec<u8>;
    type Request = matching::Request;
    type Error = matching::Error;

    #[inline]
    fn rank(&self) -> Rank {
        self.rank()
    }

    #[inline]
    fn size(&self) -> u32 {
        self.size()
    }

    fn buffer(&mut self, bytes: usize) -> Result<Vec<u8>, matching::Error> {
        Ok(vec![0; bytes])
    }

    #[inline]
    fn isend(
        &mut self,
        to: Envelope,
        buffer: Vec<u8>,
        cookie: u64,
    ) -> Result<matching::Request, matching::Error> {
        self.isend(to, Mode::Standard, buffer, cookie)
    }

    #[inline]
    fn irecv(
        &mut self,
        from: Selector,
        buffer: Vec<u8>,
        cookie: u64,
    ) -> Result<matching::Request, matching::Error> {
        self.irecv(from, buffer, cookie)
    }

    fn cancel(&mut self, request: matching::Request) -> Result<(), matching::Error> {
        self.cancel(request).map(drop)
    }

    fn test(&mut self, request: matching::Request) -> Result<Option<Completion<Self>>, matching::Error> {
        Ok(self.test(request)?.map(of_matching))
    }

    fn wait(
        &mut self,
        request: matching::Request,
        deadline: Deadline,
    ) -> Result<Completion<Self>, matching::Error> {
        self.wait(request, deadline, None).map(of_matching)
    }

    #[inline]
    fn next_completion(&mut self) -> Option<Completion<Self>> {
        self.next_completion().map(of_matching)
    }

    #[inline]
    fn progress(&mut self) -> Result<usize, matching::Error> {
        self.progress()
    }

    fn relax(&mut self, relax: &mut Relax) -> Result<(), matching::Error> {
        Ok(self.transport_mut().relax(relax)?)
    }
}

/// Translates a completion of the matching layer. The buffers of these requests are vectors.
#[inline]
fn of_matching<T: Transport>(completion: matching::Completion) -> Completion<MatchingEndpoint<T>> {
    let matching::Completion { request, kind, cookie, envelope, length, result, buffer } = completion;
    let buffer = buffer.into_vec().unwrap_or_default();
    Completion { request, kind, cookie, envelope, length, result, buffer }
}

impl Buffer for portals_mpi::Buffer {
    fn clear(&mut self) {
        // A length of 0 is within each capacity.
        let _ = self.set_len(0);
    }

    fn append(&mut self, data: &[u8]) -> usize {
        let at = self.len();
        let count = data.len().min(self.capacity() - at);
        let is_written =
            self.set_len(at + count).is_ok() && portals_mpi::Buffer::write(self, at, &data[..count]).is_ok();
        if is_written { count } else { 0 }
    }

    fn write(&mut self, offset: usize, data: &[u8]) -> bool {
        self.write(offset, data).is_ok()
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        self.read(offset, out).is_ok()
    }
}

impl Endpoint for portals_mpi::Endpoint {
    type Buffer = portals_mpi::Buffer;
    type Request = portals_mpi::Request;
    type Error = portals_mpi::Error;

    fn rank(&self) -> Rank {
        self.rank()
    }

    fn size(&self) -> u32 {
        self.size()
    }

    fn buffer(&mut self, bytes: usize) -> Result<portals_mpi::Buffer, portals_mpi::Error> {
        self.allocate(bytes)
    }

    fn isend(
        &mut self,
        to: Envelope,
        buffer: portals_mpi::Buffer,
        cookie: u64,
    ) -> Result<portals_mpi::Request, portals_mpi::Error> {
        self.isend(to, buffer, cookie)
    }

    fn irecv(
        &mut self,
        from: Selector,
        buffer: portals_mpi::Buffer,
        cookie: u64,
    ) -> Result<portals_mpi::Request, portals_mpi::Error> {
        self.irecv(from, buffer, cookie)
    }

    fn cancel(&mut self, request: portals_mpi::Request) -> Result<(), portals_mpi::Error> {
        self.cancel(request).map(drop)
    }

    fn test(
        &mut self,
        request: portals_mpi::Request,
    ) -> Result<Option<Completion<Self>>, portals_mpi::Error> {
        Ok(self.test(request)?.map(of_portals))
    }

    fn wait(
        &mut self,
        request: portals_mpi::Request,
        deadline: Deadline,
    ) -> Result<Completion<Self>, portals_mpi::Error> {
        self.wait(request, deadline, None).map(of_portals)
    }

    fn next_completion(&mut self) -> Option<Completion<Self>> {
        self.next_completion().map(of_portals)
    }

    fn progress(&mut self) -> Result<usize, portals_mpi::Error> {
        self.progress()
    }

    fn relax(&mut self, relax: &mut Relax) -> Result<(), portals_mpi::Error> {
        portals_mpi::Endpoint::relax(self, relax)
    }
}

/// Translates a completion of the library over Portals.
fn of_portals(completion: portals_mpi::Completion) -> Completion<portals_mpi::Endpoint> {
    let portals_mpi::Completion { request, kind, cookie, envelope, length, result, buffer } = completion;
    Completion { request, kind, cookie, envelope, length, result, buffer }
}

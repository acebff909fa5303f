//! A device that answers packets, reverses client memory, and has a timer.
#![allow(clippy::unwrap_used, reason = "all of this file is tests")]

use nicforge_core::{
    context::Context,
    device::{Device, Progress, Reset, Write},
    dma::DmaError,
    ids::{Address, AttachmentId, DmaToken},
    spec::{AttachmentSpec, FunctionSpec, Identity, NicSizes},
    time::Nanos,
};

/// 64 bits, readable and writable by bytes.
pub(crate) const REG_SCRATCH: u64 = 0x00;
/// 64 bits. A write reverses the eight bytes at this IOVA and raises [`DONE`] or [`FAILED`].
pub(crate) const REG_REVERSE: u64 = 0x08;
/// 64 bits. A write asks for [`DUE`] after so many nanoseconds.
pub(crate) const REG_TIMER: u64 = 0x10;
/// 64 bits. A write sends a packet with this header through port 0.
pub(crate) const REG_SEND: u64 = 0x18;

/// MSI-X vector: the eight bytes were reversed.
pub(crate) const DONE: usize = 0;
/// MSI-X vector: the eight bytes could not be read or written.
pub(crate) const FAILED: usize = 1;
/// MSI-X vector: the time of [`REG_TIMER`] has come.
pub(crate) const DUE: usize = 2;

/// The device. It answers each packet with one whose header is one higher.
#[derive(Default)]
pub(crate) struct Echo {
    scratch: [u8; 8],
    timer: Option<Nanos>,
}

impl Device for Echo {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: 0x1234,
            device: 2,
            subsystem_vendor: 0,
            subsystem: 0,
            class: 0xff_00_00,
            revision: 1,
        };
        let user = AttachmentSpec { name: "user0".to_owned(), group: 0 };
        FunctionSpec::nic(
            identity,
            vec![user],
            NicSizes { register_bytes: 0x1000, vectors: 3, ring_cells: 64, ..NicSizes::default() },
        )
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, at: Address, data: &mut [u8]) {
        if let Some(scratch) = self.scratch.get(at.offset as usize..) {
            let length = data.len().min(scratch.len());
            data[..length].copy_from_slice(&scratch[..length]);
        }
    }

    fn write(
        &mut self,
        context: &mut Context<'_>,
        attachment: AttachmentId,
        at: Address,
        data: &[u8],
    ) -> Write {
        let value = <[u8; 8]>::try_from(data).map(u64::from_le_bytes);
        match (at.offset, value) {
            (REG_REVERSE, Ok(iova)) => {
                if context.dma_read(attachment, iova, 8, DmaToken(iova)).is_err() {
                    return Write::Stalled;
                }
            }
            (REG_TIMER, Ok(nanoseconds)) => {
                let time = context.now().after(nanoseconds);
                self.timer = Some(time);
                context.wake_at(time);
            }
            (REG_SEND, Ok(header)) => {
                let mut ports = context.ports();
                if !ports.ready(0, 0) {
                    return Write::Stalled;
                }
                let mut packet = ports.new_packet(0).unwrap();
                packet.header = header;
                ports.send(0, 0, packet).unwrap();
            }
            _ => {
                let to = self.scratch.iter_mut().skip(at.offset as usize);
                to.zip(data).for_each(|(to, byte)| *to = *byte);
            }
        }

        Write::Accepted
    }

    fn dma_done(
        &mut self,
        context: &mut Context<'_>,
        attachment: AttachmentId,
        token: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        let reversed = result.map(|data| data.iter().rev().copied().collect::<Vec<_>>());
        let written = reversed.and_then(|data| context.dma_write(attachment, token.0, &data));
        context.interrupt(attachment, if written.is_ok() { DONE } else { FAILED } as u16);
    }

    fn step(&mut self, context: &mut Context<'_>, _: u32) -> Progress {
        if self.timer.is_some_and(|time| time <= context.now()) {
            self.timer = None;
            context.interrupt(AttachmentId(0), DUE as u16);
        }

        let mut ports = context.ports();
        let mut progress = Progress::Idle;
        while ports.peek(0, 0).is_some() && ports.ready(0, 0) {
            let mut packet = ports.take(0, 0).unwrap();
            packet.header += 1;
            ports.send(0, 0, packet).unwrap();
            progress = Progress::Busy;
        }

        progress
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {
        *self = Self::default();
    }
}

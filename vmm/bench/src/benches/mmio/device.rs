//! The device under test: the proof device's DMA engine with a longer ring.
//!
//! The original ring of 64 cells would be full in the middle of a batch.

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Ended, Progress, Reset, Write},
    dma::DmaError,
    ids::{Address, AttachmentId, DmaToken},
    spec::FunctionSpec,
};
use nicforge_proof::DmaEngine;

use super::RING_CELLS;

/// The DMA engine with a ring of [`RING_CELLS`] cells.
#[derive(Default)]
pub(in crate::benches) struct DeepRing(DmaEngine);

impl Device for DeepRing {
    fn spec(&self) -> FunctionSpec {
        let spec = self.0.spec();
        // The DMA engine has no windows after its ring, so BAR 1 is the ring.
        let registers = spec.rings.as_ref().map_or(0, |ring| u64::from(ring.control_offset));
        let vectors = spec.msix.as_ref().map_or(0, |msix| msix.vectors);
        let (window_bytes, mirror_bytes) = (0, 0x1000);
        FunctionSpec::nic(
            spec.identity,
            spec.attachments,
            registers,
            vectors,
            RING_CELLS,
            window_bytes,
            mirror_bytes,
        )
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        self.0.read(context, from, at, data);
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        self.0.write(context, from, at, data)
    }

    fn attached(&mut self, context: &mut Context<'_>, attachment: AttachmentId) {
        self.0.attached(context, attachment);
    }

    fn detached(&mut self, context: &mut Context<'_>, attachment: AttachmentId, why: Ended) {
        self.0.detached(context, attachment, why);
    }

    fn reset(&mut self, context: &mut Context<'_>, reach: Reset) {
        self.0.reset(context, reach);
    }

    fn dma_done(
        &mut self,
        context: &mut Context<'_>,
        attachment: AttachmentId,
        token: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        self.0.dma_done(context, attachment, token, result);
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        self.0.step(context, budget)
    }

    fn counters(&self) -> Vec<Counter> {
        self.0.counters()
    }
}

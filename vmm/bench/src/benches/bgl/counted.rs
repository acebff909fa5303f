//! The functions at which callgrind counts. None is inlined, so that callgrind finds it.

use nicforge_bgl::{
    Error,
    message::{Buffer, MessageLayer},
    packet::{PacketDevice, Rank, Torus, Verdict},
};
use nicforge_core::{machine::Machine, time::Nanos};
use nicforge_hwi::torus::{MAX_PAYLOAD, PacketHeader};

use super::exchange::{BURST, Burst, Program};

/// The module of the counted functions.
pub(super) const MODULE: &str = module_path!();
/// The work budget of each function in one step, as in the engine.
const WORK_BUDGET: u32 = 64;

/// Sends a burst of packets.
#[inline(never)]
pub(super) fn send_burst(torus: &mut Torus, header: PacketHeader, burst: &Burst) -> Result<usize, Error> {
    let mut sent = 0;
    for payload in burst.0.chunks_exact(MAX_PAYLOAD) {
        sent += usize::from(torus.send(header, std::iter::once(payload))?);
    }
    torus.publish()?;
    Ok(sent)
}

/// Receives the packets that have arrived, at most a burst.
#[inline(never)]
pub(super) fn receive_burst(torus: &mut Torus, burst: &mut Burst) -> Result<usize, Error> {
    let mut places = burst.0.chunks_exact_mut(MAX_PAYLOAD);
    torus.receive(|_, payload| {
        let is_copied = places.next().is_some_and(|place| payload.copy_to(0, place));
        if is_copied { Verdict::Taken } else { Verdict::Left }
    })
}

/// Steps the machine once.
#[inline(never)]
pub(super) fn step_machine(machine: &mut Machine, now: Nanos) -> nicforge_core::machine::Next {
    machine.step(now, WORK_BUDGET)
}

/// Advances the sender of a message.
#[inline(never)]
pub(super) fn advance_sender(layer: &mut MessageLayer<Torus>, program: &mut Program) -> Result<u64, Error> {
    layer.advance(program)
}

/// Advances the receiver of a message.
#[inline(never)]
pub(super) fn advance_receiver(layer: &mut MessageLayer<Torus>, program: &mut Program) -> Result<u64, Error> {
    // Two functions of the same content could become one.
    std::hint::black_box("the receiver");
    layer.advance(program)
}

/// Posts a message.
#[inline(never)]
pub(super) fn post(layer: &mut MessageLayer<Torus>, to: Rank, buffer: Buffer) -> Result<(), Error> {
    layer.postsend(to, [0; 16], buffer)?;
    Ok(())
}

const _: () = assert!(BURST > 0);

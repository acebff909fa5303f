//! Attacks by many DMA ranges.

use nicforge_vfio_user::wire::Command;

use crate::{
    arena::{Arena, Round},
    client::{self, Client},
};

/// Bytes of a range.
const SIZE: u64 = 0x1000;
/// Distance of the starts of two ranges, which are therefore not adjacent.
const STRIDE: u64 = 2 * SIZE;

/// Adds tens of thousands of ranges, each in front of all existing ones.
///
/// A correct server keeps them in a tree, and serves no more messages in a turn than its budget
/// allows.
pub(super) fn descending(arena: &Arena) -> Round {
    let count = arena.size().pick(4_000, 40_000);
    let maps: Vec<_> = (0..count).rev().map(map).collect();
    arena.repeat(|| flood(arena, &maps))
}

/// Adds ranges as [`descending`] does, and removes ranges further up in between.
///
/// A correct server acts as with maps alone.
pub(super) fn mixed(arena: &Arena) -> Round {
    let count = arena.size().pick(4_000, 40_000);
    let mut messages = Vec::new();

    for number in (0..count).rev() {
        messages.push(map(number));
        if number % 3 == 0 {
            messages.push(unmap(number + (count - number) / 2));
        }
    }

    arena.repeat(|| flood(arena, &messages))
}

/// Returns the message that adds a range.
fn map(number: u64) -> Vec<u8> {
    client::posted(Command::DmaMap, &client::map(number * STRIDE, 0, SIZE))
}

/// Returns the message that removes a range.
fn unmap(number: u64) -> Vec<u8> {
    client::posted(Command::DmaUnmap, &client::unmap(number * STRIDE, SIZE))
}

/// Sends each message separately, so that each is an event for the server.
fn flood(arena: &Arena, messages: &[Vec<u8>]) -> Round {
    let mut client = Client::negotiated(&arena.socket("target.user0"))?;
    for message in messages {
        client.send(message)?;
    }
    client.ask(Command::DeviceGetInfo, &client::info())?;
    Ok(())
}

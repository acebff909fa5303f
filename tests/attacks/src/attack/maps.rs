//! Attacks by many DMA ranges.

use nicforge_vfio_user::wire::Command;

use crate::{
    arena::{Arena, Round},
    client::{self, Client},
};

/// Distance of two ranges, and size of each: no two of them are adjacent.
const STRIDE: u64 = 0x2000;
const SIZE: u64 = 0x1000;

/// Adds tens of thousands of ranges, each in front of all existing ones.
///
/// A correct server keeps them in a tree, and serves no more messages in a turn than its budget
/// allows.
pub(super) fn descending(arena: &Arena) -> Round {
    let count = arena.size().pick(4_000, 40_000);
    let maps: Vec<_> = (0..count).rev().map(map).collect();
    arena.repeat(|| flood(arena, &maps))
}

/// Adds ranges in the same order and removes some in between, from the far end.
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

fn map(number: u64) -> Vec<u8> {
    client::posted(Command::DmaMap, &client::map(number * STRIDE, 0, SIZE))
}

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

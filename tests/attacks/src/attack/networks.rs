//! Attacks on cards of a network.

use std::time::Duration;

use nicforge_driver::{Device, Error, OpenOptions, Poster};
use nicforge_hwi::{
    extoll::BAR_VELO,
    extoll_velo::{MAX_QUADWORDS, address},
    tree::{self, SLOT, SLOT_CONTROL, mirror, window},
};
use nicforge_velo::{Config, Port};

use crate::arena::{Arena, Failed, Round};

/// Time limit of a posted write that waits for room in its ring.
const TIMEOUT: Duration = Duration::from_millis(100);
/// Records, slots or words that are written in a round.
const WRITES: u64 = 4096;
/// The BAR of registers.
const REGISTERS: u8 = 0;
/// The BAR of the client's own ring and windows.
const WINDOWS: u8 = 1;

/// Pseudo-random numbers, the same in each run.
struct Random(u64);

impl Random {
    /// Returns the next number.
    fn next(&mut self) -> u64 {
        // Steele, Lea and Flood: SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Attacks by two cores of the tree network. They fill the slots of all FIFOs with packets to any
/// address and take none. They overwrite the ring and the windows with garbage, write random
/// registers by posted writes, and reset themselves.
///
/// A correct server does only as much of that in a turn as its budget allows.
pub(super) fn tree(arena: &Arena) -> Round {
    let mut random = Random(1);
    arena.repeat(|| {
        let cores = [open(arena, "cn0.core0")?, open(arena, "cn1.core0")?];
        for core in &cores {
            send_packets(core, &mut random)?;
            post_garbage(core, &mut random)?;
            scribble(core, WINDOWS, &mut random)?;
            scribble(core, tree::BAR_WINDOW, &mut random)?;
            is_accepted(core.reset())?;
        }
        Ok(())
    })
}

/// Attacks by a VELO sender that floods a receiver that reads nothing, and random addresses. It
/// writes garbage and resets itself as the cores of [`tree`] do.
///
/// A correct server does only as much of that in a turn as its budget allows.
pub(super) fn velo(arena: &Arena) -> Round {
    let mut random = Random(2);
    arena.repeat(|| {
        let receiver = open(arena, "ex1.vpid0")?;
        let idle_receiver = Port::open(receiver, Config::default());
        let sender = open(arena, "ex0.vpid0")?;
        let mut poster = poster(&sender)?;

        for number in 0..WRITES {
            let (node, vpid) = if number % 8 == 0 { (random.next(), random.next()) } else { (1, 0) };
            let at = address::encode(node as u32, vpid as u16, random.next() as u8, MAX_QUADWORDS);
            if !is_accepted(poster.post(BAR_VELO, at, &[0x5a; 8 * MAX_QUADWORDS]))? {
                break;
            }
        }

        drop(poster);
        post_garbage(&sender, &mut random)?;
        scribble(&sender, WINDOWS, &mut random)?;
        is_accepted(sender.reset())?;
        drop(idle_receiver);

        Ok(())
    })
}

/// Opens the device behind a socket.
pub(super) fn open(arena: &Arena, name: &str) -> Result<Device, Failed> {
    let options = OpenOptions { heartbeat: None, ..OpenOptions::default() };
    Ok(Device::open_vfio_user(arena.socket(name), options)?)
}

/// Returns the poster of a device's ring, with a short timeout for a full ring.
fn poster(device: &Device) -> Result<Poster, Failed> {
    let mut poster = device.poster(0)?;
    poster.set_timeout(TIMEOUT);
    Ok(poster)
}

/// Fills the send slots repeatedly with packets of valid numbers and random headers.
fn send_packets(core: &Device, random: &mut Random) -> Round {
    let (windows, mirrors) = (core.bar(tree::BAR_WINDOW)?, core.bar(tree::BAR_MIRROR)?);
    let depth = u64::from(mirrors.read32(mirror::SEND_DEPTH)?).max(1);

    for _ in 0..WRITES / depth {
        let head = u64::from(mirrors.read32(mirror::SEND_HEAD)?);
        for number in head..head + depth {
            let sequence = (number as u32).wrapping_add(1);
            let control = random.next() << 32 | u64::from(sequence);
            windows.write64(window::SEND + number % depth * SLOT + SLOT_CONTROL, control)?;
        }
        windows.kick_if_sleeping()?;
    }

    Ok(())
}

/// Posts writes to random registers.
fn post_garbage(device: &Device, random: &mut Random) -> Round {
    let (size, mut poster) = (device.bar(REGISTERS)?.size(), poster(device)?);
    for _ in 0..WRITES {
        let at = random.next() % size / 8 * 8;
        if !is_accepted(poster.post(REGISTERS, at, &random.next().to_le_bytes()))? {
            break;
        }
    }

    Ok(())
}

/// Writes random words to the mapped areas of a BAR.
fn scribble(device: &Device, bar: u8, random: &mut Random) -> Round {
    let bar = device.bar(bar)?;
    let areas = bar.info().mappable.clone();

    for area in areas {
        for _ in 0..WRITES {
            let at = area.offset + random.next() % area.len / 8 * 8;
            bar.write64(at, random.next())?;
        }
    }

    Ok(bar.kick_if_sleeping()?)
}

/// Returns whether the device accepted a write. A full ring or a refusal is an expected result for
/// the attacker.
///
/// # Errors
/// When the device is lost.
fn is_accepted(result: Result<(), Error>) -> Result<bool, Failed> {
    match result {
        Ok(()) => Ok(true),
        Err(error @ Error::DeviceGone { .. }) => Err(error.into()),
        Err(_) => Ok(false),
    }
}

//! The check that routing tables reach every node and can't deadlock.
//!
//! A packet holds a buffer of the channel it arrived by and waits for a buffer of the channel it
//! leaves by. If that relation has no cycle, every waiting packet can proceed at some time (Dally
//! and Seitz). All classes of traffic use the same tables on channels of their own, so the check
//! covers one class.

use nicforge_hwi::extoll::LINKS;

use super::{Neighbours, Route, Routes, TopologyError};
use crate::wire::LANES;

/// Number of channels that leave a node.
const CHANNELS: usize = LINKS * LANES;

/// Checks the tables of all nodes.
pub(super) fn check(nodes: u32, neighbours: &Neighbours, routes: &Routes) -> Result<(), TopologyError> {
    // For each channel (node, port, lane), the channels by which its packets may leave the next
    // node, one bit for each.
    let mut waits_for = vec![0u16; nodes as usize * CHANNELS];

    for target in 0..nodes {
        for node in 0..nodes {
            let unreachable = TopologyError::Unreachable { node, target };
            let (port, lane) = match routes.get(node, target) {
                Route::Local if node == target => continue,
                Route::Port { port, lane } if node != target && usize::from(lane) < LANES => (port, lane),
                _ => return Err(unreachable),
            };

            let end = neighbours[node as usize].get(usize::from(port)).copied().flatten();
            let Some((next, _)) = end else { return Err(unreachable) };

            if let Route::Port { port: on, lane: on_lane } = routes.get(next, target) {
                let index = node as usize * CHANNELS + channel(port, lane);
                waits_for[index] |= 1 << channel(on, on_lane);
            }
        }
    }

    match cycle(neighbours, &waits_for) {
        None => Ok(()),
        Some(index) => {
            let (node, channel) = (index / CHANNELS, index % CHANNELS);
            Err(TopologyError::Deadlock {
                node: node as u32,
                port: (channel / LANES) as u8,
                lane: (channel % LANES) as u8,
            })
        }
    }
}

/// Returns the index of a channel among those of its node.
fn channel(port: u8, lane: u8) -> usize {
    (usize::from(port) * LANES + usize::from(lane)) % CHANNELS
}

/// Returns a channel on a cycle, if there is one.
///
/// Channels that wait for no other are removed until none is left, or all that are left wait for
/// each other. A table that leads in a circle to some target also makes such a cycle.
fn cycle(neighbours: &Neighbours, waits_for: &[u16]) -> Option<usize> {
    let successors = |index: usize| {
        let (node, port) = (index / CHANNELS, index % CHANNELS / LANES);
        let next = neighbours[node][port].map_or(0, |(next, _)| next as usize);
        let set = waits_for[index];
        (0..CHANNELS).filter(move |bit| set & (1 << bit) != 0).map(move |bit| next * CHANNELS + bit)
    };

    let mut waiting: Vec<u32> = waits_for.iter().map(|set| set.count_ones()).collect();
    let mut waited_by: Vec<Vec<u32>> = vec![Vec::new(); waits_for.len()];
    for index in 0..waits_for.len() {
        for successor in successors(index) {
            waited_by[successor].push(index as u32);
        }
    }

    let mut free: Vec<usize> = (0..waiting.len()).filter(|&index| waiting[index] == 0).collect();
    let mut left = waiting.len() - free.len();

    while let Some(index) = free.pop() {
        for &before in &waited_by[index] {
            let count = &mut waiting[before as usize];
            *count -= 1;
            if *count == 0 {
                left -= 1;
                free.push(before as usize);
            }
        }
    }

    if left == 0 { None } else { (0..waiting.len()).find(|&index| waiting[index] > 0) }
}

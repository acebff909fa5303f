//! Several ranks in one thread, which make progress round-robin.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use nicforge_matching::{
    Completion, Config, Endpoint, Envelope, Mode, Request, Selector,
    memory::{Fabric, FabricConfig, FabricPort},
};

/// Number of rounds after which a waiting test fails. Every operation takes a bounded number of
/// rounds, whatever the load of the machine.
pub const MAX_ROUNDS: usize = 200_000;

/// All ranks of a fabric.
pub struct World {
    pub fabric: Fabric,
    pub ranks: Vec<Endpoint<FabricPort>>,
}

impl World {
    pub fn new(size: u32, fabric_config: FabricConfig, config: Config) -> Self {
        let (fabric, ports) = Fabric::new(size, fabric_config);
        let ranks = ports.into_iter().map(|port| Endpoint::new(port, config).unwrap()).collect();

        Self { fabric, ranks }
    }

    /// Creates two ranks with default settings.
    pub fn pair() -> Self {
        Self::new(2, FabricConfig::default(), Config::default())
    }

    /// Calls `progress` once for each rank.
    pub fn progress(&mut self) -> usize {
        self.ranks.iter_mut().map(|rank| rank.progress().unwrap()).sum()
    }

    /// Drives all ranks `count` times.
    pub fn progress_rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.progress();
        }
    }

    /// Drives all ranks until `request` of `rank` is complete.
    pub fn wait(&mut self, rank: usize, request: Request) -> Completion {
        for _ in 0..MAX_ROUNDS {
            if let Some(completion) = self.ranks[rank].test(request).unwrap() {
                return completion;
            }

            self.progress();
        }
        panic!("{request:?} of rank {rank} does not complete: {:?}", self.ranks[rank].statistics());
    }

    /// Starts a standard send of `data` to rank `to` in context 0.
    pub fn send(&mut self, from: usize, to: u32, tag: u64, data: &[u8]) -> Request {
        self.ranks[from].isend(Envelope::new(to, 0, tag), Mode::Standard, data.to_vec(), 0).unwrap()
    }

    /// Posts a receive of at most `capacity` bytes.
    pub fn receive(&mut self, rank: usize, selector: Selector, capacity: usize) -> Request {
        self.ranks[rank].irecv(selector, vec![0xee; capacity], 0).unwrap()
    }
}

/// Returns data that depends on `seed` and position.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;

    (0..length)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

//! The matching layer's protocols: over the transport between ranks of one process, and over the
//! EXTOLL card, through every door.

use nicforge_matching::memory::{Fabric, FabricPort, Terms};
use nicforge_tests::{
    bodies_of,
    extoll_body::{self, machine, over_extoll},
    matching_body::{self, Network},
    through_every_door,
};

/// Ranks of this process, without a device.
struct Memory(Terms);

impl Network for Memory {
    type Transport = FabricPort;

    fn ranks(&self, size: u32) -> Vec<FabricPort> {
        Fabric::new(size, self.0).1
    }
}

/// Returns variants of that transport: message sizes, shortages and delays, one ring for all
/// senders or one for each.
fn terms() -> Vec<Terms> {
    let sizes = [48, 64, 65, 120, 4096].into_iter();
    let of_size = |message_bytes| {
        [0, 1].map(|seed| Terms { message_bytes, get_bytes: 1000, credits: 4, seed, ..Terms::default() })
    };
    let of_seed = |seed| Terms { seed, one_ring: seed % 2 == 0, ..Terms::default() };
    sizes.flat_map(of_size).chain((2..20).map(of_seed)).collect()
}

macro_rules! in_memory {
    ($($body:ident)+) => {
        mod in_memory {
            $(#[test]
            fn $body() {
                for terms in super::terms() {
                    super::matching_body::$body(&super::Memory(terms));
                }
            })+
        }
    };
}
bodies_of!(matching_body => [in_memory]);

through_every_door! {
    over_extoll(machine());
    extoll_body(machine());
}

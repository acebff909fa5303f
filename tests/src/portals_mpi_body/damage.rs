//! Messages whose data are damaged in the network.
//!
//! A link changes the data of some messages in each transmission, so that its own check does not
//! find it. The end-to-end check does.

use nicforge_core::{
    fabric::{Direction, Fault, LinkId},
    machine::Machine,
};
use nicforge_machine::{build::build, description::parse};
use nicforge_nics::families;
use nicforge_portals::Failure;
use nicforge_portals_mpi::{Error, Selector};
use nicforge_test_body::body;

use super::{bytes, in_both_modes};
use crate::{
    backing::Rig,
    bodies::{Guests, TestMachine},
    pattern::pattern,
};

/// The byte that all data of a message to be damaged have.
const FRAGILE: u8 = 0xdb;
/// Number of such bytes at the start of a packet by which the link recognises it.
const MARK: usize = 32;

/// The machine of the bodies of this file.
pub static MACHINE: TestMachine = TestMachine {
    name: "portals_mpi_damage",
    make: machine,
    guests: Guests::None("the machine's links damage the data, whatever program receives them"),
};

/// Returns a machine whose links damage all packets that begin with [`MARK`] bytes [`FRAGILE`].
fn machine() -> Machine {
    let text = "name = \"portals\"\n[[seastar]]\ntorus = [2]\nprocesses = 2\nend_to_end_crc = true\n";
    let mut machine = build(&parse(text, "portals.toml", &families()).unwrap()).unwrap().0;
    let fabric = machine.fabric();
    for link in 0..fabric.links() {
        for direction in [Direction::Forward, Direction::Backward] {
            let damage = |packet: &mut nicforge_core::fabric::Packet, _| {
                let bytes = packet.bytes_mut();
                if bytes.len() >= MARK && bytes[..MARK] == [FRAGILE; MARK] {
                    bytes[0] ^= 1;
                }
                Fault::None
            };
            fabric.set_fault(LinkId(link), direction, Some(Box::new(damage))).unwrap();
        }
    }
    machine
}

/// A message that arrives damaged each time ends at both of its ranks, whether or not it was
/// expected, and later ones arrive.
#[body]
pub fn a_message_that_is_always_damaged_ends_at_both_ranks(rig: &dyn Rig) {
    in_both_modes(rig, |world| {
        for (tag, is_expected) in [(1, true), (2, false)] {
            let data = [FRAGILE; 3000];
            let selector = Selector::exact(0, 0, tag);
            let early = is_expected.then(|| world.receive(2, selector, data.len()));
            let before = world.ranks[2].statistics().unexpected;
            let send = world.send(0, 2, tag, &data);
            if !is_expected {
                world.await_unexpected(2, before + 1);
            }
            let receive = early.unwrap_or_else(|| world.receive(2, selector, data.len()));

            assert_eq!(world.wait(2, receive).result, Err(Error::Failed(Failure::Data)));
            assert_eq!(world.wait(0, send).result, Err(Error::GivenUp { peer: 2 }));
        }

        let whole = pattern(1, 3000);
        let send = world.send(0, 2, 3, &whole);
        let receive = world.receive(2, Selector::exact(0, 0, 3), whole.len());
        assert!(bytes(&world.wait(2, receive)) == whole);
        assert_eq!(world.wait(0, send).result, Ok(()));
    });
}

//! VELO between processes of two EXTOLL cards, through every door.

use nicforge_tests::{
    through_every_door,
    velo_body::{self, flow as velo_flow, hostile as velo_hostile, machine, torn as velo_torn},
};

through_every_door! {
    velo_body(machine(500));
    velo_flow(machine(500));
    velo_hostile(machine(500));
    velo_torn(machine(500));
}

//! FCNP between the cores of a pset, through every door.

use nicforge_tests::{fcnp_body, through_every_door};

through_every_door! {
    fcnp_body(fcnp_body::machine(fcnp_body::DEPTH));
}

mod depth_1 {
    use super::*;
    through_every_door! {
        fcnp_body(nicforge_tests::fcnp_body::machine(1)):
            messages_arrive_unchanged;
    }
}

mod depth_2 {
    use super::*;
    through_every_door! {
        fcnp_body(nicforge_tests::fcnp_body::machine(2)):
            messages_arrive_unchanged;
    }
}

mod depth_256 {
    use super::*;
    through_every_door! {
        fcnp_body(nicforge_tests::fcnp_body::machine(256)):
            messages_arrive_unchanged;
    }
}

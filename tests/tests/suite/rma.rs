//! The RMA library, through every door.

use nicforge_tests::{rma_body, through_every_door};

through_every_door! {
    rma_body(rma_body::machine());
}

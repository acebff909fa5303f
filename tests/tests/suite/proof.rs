//! The proof devices, through every door.

use nicforge_tests::{
    proof_body::{self, addressed_send, dma_engine, slot_fifo},
    through_every_door,
};

through_every_door! {
    slot_fifo(proof_body::machine());
    dma_engine(proof_body::machine());
    addressed_send(proof_body::machine());
}

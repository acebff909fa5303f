//! Tests of shared memory and the structures in it, in one program. Each file has its own topic.

mod copy;
mod memory;
mod ring;
mod slots;
mod wake;

//! Tests of the test kit, in one program, with a device that uses each part of it.

mod echo;
mod machine;
mod memory;
mod packets;

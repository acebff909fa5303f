//! Tests of the tree NIC in a machine that the test steps, in one program. Each file has its own
//! topic.

#[path = "../common/mod.rs"]
mod common;

mod collective;
mod cut_through;
mod flood;
mod hostile;
mod interrupts;
mod lifecycle;
mod port;
mod routing;

//! Tests of the torus in a machine that the test steps, in one program. Each file has its own
//! topic.

#[path = "../common/mod.rs"]
mod common;

mod fifos;
mod hostile;
mod interrupts;
mod lifecycle;
mod port;
mod registers;
mod routing;

//! Tests of matching between ranks of one thread, in one program. Each file has its own topic.

#[path = "../common/mod.rs"]
mod common;

mod death;
mod growth;
mod model;
mod window;

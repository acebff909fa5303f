//! The `vfio_user` crate as the other side of the socket: its client at nicforge's server, and
//! nicforge's client and driver at its server.
//!
//! The `vfio_user` crate is an independent implementation of the same specification. Features it
//! lacks or implements differently are asserted here too where they are visible from outside; the
//! book's conformance table describes them. Neither side of the `vfio_user` crate has deadlines, so
//! each test that it could block has one ([`common::with_time_out`]).
//!
//! [`reference_client`] sends the messages of the reference implementation's client, one by one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "all of this is tests")]

mod common;
mod foreign_client;
mod foreign_server;
mod reference_client;

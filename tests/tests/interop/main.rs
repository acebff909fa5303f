//! The `vfio_user` crate as the other side of the socket: its client at our server, and our client and driver at its server.
//!
//! It is another implementation of the same specification, by other people. What it does not do, or does differently, is
//! asserted here too where it can be told from outside; the book's conformance table says it in words. Neither side of it has
//! deadlines, so each test that it could hold up has one ([`common::in_time`]).
//!
//! [`reference_client`] sends what the client of the reference implementation sends, message by message.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "all of this is tests")]

mod common;
mod foreign_client;
mod foreign_server;
mod reference_client;

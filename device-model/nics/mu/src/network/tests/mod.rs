//! Tests of the network unit, by its own interface.

mod bed;
mod collectives;
mod refusals;
mod registers;
mod routes;

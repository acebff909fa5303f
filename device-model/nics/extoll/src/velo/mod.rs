//! VELO: small messages, sent by stores and received in rings.
//!
//! - `assembly`: putting split bursts together;
//! - `send`: from a store's address to a packet; stalls and their watchdog;
//! - `ring`: a VPID's receive ring in its own memory, and the credit that is owed for what was taken out of it;
//! - `receive`: from packets to the rings of those that they are for.

pub(crate) mod assembly;
mod receive;
pub(crate) mod ring;
pub(crate) mod send;

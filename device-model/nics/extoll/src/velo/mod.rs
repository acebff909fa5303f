//! VELO: small messages, sent by stores and received in rings.
//!
//! | module | contents |
//! | --- | --- |
//! | `assembly` | assembly of split bursts |
//! | `send` | packets from stores; stalls and their watchdog |
//! | `ring` | a VPID's receive ring in its own memory, and the credit returned for its slots |
//! | `receive` | delivery of packets to receive rings |

pub(crate) mod assembly;
mod receive;
pub(crate) mod ring;
pub(crate) mod send;

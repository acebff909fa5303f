//! The C library `libnicforge`: the user libraries' protocols for programs in C.
//!
//! Each protocol is a module and a header, which is generated from the module and `headers.toml`
//! (`cargo xtask headers`). The modules use the protocols' Rust libraries, and nothing uses this
//! crate. `cargo xtask install` installs it, as an archive and as a shared library.
//!
//! - [`fcnp`], `nicforge/fcnp.h`: I/O forwarding on the tree; `fcnp_cn.h` and `fcnp_ion.h` have the
//!   original names of its calls;
//! - [`velo`], `nicforge/velo.h`: small messages on an EXTOLL card;
//! - [`rma`], `nicforge/rma.h`: remote memory on an EXTOLL card;
//! - [`extoll`], `nicforge/extoll.h`: VELO and RMA over one VPID of a card;
//! - [`matching`], `nicforge/matching.h`: messages with tags between the ranks of a program;
//! - [`portals3`], `nicforge/portals3.h`: Portals 3.3 on a SeaStar;
//! - [`spi`], `nicforge/spi.h`: the SPI of Blue Gene/Q on a Message Unit;
//! - [`bgl`], `nicforge/bgl.h`: the message layer of Blue Gene/L on a torus;
//! - `support`: handles, errors and pointers, for all of them.
//!
//! All protocols are in one library, because a device has one owner. Two libraries that each
//! contain a copy of the driver can't share it.

mod support;

pub mod bgl;
pub mod extoll;
pub mod fcnp;
pub mod matching;
pub mod portals3;
pub mod rma;
pub mod spi;
pub mod velo;

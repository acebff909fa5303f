//! Tests of the driver library on a device in memory, in one program. Each file has its own topic.

#[path = "../common/mod.rs"]
mod common;

mod device;
mod fork;
mod interrupt;
mod posted;
mod vfio_user;

//! Tests that boot guests, in one program of their own. Each file has its own topic. They need QEMU
//! and a kernel, and take minutes.

mod bodies;
mod idio16;
mod ports;
mod shim;
mod virtio;
mod virtio_devices;

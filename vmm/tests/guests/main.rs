//! Tests that boot guests with a served machine, in one program of their own. Each file has its own
//! topic. They need QEMU and a kernel, and take minutes.

mod guest_support;

mod boot;
mod life;
mod lspci;

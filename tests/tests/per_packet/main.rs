//! The cost of a packet beyond its bytes: allocations and system calls, counted on every thread
//! while 100,000 packets pass. Both must be zero. Waiting is counted separately: a thread without
//! work yields its processor.
//!
//! Each stream runs in a process of its own, in which no other code allocates or calls the kernel.
//!
//! - `workload.rs`: streams of packets, messages and posted writes, with marks before and after the
//!   counted part
//! - `process.rs`: this binary as a process that runs one stream
//! - `allocations.rs`: the counting allocator of this binary
//! - `tracer.rs`: counts the system calls of such a process, by `ptrace`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "all of this binary is tests")]

mod allocations;
mod process;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod tracer;
mod workload;

use nicforge_tests::backing::EventLoopKind;

use workload::{Door, Stream};

macro_rules! streams {
    ($($name:ident: $door:expr, $stream:expr;)+) => {
        mod allocations_while {
            use super::*;
            $(#[test]
            fn $name() {
                allocations::check(concat!("stream::", stringify!($name)));
            })+
        }

        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        mod system_calls_while {
            use super::*;
            $(#[test]
            fn $name() {
                tracer::check(concat!("stream::", stringify!($name)), $door);
            })+
        }

        /// These are not tests of their own, but the streams, for a process that was started for
        /// one.
        mod stream {
            use super::*;
            $(#[test]
            fn $name() {
                process::run($door, $stream);
            })+
        }
    };
}

streams! {
    packets_go_through_an_engine: Door::Served(EventLoopKind::Auto), Stream::Packets;
    packets_go_through_an_engine_with_epoll: Door::Served(EventLoopKind::Epoll), Stream::Packets;
    packets_go_through_a_machine_in_process: Door::InProcess, Stream::Packets;
    messages_go_through_an_engine: Door::Served(EventLoopKind::Auto), Stream::Messages;
    messages_go_through_a_machine_in_process: Door::InProcess, Stream::Messages;
    posted_writes_go_through_an_engine: Door::Served(EventLoopKind::Auto), Stream::Posted;
    posted_writes_go_through_a_machine_in_process: Door::InProcess, Stream::Posted;
    memory_fifo_packets_go_through_an_engine: Door::Served(EventLoopKind::Auto), Stream::MemoryFifo;
    memory_fifo_packets_go_through_a_machine_in_process: Door::InProcess, Stream::MemoryFifo;
    mu_transport_messages_go_through_a_machine_in_process: Door::InProcess, Stream::MuTransport;
}

//! What a packet costs beside its bytes: allocations and system calls, counted on every thread while 100,000 packets go by.
//! Both are to be none. Waiting is told apart: a thread that finds nothing to do gives its processor to others.
//!
//! Each stream runs in a process of its own, in which nobody else allocates or calls the kernel.
//!
//! - `workload.rs`: streams of packets, messages and posted writes, with a mark before and after what is counted;
//! - `process.rs`: this binary as a process that runs one stream;
//! - `allocations.rs`: the allocator of this binary, which counts;
//! - `tracer.rs`: counts the system calls of such a process, by `ptrace`.
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

        /// Not tests of their own: the streams, in a process that was started for one.
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
}

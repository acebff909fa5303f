//! Tests of the C API from Rust.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use nicforge_bgl_transport::{BglTransport, Config as BglConfig, Job as BglJob};
use nicforge_driver::Device;
use nicforge_extoll_transport::{Config as ExtollConfig, ExtollTransport, Job};
use nicforge_machine::{build::build, description::parse, in_process::LocalMachine};
use nicforge_matching::TransportError;
use nicforge_mu_transport::{Config as MuConfig, Job as MuJob, MuTransport};
use nicforge_nics::families;

use super::*;
use crate::support::Opened;

/// Returns a device of a machine in this process. `table` is the part of the machine file that
/// describes the network.
fn device(table: &str, node: &str, attachment: &str) -> Device {
    let text = format!("name = \"alone\"\n{table}\n");
    let machine = build(&parse(&text, "alone.toml", &families()).unwrap()).unwrap().0;
    let backing = LocalMachine::new(machine).open_named(node, attachment).unwrap();
    Device::from_backing(backing).unwrap()
}

/// An opened endpoint.
type Endpoint = Opened<matching_endpoint>;

/// Returns the handle of an endpoint.
fn handle_of(endpoint: &Endpoint) -> *const matching_endpoint {
    std::ptr::from_ref(endpoint).cast()
}

/// Opens the endpoint of a rank.
fn endpoint(rank: Rank) -> Endpoint {
    let inner = Inner { rank, timeout: Some(Duration::from_secs(60)), barrier: Barrier::default() };
    Opened::new(matching_endpoint(Handle::new(inner).unwrap()))
}

/// Returns both ranks of a job on two EXTOLL cards.
fn two_ranks() -> [Endpoint; 2] {
    two_ranks_with(Config::default())
}

/// As [`two_ranks`], with this configuration of matching.
fn two_ranks_with(config: Config) -> [Endpoint; 2] {
    let text = "name = \"two\"\n[[extoll]]\nmesh = 2\n";
    let machine = LocalMachine::new(build(&parse(text, "two.toml", &families()).unwrap()).unwrap().0);
    ["ex0", "ex1"].map(|node| {
        let device = Device::from_backing(machine.open_named(node, "vpid0").unwrap()).unwrap();
        let transport = ExtollTransport::open(device, &Job::of_nodes(2, 1), ExtollConfig::default());
        endpoint(Rank::of_extoll(transport.unwrap(), config).unwrap())
    })
}

/// Returns the only ranks of three jobs, one on each network.
fn single_ranks() -> [Endpoint; 3] {
    let card = device("[[extoll]]\nmesh = 2", "ex0", "vpid0");
    let extoll = ExtollTransport::open(card, &Job::of_nodes(1, 1), ExtollConfig::default());
    let unit = device("[[bgq]]\ntorus = [2]\nsubgroups = 1", "bgq0", "s0");
    let mu = MuTransport::open(&unit, &MuJob::of_nodes(1, 1), MuConfig::default());

    let core = device("[[bgl]]\ntorus = [2, 1, 1]", "bgl0.torus", "core0");
    let bgl = BglTransport::open(core, &BglJob::of_nodes(1), BglConfig::default());

    let config = Config::default();
    let extoll = Rank::of_extoll(extoll.unwrap(), config);
    let mu = Rank::of_mu(mu.unwrap(), config);
    let bgl = Rank::of_bgl(bgl.unwrap(), config);
    [extoll, mu, bgl].map(|rank| endpoint(rank.unwrap()))
}

/// Interrupting a wait does not cancel the request; its number remains valid.
#[test]
fn an_interrupted_wait_leaves_its_request_outstanding() {
    single_ranks().iter().for_each(interrupt_a_wait);
}

/// Interrupts the wait for a receive, then sends the message to this rank itself and waits again.
fn interrupt_a_wait(endpoint: &Endpoint) {
    let handle = handle_of(endpoint);
    let (mut received, sent, mut request) = ([0_u8; 8], [7_u8; 8], 0);
    let mut status = matching_status::default();

    let target = received.as_mut_ptr().cast();
    // SAFETY: the handle and all memory live until the end.
    assert_eq!(unsafe { matching_irecv(handle, 0, 1, 2, 0, target, 8, &raw mut request) }, 0);

    // SAFETY: as above.
    assert_eq!(unsafe { matching_interrupt(handle, true) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { matching_wait(handle, request, &raw mut status) }, -libc::EINTR);
    // SAFETY: as above.
    assert_eq!(unsafe { matching_interrupt(handle, false) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { matching_send(handle, 0, 1, 2, sent.as_ptr().cast(), 8) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { matching_wait(handle, request, &raw mut status) }, 0);
    assert_eq!((status.size, received), (8, sent));

    // SAFETY: as above.
    let second_wait = unsafe { matching_wait(handle, request, &raw mut status) };
    assert_eq!(second_wait, -libc::EBADF);
}

/// The window and its pool are options. Where they have no room, both sides get an error number.
#[test]
fn a_full_window_has_an_error_number_and_its_options() {
    assert_eq!(config_of(&matching_options::default()), Config::default());
    let options = matching_options { window: 8192, window_pool: 16_384, ..Default::default() };
    let config = config_of(&options);
    assert_eq!((config.window, config.pool), (8192, 16_384));

    let ranks = two_ranks_with(config);
    let [sender, receiver] = ranks.each_ref().map(handle_of);
    let (data, mut received) = ([7_u8; 8], [0_u8; 8]);
    let mut sends = [0; 400];
    for (tag, request) in (0..).zip(&mut sends) {
        // SAFETY: the handles and all memory live until the end.
        assert_eq!(unsafe { matching_isend(sender, 1, 0, tag, data.as_ptr().cast(), 8, request) }, 0);
    }
    let (target, mut receive) = (received.as_mut_ptr().cast(), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { matching_irecv(receiver, 0, 0, 399, 0, target, 8, &raw mut receive) }, 0);

    let wait = |endpoint: &Endpoint, request| {
        // SAFETY: as above.
        unsafe { matching_wait(handle_of(endpoint), request, std::ptr::null_mut()) }
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let result = wait(&ranks[1], receive);
            // The sender may need another answer.
            while !is_over.load(Ordering::Relaxed) {
                // SAFETY: as above.
                unsafe { matching_progress(handle_of(&ranks[1])) };
                thread::yield_now();
            }
            result
        });
        let of_send = wait(&ranks[0], sends[399]);
        is_over.store(true, Ordering::Relaxed);
        assert_eq!((receiving.join().unwrap(), of_send), (-libc::ENOBUFS, -libc::ENOBUFS));
    });
}

/// The barrier's own messages cannot be mixed with those of the program.
#[test]
fn the_context_of_the_barrier_is_refused() {
    single_ranks().iter().for_each(use_the_context_of_the_barrier);
}

/// Calls each function that takes a context with the barrier's.
fn use_the_context_of_the_barrier(endpoint: &Endpoint) {
    let handle = handle_of(endpoint);
    let (mut received, sent, mut request) = ([0_u8; 8], [7_u8; 8], 0);
    let (data, target) = (sent.as_ptr().cast(), received.as_mut_ptr().cast());
    let (context, status) = (MATCHING_BARRIER_CONTEXT, std::ptr::null_mut());

    let calls = [
        // SAFETY: the handle and all memory live until the end.
        unsafe { matching_isend(handle, 0, context, 2, data, 8, &raw mut request) },
        // SAFETY: as above.
        unsafe { matching_irecv(handle, 0, context, 2, 0, target, 8, &raw mut request) },
        // SAFETY: as above.
        unsafe { matching_send(handle, 0, context, 2, data, 8) },
        // SAFETY: as above.
        unsafe { matching_recv(handle, 0, context, 2, 0, target, 8, status) },
    ];

    assert_eq!(calls, [-libc::EINVAL; 4]);
}

/// An interruption ends a barrier that waits. The next call continues the same barrier.
#[test]
fn an_interrupted_barrier_is_continued_by_the_next_call() {
    // SAFETY: the handles live until the end.
    let barrier = |endpoint: &Endpoint| unsafe { matching_barrier(handle_of(endpoint)) };
    // SAFETY: as above.
    let interrupt = |endpoint: &Endpoint, on| unsafe { matching_interrupt(handle_of(endpoint), on) };
    let ranks = two_ranks();

    thread::scope(|scope| {
        let waiting = scope.spawn(|| barrier(&ranks[0]));
        thread::sleep(Duration::from_millis(50));
        let interrupted_at = Instant::now();
        assert_eq!(interrupt(&ranks[0], true), 0);
        assert_eq!(waiting.join().unwrap(), -libc::EINTR);
        assert!(interrupted_at.elapsed() < Duration::from_secs(1));
    });
    assert_eq!(barrier(&ranks[0]), -libc::EINTR);

    assert_eq!(interrupt(&ranks[0], false), 0);
    thread::scope(|scope| {
        let first = scope.spawn(|| barrier(&ranks[0]));
        assert_eq!((barrier(&ranks[1]), first.join().unwrap()), (0, 0));
    });
}

/// A failed request and a failed endpoint have different error numbers.
#[test]
fn error_numbers_show_whether_a_request_is_over() {
    let transport = || Error::Transport(TransportError { what: "it", value: 0 });
    assert_eq!(failure(transport()).errno(), libc::EIO);
    assert_eq!(of_request(transport()).errno(), libc::EREMOTEIO);
    assert_eq!(of_request(Error::NotFetched { peer: 1 }).errno(), libc::EREMOTEIO);
    assert_eq!(of_request(Error::Cancelled).errno(), libc::ECANCELED);
    assert_eq!(failure(Error::Interrupted { what: "it" }).errno(), libc::EINTR);
}

#[test]
fn null_gives_efault() {
    let null = std::ptr::null();
    let calls = [
        // SAFETY: NULL is refused before it is used.
        unsafe { matching_open(std::ptr::null(), std::ptr::null_mut()) },
        // SAFETY: as above.
        unsafe { matching_rank(null) },
        // SAFETY: as above.
        unsafe { matching_send(null, 0, 0, 0, std::ptr::null(), 1) },
        // SAFETY: as above.
        unsafe { matching_wait(null, 1, std::ptr::null_mut()) },
        // SAFETY: as above.
        unsafe { matching_barrier(null) },
    ];
    assert_eq!(calls, [-libc::EFAULT; 5]);

    // SAFETY: NULL is allowed.
    unsafe { matching_close(std::ptr::null_mut()) };
}

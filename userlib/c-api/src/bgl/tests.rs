//! Tests of the C API from Rust: two cores of a machine in this process.

use std::{
    cell::{RefCell, RefMut},
    ffi::CStr,
    ptr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nicforge_machine::{build::build, description::parse, in_process::LocalMachine};
use nicforge_nics::families;

use super::*;
use crate::support::Opened;

/// Time that a test gives an event before it fails.
const LIMIT: Duration = Duration::from_secs(60);
/// Time limit in milliseconds of a wait that another event must end.
const LONG_MS: u64 = 60_000;
/// One length for each protocol: one packet, eager, mid-size and rendezvous.
const LENGTHS: [usize; 4] = [100, 700, 5_000, 50_000];

/// Calls a function of the API.
macro_rules! call {
    ($call:expr) => {{
        // SAFETY: all pointers are NULL where that is refused, or refer to variables of the test
        // that live until the layer is closed.
        unsafe { $call }
    }};
}

/// A program's answer to a message that begins to arrive.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// The message is received into the program's memory.
    Receive,
    /// The program stores this action and no memory, with a capacity of 8.
    Action(u32),
}

/// The state of a program: its answer to messages, and the arguments of its callbacks.
struct Seen {
    answer: Answer,
    memory: Vec<u8>,
    arrivals: Vec<bgl_arrival>,
    received: Vec<bgl_received>,
    sent: Vec<bgl_sent>,
    /// A layer that each callback calls, or NULL.
    layer: *mut bgl_layer,
    /// Results of these calls.
    results: Vec<i32>,
}

impl Seen {
    /// Calls the layer, if there is one, as a callback must not.
    fn call_layer(&mut self) {
        if self.layer.is_null() {
            return;
        }
        let data = [1_u8; BGL_INFORMATION];
        let mut counters = bgl_counters::default();
        self.results.extend([
            call!(bgl_advance(self.layer)),
            call!(bgl_wait(self.layer, 1)),
            call!(bgl_postsend(self.layer, 0, data.as_ptr(), data.as_ptr().cast(), 1, 0)),
            call!(bgl_rank(self.layer)),
            call!(bgl_check_peers(self.layer)),
            call!(bgl_statistics(self.layer, &raw mut counters)),
            call!(bgl_close(self.layer)),
        ]);
        assert_eq!(call!(bgl_interrupt(self.layer, false)), 0);
    }
}

/// Returns the state of a program.
///
/// # Safety
/// `user` is the user pointer of a [`Side`] that exists.
unsafe fn seen<'a>(user: *mut c_void) -> RefMut<'a, Seen> {
    // SAFETY: by this function's contract.
    unsafe { &*user.cast::<RefCell<Seen>>() }.borrow_mut()
}

unsafe extern "C" fn recvnew(
    user: *mut c_void,
    arrival: *const bgl_arrival,
    disposition: *mut bgl_disposition,
) {
    // SAFETY: the library passes on the user pointer of a side.
    let mut seen = unsafe { seen(user) };
    // SAFETY: what a callback is given is valid until it returns.
    seen.arrivals.push(unsafe { arrival.read() });
    // SAFETY: as above.
    let disposition = unsafe { &mut *disposition };
    assert_eq!((disposition.action, disposition.memory), (BGL_DISCARD, ptr::null_mut()));

    *disposition = match seen.answer {
        Answer::Receive => seen.whole_memory(),
        Answer::Action(action) => bgl_disposition { memory: ptr::null_mut(), capacity: 8, action },
    };
    seen.call_layer();
}

unsafe extern "C" fn recvdone(user: *mut c_void, received: *const bgl_received) {
    // SAFETY: as in `recvnew`.
    let mut seen = unsafe { seen(user) };
    // SAFETY: as in `recvnew`.
    seen.received.push(unsafe { received.read() });
    seen.call_layer();
}

unsafe extern "C" fn senddone(user: *mut c_void, sent: *const bgl_sent) {
    // SAFETY: as in `recvnew`.
    let mut seen = unsafe { seen(user) };
    // SAFETY: as in `recvnew`.
    seen.sent.push(unsafe { sent.read() });
    seen.call_layer();
}

impl Seen {
    /// Returns the decision to receive into the program's memory.
    fn whole_memory(&mut self) -> bgl_disposition {
        let (memory, capacity) = (self.memory.as_mut_ptr().cast(), self.memory.len());
        bgl_disposition { memory, capacity, action: BGL_RECEIVE }
    }
}

/// A rank with its program.
struct Side {
    layer: *mut bgl_layer,
    program: Box<RefCell<Seen>>,
}

impl Side {
    /// Opens core 0 of a node, with memory of `capacity` bytes.
    fn open(machine: &Arc<LocalMachine>, node: u16, capacity: usize) -> Self {
        let seen = Seen {
            answer: Answer::Receive,
            memory: vec![0; capacity],
            arrivals: Vec::new(),
            received: Vec::new(),
            sent: Vec::new(),
            layer: ptr::null_mut(),
            results: Vec::new(),
        };
        let program = Box::new(RefCell::new(seen));
        let user = ptr::from_ref(&*program).cast_mut().cast();
        let callbacks = callbacks(user);

        let device = machine.open_named(&format!("bgl{node}.torus"), "core0").unwrap();
        let device = Device::from_backing(device).unwrap();
        let program_of_layer = Program::new(&callbacks).unwrap();
        let layer = open_device_as(device, &bgl_options::default(), program_of_layer).unwrap();
        Self { layer: Box::into_raw(Box::new(Opened::new(layer))).cast(), program }
    }

    /// Posts a message to core 0 of a node.
    fn post(&self, node: u32, data: &[u8], cookie: u64) -> i32 {
        let information = [node as u8 + 1; BGL_INFORMATION];
        let (pointer, length) = (data.as_ptr().cast(), data.len());
        call!(bgl_postsend(self.layer, 2 * node, information.as_ptr(), pointer, length, cookie))
    }

    /// Waits for a callback for a short time.
    fn turn(&self) {
        let result = call!(bgl_wait(self.layer, 1));
        assert!(result >= 1 || result == -libc::ETIMEDOUT, "{result}: {}", last_text());
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        assert_eq!(call!(bgl_close(self.layer)), 0);
    }
}

/// Returns the callbacks of this test.
fn callbacks(user: *mut c_void) -> bgl_callbacks {
    bgl_callbacks { user, recvnew: Some(recvnew), recvdone: Some(recvdone), senddone: Some(senddone) }
}

/// Returns the first ranks of two nodes of a new machine. Each has memory of `capacity` bytes.
fn pair(capacity: usize) -> [Side; 2] {
    let text = "name = \"two\"\n[[bgl]]\ntorus = [2, 1, 1]\n";
    let machine = LocalMachine::new(build(&parse(text, "two.toml", &families()).unwrap()).unwrap().0);
    [0, 1].map(|node| Side::open(&machine, node, capacity))
}

/// Lets ranks advance until a condition holds.
fn run_until(sides: &[&Side], what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if condition() {
            return;
        }
        sides.iter().for_each(|side| side.turn());
    }
    assert!(condition(), "{what} has not happened");
}

/// Returns the text of this thread's last error.
fn last_text() -> String {
    // SAFETY: valid until this thread's next error.
    unsafe { CStr::from_ptr(bgl_last_error()) }.to_string_lossy().into_owned()
}

/// Returns the bytes of a message.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8 + 1).collect()
}

#[test]
fn null_gives_efault() {
    let (null, mut layer) = (ptr::null(), ptr::null_mut());
    let all = callbacks(ptr::null_mut());
    let incomplete = bgl_callbacks { senddone: None, ..all };

    let calls = [
        call!(bgl_open(ptr::null(), ptr::null(), ptr::null(), &raw mut layer)),
        call!(bgl_open(ptr::null(), ptr::null(), &raw const incomplete, &raw mut layer)),
        call!(bgl_open(ptr::null(), ptr::null(), &raw const all, ptr::null_mut())),
        call!(bgl_rank(null)),
        call!(bgl_ranks(null)),
        call!(bgl_is_up(null, 0)),
        call!(bgl_wait_for_peer(null, 0, 1)),
        call!(bgl_postsend(null, 0, ptr::null(), ptr::null(), 0, 0)),
        call!(bgl_advance(null)),
        call!(bgl_wait(null, 1)),
        call!(bgl_interrupt(null, true)),
        call!(bgl_decide(null, 1, ptr::null())),
        call!(bgl_check_peers(null)),
        call!(bgl_has_sent_all(null)),
        call!(bgl_begin_drain(null)),
        call!(bgl_is_drained(null)),
        call!(bgl_end_drain(null)),
        call!(bgl_statistics(null, ptr::null_mut())),
    ];
    assert_eq!(calls, [-libc::EFAULT; 18]);
    assert_eq!(call!(bgl_close(ptr::null_mut())), 0);

    let [side, _other] = pair(0);
    let information = [0; BGL_INFORMATION];
    let calls = [
        call!(bgl_postsend(side.layer, 0, ptr::null(), ptr::null(), 0, 0)),
        call!(bgl_postsend(side.layer, 0, information.as_ptr(), ptr::null(), 1, 0)),
        call!(bgl_decide(side.layer, 1, ptr::null())),
        call!(bgl_statistics(side.layer, ptr::null_mut())),
    ];
    assert_eq!(calls, [-libc::EFAULT; 4]);
}

#[test]
fn opening_a_missing_socket_returns_an_error_and_no_handle() {
    let mut layer = ptr::null_mut();
    let (socket, all) = (c"/nonexistent/socket".as_ptr(), callbacks(ptr::null_mut()));
    let result = call!(bgl_open(socket, ptr::null(), &raw const all, &raw mut layer));

    assert!(result < 0 && layer.is_null() && !last_text().is_empty());
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let text = "name = \"two\"\n[[bgl]]\ntorus = [2, 1, 1]\n";
    let machine = LocalMachine::new(build(&parse(text, "two.toml", &families()).unwrap()).unwrap().0);
    let open = |core: &str, eager, mid_size| {
        let device = Device::from_backing(machine.open_named("bgl0.torus", core).unwrap()).unwrap();
        let program = Program::new(&callbacks(ptr::null_mut())).unwrap();
        open_device_as(device, &bgl_options { eager, mid_size }, program)
    };

    assert!(open("core0", 20_000, 0).is_ok());
    assert_eq!(open("core1", 2_000, 1_000).map_err(|failure| failure.errno()).err(), Some(libc::EINVAL));
}

#[test]
fn messages_of_all_protocols_arrive_with_their_information_and_cookies() {
    for length in LENGTHS.into_iter().chain([0]) {
        let sides = pair(60_000);
        let data = pattern(length);
        assert_eq!(sides[0].post(1, &data, 7), 0);
        let [sender, receiver] = &sides;
        run_until(&[sender, receiver], "the message", || {
            let is_sent = !sender.program.borrow().sent.is_empty();
            is_sent && !receiver.program.borrow().received.is_empty()
        });

        let sent = sender.program.borrow().sent[0];
        assert_eq!((sent.cookie, sent.destination, sent.error), (7, 2, 0));

        let seen = receiver.program.borrow();
        let (arrival, received) = (seen.arrivals[0], seen.received[0]);
        assert_eq!((arrival.source, arrival.length, arrival.information), (0, length, [2; 16]));
        assert_eq!((received.message, received.source), (arrival.message, 0));
        assert_eq!((received.length, received.stored, received.error), (length, length, 0));
        assert_eq!(
            (received.information, received.memory),
            ([2; 16], seen.memory.as_ptr().cast_mut().cast())
        );
        assert!(arrival.message != 0 && seen.memory[..length] == data);
        drop(seen);

        let mut counters = bgl_counters::default();
        assert_eq!(call!(bgl_statistics(receiver.layer, &raw mut counters)), 0);
        assert_eq!((counters.messages_received, counters.malformed), (1, 0));
    }
}

#[test]
fn data_can_be_overwritten_as_soon_as_they_are_posted() {
    let [sender, receiver] = pair(50_000);
    let mut data = pattern(50_000);
    assert_eq!(sender.post(1, &data, 0), 0);
    data.fill(0);

    run_until(&[&sender, &receiver], "the message", || !receiver.program.borrow().received.is_empty());
    assert_eq!(receiver.program.borrow().memory, pattern(50_000));
    run_until(&[&sender, &receiver], "the end", || call!(bgl_has_sent_all(sender.layer)) == 1);
}

#[test]
fn longer_messages_are_truncated() {
    for length in LENGTHS {
        let [sender, receiver] = pair(10);
        assert_eq!(sender.post(1, &pattern(length), 0), 0);
        run_until(&[&sender, &receiver], "the message", || !receiver.program.borrow().received.is_empty());

        let seen = receiver.program.borrow();
        let received = seen.received[0];
        assert_eq!((received.length, received.stored, received.error), (length, 10, 0));
        assert_eq!(seen.memory, pattern(10));
    }
}

#[test]
fn impossible_decisions_discard_the_message_and_are_reported() {
    let errors = [
        (BGL_DISCARD, 0),
        (BGL_RECEIVE, -libc::EFAULT),
        (BGL_LATER + 1, -libc::EINVAL),
        (u32::MAX, -libc::EINVAL),
    ];
    let [sender, receiver] = pair(0);

    for (number, (action, error)) in errors.into_iter().enumerate() {
        receiver.program.borrow_mut().answer = Answer::Action(action);
        assert_eq!(sender.post(1, &pattern(700), 0), 0);
        run_until(&[&sender, &receiver], "the message", || receiver.program.borrow().received.len() > number);

        let received = receiver.program.borrow().received[number];
        assert_eq!((received.error, received.length, received.stored), (error, 700, 0));
        assert!(received.memory.is_null());
    }
}

#[test]
fn postponed_messages_are_received_when_the_program_decides() {
    for length in LENGTHS {
        let [sender, receiver] = pair(length);
        receiver.program.borrow_mut().answer = Answer::Action(BGL_LATER);
        assert_eq!(sender.post(1, &pattern(length), 0), 0);
        run_until(&[&sender, &receiver], "the arrival", || !receiver.program.borrow().arrivals.is_empty());

        let message = receiver.program.borrow().arrivals[0].message;
        let decision = receiver.program.borrow_mut().whole_memory();
        let decide =
            |message, decision: &bgl_disposition| call!(bgl_decide(receiver.layer, message, decision));

        // None of these calls decides about the message.
        assert_eq!(decide(message, &bgl_disposition { action: BGL_LATER, ..decision }), 0);
        assert_eq!(decide(message, &bgl_disposition { action: 9, ..decision }), -libc::EINVAL);
        let no_memory = bgl_disposition { memory: ptr::null_mut(), ..decision };
        assert_eq!(decide(message, &no_memory), -libc::EFAULT);
        assert_eq!([decide(0, &decision), decide(message + 1, &decision)], [-libc::EBADF; 2]);

        assert_eq!((decide(message, &decision), decide(message, &decision)), (0, -libc::EBADF));
        run_until(&[&sender, &receiver], "the message", || !receiver.program.borrow().received.is_empty());
        assert_eq!(receiver.program.borrow().memory, pattern(length));
        assert_eq!(decide(message, &decision), -libc::EBADF);
    }
}

#[test]
fn calls_from_callbacks_give_ebusy_and_close_nothing() {
    let [sender, receiver] = pair(700);
    for side in [&sender, &receiver] {
        side.program.borrow_mut().layer = side.layer;
    }

    assert_eq!(sender.post(1, &pattern(700), 0), 0);
    run_until(&[&sender, &receiver], "the message", || {
        let is_sent = !sender.program.borrow().sent.is_empty();
        is_sent && !receiver.program.borrow().received.is_empty()
    });

    assert_eq!(sender.program.borrow().results, [-libc::EBUSY; 7]);
    assert_eq!(receiver.program.borrow().results, [-libc::EBUSY; 14]);
    assert_eq!([call!(bgl_rank(sender.layer)), call!(bgl_ranks(receiver.layer))], [0, 4]);
}

#[test]
fn messages_end_with_an_error_when_their_peer_ends() {
    let [sender, receiver] = pair(0);
    receiver.program.borrow_mut().answer = Answer::Action(BGL_LATER);
    assert_eq!(sender.post(1, &pattern(50_000), 5), 0);
    assert_eq!(receiver.post(0, &pattern(0), 0), 0);
    run_until(&[&sender, &receiver], "the arrival", || !receiver.program.borrow().arrivals.is_empty());

    // The receiver has not acknowledged the rendezvous, so the message can't end otherwise.
    drop(receiver);
    run_until(&[&sender], "the error", || !sender.program.borrow().sent.is_empty());
    let sent = sender.program.borrow().sent[0];
    assert_eq!((sent.cookie, sent.error), (5, -libc::ECONNRESET));
    assert_eq!((call!(bgl_is_up(sender.layer, 2)), sender.post(1, &[], 0)), (0, -libc::ECONNREFUSED));
    assert_eq!(call!(bgl_check_peers(sender.layer)), 0);
}

#[test]
fn postponed_messages_end_with_an_error_when_their_sender_ends() {
    let [sender, receiver] = pair(0);
    receiver.program.borrow_mut().answer = Answer::Action(BGL_LATER);
    assert_eq!(sender.post(1, &pattern(50_000), 0), 0);
    run_until(&[&sender, &receiver], "the arrival", || !receiver.program.borrow().arrivals.is_empty());

    drop(sender);
    run_until(&[&receiver], "the error", || !receiver.program.borrow().received.is_empty());
    let received = receiver.program.borrow().received[0];
    assert_eq!((received.error, received.length, received.stored), (-libc::ECONNRESET, 50_000, 0));
    let decision = bgl_disposition { memory: ptr::null_mut(), capacity: 0, action: BGL_DISCARD };
    assert_eq!(call!(bgl_decide(receiver.layer, received.message, &raw const decision)), -libc::EBADF);
}

#[test]
fn no_message_begins_while_the_connections_are_drained() {
    let [sender, receiver] = pair(5_000);
    assert_eq!(sender.post(1, &pattern(5_000), 0), 0);
    run_until(&[&sender, &receiver], "the arrival", || !receiver.program.borrow().arrivals.is_empty());
    for side in [&sender, &receiver] {
        assert_eq!(call!(bgl_begin_drain(side.layer)), 0);
    }

    // The first message is completed, and the second one waits.
    assert_eq!(sender.post(1, &pattern(100), 0), 0);
    run_until(&[&sender, &receiver], "the drain", || {
        [&sender, &receiver].iter().all(|side| call!(bgl_is_drained(side.layer)) == 1)
    });
    for _ in 0..10 {
        sender.turn();
        receiver.turn();
    }
    let numbers = (receiver.program.borrow().arrivals.len(), receiver.program.borrow().received.len());
    assert_eq!(numbers, (1, 1));

    for side in [&sender, &receiver] {
        assert_eq!(call!(bgl_end_drain(side.layer)), 0);
    }
    run_until(&[&sender, &receiver], "the second message", || receiver.program.borrow().received.len() == 2);
}

#[test]
fn ranks_and_lengths_that_are_impossible_are_refused() {
    let [side, _other] = pair(0);
    let ranks = [4, u32::from(u16::MAX), u32::MAX];
    for rank in ranks {
        let information = [0; BGL_INFORMATION];
        let posted = call!(bgl_postsend(side.layer, rank, information.as_ptr(), ptr::null(), 0, 0));
        let others = [call!(bgl_is_up(side.layer, rank)), call!(bgl_wait_for_peer(side.layer, rank, 1))];
        assert_eq!([posted, others[0], others[1]], [-libc::EADDRNOTAVAIL; 3]);
    }
    assert_eq!([0, 1, 2].map(|rank| call!(bgl_is_up(side.layer, rank))), [1, 0, 1]);

    let data = vec![0; BGL_MAX_MESSAGE + 1];
    assert_eq!(side.post(1, &data, 0), -libc::EMSGSIZE);
}

#[test]
fn waits_end_by_their_time_limit_and_by_an_interruption() {
    /// A handle that another thread interrupts.
    #[derive(Clone, Copy)]
    struct Interruptible(*mut bgl_layer);
    // SAFETY: the library allows `bgl_interrupt` in any thread.
    unsafe impl Send for Interruptible {}

    impl Interruptible {
        fn interrupt(self) -> i32 {
            call!(bgl_interrupt(self.0, true))
        }
    }

    let [side, _other] = pair(0);
    assert_eq!(call!(bgl_wait(side.layer, 1)), -libc::ETIMEDOUT);
    assert_eq!(call!(bgl_wait_for_peer(side.layer, 1, 1)), -libc::ETIMEDOUT);
    assert_eq!(call!(bgl_wait_for_peer(side.layer, 2, LONG_MS)), 0);

    let handle = Interruptible(side.layer);
    let interrupter = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        handle.interrupt()
    });
    assert_eq!(call!(bgl_wait(side.layer, LONG_MS)), -libc::EINTR);
    assert_eq!(interrupter.join().unwrap(), 0);

    // The interruption lasts until the program clears it.
    assert_eq!(call!(bgl_wait_for_peer(side.layer, 1, LONG_MS)), -libc::EINTR);
    assert_eq!(call!(bgl_interrupt(side.layer, false)), 0);
    assert_eq!(call!(bgl_wait(side.layer, 1)), -libc::ETIMEDOUT);
}

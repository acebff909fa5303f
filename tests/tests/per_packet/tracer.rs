//! System calls, counted by `ptrace`: this binary starts itself, and every system call stops that
//! process briefly.
//!
//! The process marks the counted part by calls that no other code makes ([`MARK`]). Waiting is
//! distinguished from work: a thread without work yields its processor (`sched_yield`), and polls
//! its socket now and then.
#![allow(unsafe_code, reason = "what ptrace tells of a system call is a union")]

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use nicforge_core::machine::Machine;
use nicforge_engine::{Engine, EngineConfig, EventLoopKind};
use nix::{
    libc,
    sys::{
        ptrace::{self, Options},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getpgid},
};

use crate::{
    process::{Counted, Process},
    workload::{CALLERS, Door, Mark, PACKETS},
};

/// The arguments of `getpgid` that mark begin and end. No process has these ids, so the calls have
/// no effect.
const MARK: [i32; 2] = [0x7fff_0001, 0x7fff_0002];
/// Limit of a caller's system calls other than for waiting, in 100,000 packets.
const MAX_OTHER_CALLS: u64 = 80;

/// Calls by thread name and number of the call.
type Calls = BTreeMap<(String, u64), u64>;

/// Marks begin or end for the tracer of this process.
pub(crate) fn mark(mark: Mark) {
    let number = if mark == Mark::Begin { MARK[0] } else { MARK[1] };
    assert!(getpgid(Some(Pid::from_raw(number))).is_err());
}

/// Checks the counted calls. The engine only yields its processor and, with epoll, polls its
/// sockets. The library's callers make calls only to wait. FCNP's daemon thread sleeps by the clock
/// meanwhile.
pub(crate) fn check(test: &str, door: Door) {
    // The tests run one after another, since concurrent ones slow each other down and so wait more.
    static ALONE: Mutex<()> = Mutex::new(());

    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let calls = trace(Process::start(test, Counted::SystemCalls));
    println!("system calls while {PACKETS} packets went by:");

    for ((thread, number), count) in &calls {
        println!("{thread:>16} {:>16} {count:>8}", name(*number));
    }

    let sum = |of: &str, expected: &dyn Fn(i64) -> bool| -> u64 {
        let counts = calls.iter().filter(|((thread, number), _)| thread == of && expected(*number as i64));
        counts.map(|(_, count)| count).sum()
    };
    let has_epoll = matches!(door, Door::Served(kind) if kind == EventLoopKind::Epoll || !io_uring_works());
    let of_engine = sum("engine", &|number| match number {
        libc::SYS_sched_yield => false,
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => !has_epoll,
        _ => true,
    });

    assert_eq!(of_engine, 0, "system calls of the engine");

    for caller in ["source", "target"] {
        let yields = sum(caller, &|number| number == libc::SYS_sched_yield);
        // The caller polls its socket every 64 turns of waiting. After 100 turns it also sleeps in
        // between, for up to a millisecond.
        let polls = sum(caller, &|number| {
            matches!(number, libc::SYS_poll | libc::SYS_ppoll | libc::SYS_recvmsg | libc::SYS_futex)
        });
        assert!(
            polls <= MAX_OTHER_CALLS + yields,
            "{polls} polls of the {caller} in {yields} waiting iterations"
        );
        let all = sum(caller, &|_| true);
        assert!(all <= MAX_OTHER_CALLS + yields + polls, "{all} system calls of the {caller}");
    }

    let of_daemon = sum("fcnp", &|number| !matches!(number, libc::SYS_futex | libc::SYS_sched_yield));
    assert_eq!(of_daemon, 0, "system calls of FCNP's daemon");

    // The watchdog of eventfds sleeps by the clock, because each client can be woken by one. The
    // threads that closed what opening needed end when they have been idle for a while.
    let known = ["engine", "source", "target", "fcnp", "nicforge-map", "nicforge-watch", "nicforge-close"];
    let unknown = calls.keys().find(|(thread, _)| !known.contains(&thread.as_str()));

    assert_eq!(unknown, None, "another thread makes system calls");
}

/// Returns whether the kernel has what the engine needs of io_uring.
fn io_uring_works() -> bool {
    let config = EngineConfig { event_loop: EventLoopKind::IoUring, ..EngineConfig::default() };
    Engine::new(Machine::new(), config).is_ok()
}

/// Returns the name of a system call; its number if it is not one of the expected ones.
fn name(number: u64) -> String {
    match number as i64 {
        libc::SYS_sched_yield => "sched_yield".into(),
        libc::SYS_futex => "futex".into(),
        libc::SYS_epoll_wait => "epoll_wait".into(),
        libc::SYS_epoll_pwait => "epoll_pwait".into(),
        libc::SYS_io_uring_enter => "io_uring_enter".into(),
        libc::SYS_poll => "poll".into(),
        libc::SYS_ppoll => "ppoll".into(),
        libc::SYS_recvmsg => "recvmsg".into(),
        libc::SYS_clock_nanosleep => "clock_nanosleep".into(),
        libc::SYS_membarrier => "membarrier".into(),
        number => number.to_string(),
    }
}

/// Traces a process and all its threads to the end. Returns the calls made while all callers were
/// between their marks.
fn trace(mut traced: Process) -> Calls {
    let process = Pid::from_raw(traced.child.id() as i32);
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;

    for task in std::fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        let thread = Pid::from_raw(task.unwrap().file_name().to_str().unwrap().parse().unwrap());
        ptrace::seize(thread, options).expect("ptrace of an own child is allowed");
        ptrace::interrupt(thread).unwrap();
    }

    traced.begin();
    let (mut begin_marks, mut end_marks, mut counts) = (0, 0, BTreeMap::<(Pid, u64), u64>::new());
    let mut names = BTreeMap::new();

    loop {
        // Only this thread's children, since other tests have theirs.
        let status =
            waitpid(Pid::from_raw(-1), Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)).unwrap();
        let (thread, signal) = match status {
            WaitStatus::PtraceSyscall(thread) => {
                if let Some((number, argument)) = entered(thread) {
                    match marked(number, argument) {
                        Some(Mark::Begin) => {
                            begin_marks += 1;
                            names.extend(thread_names(process));
                        }
                        Some(Mark::End) => {
                            // Threads may end after the first mark.
                            if end_marks == 0 {
                                names.extend(thread_names(process));
                            }
                            end_marks += 1;
                        }
                        None if begin_marks == CALLERS && end_marks == 0 => {
                            *counts.entry((thread, number)).or_default() += 1;
                        }
                        None => {}
                    }
                }

                (thread, None)
            }
            WaitStatus::PtraceEvent(thread, ..) => (thread, None),
            WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
            WaitStatus::Exited(thread, code) if thread == process => {
                assert_eq!(code, 0, "the traced process failed");
                break;
            }
            WaitStatus::Signaled(thread, signal, _) if thread == process => panic!("killed by {signal}"),
            _ => continue,
        };

        // A thread that was killed meanwhile is gone.
        let _ = ptrace::syscall(thread, signal);
    }

    assert_eq!((begin_marks, end_marks), (CALLERS, CALLERS), "the marks were not seen");

    let name = |thread: Pid| names.get(&thread).cloned().unwrap_or_else(|| thread.to_string());
    counts.into_iter().map(|((thread, number), count)| ((name(thread), number), count)).collect()
}

/// Returns the number and the first argument of a call that a thread enters. `None` at its exit.
fn entered(thread: Pid) -> Option<(u64, u64)> {
    let info = ptrace::syscall_info(thread).ok()?;
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }

    // SAFETY: the union holds this variant at an entry.
    let entry = unsafe { info.u.entry };
    Some((entry.nr, entry.args[0]))
}

/// Returns the mark that a system call is, if it is one.
fn marked(number: u64, argument: u64) -> Option<Mark> {
    if number != libc::SYS_getpgid as u64 {
        return None;
    }
    let which = MARK.iter().position(|&mark| mark as u64 == argument)?;
    Some([Mark::Begin, Mark::End][which])
}

/// Returns the names of a process's threads.
fn thread_names(process: Pid) -> BTreeMap<Pid, String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks
        .map(|task| {
            let path = task.unwrap().path();
            let id = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
            (Pid::from_raw(id), std::fs::read_to_string(path.join("comm")).unwrap().trim().to_owned())
        })
        .collect()
}

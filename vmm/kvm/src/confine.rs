//! A filter of system calls (seccomp) for a process that runs virtual machines.
//!
//! A guest that takes a processor's thread over finds a process that can open no file, connect to
//! nothing, start no program, and map no memory as code. The filter allows what a machine needs
//! from its start to its end: its processors, its memory slots, the messages of its functions, and
//! the threads and files of its own devices.

use std::{collections::BTreeMap, env::consts::ARCH};

use nix::libc::{self, c_long};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Why a process could not be confined. It is not confined then, or refuses too little.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The filter is impossible on this processor.
    #[error("the filter of system calls: {0}")]
    Filter(#[from] seccompiler::BackendError),
    /// The system refused the filter.
    #[error("the system refuses the filter of system calls: {0}")]
    Refused(#[from] seccompiler::Error),
}

/// System calls that are allowed with any arguments.
const ALLOWED: &[c_long] = &[
    // Files, sockets and eventfds that are open. A console's client may connect to its socket.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fcntl,
    libc::SYS_close,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_accept4,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_membarrier,
    // Threads, their signals and their waits.
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_restart_syscall,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getrandom,
    // Answered with an error by the other filter.
    libc::SYS_clone3,
];

/// The request codes of `ioctl`: those of KVM have this type in their second byte. The others ask
/// for the settings of a terminal, and set whether a descriptor blocks.
const KVM_REQUESTS: u64 = 0xae00;
const REQUEST_TYPE: u64 = 0xff00;

/// Confines all threads of the process, and those that it starts, for ever. Other system calls than
/// the allowed ones fail with `EPERM`. So they do in programs' own code, for example its files.
///
/// A program calls it when its machines run, or when all that they need is open: sockets of
/// functions, files of disks, and destinations of serial ports. [`crate::Running::restart`] works
/// afterwards. [`crate::Vm::new`] and [`crate::RemoteFunction::connect`] do not.
///
/// # Errors
/// [`ConfineError`]
pub fn confine() -> Result<(), ConfineError> {
    // The C library starts a thread by `clone` where there is no `clone3`, whose arguments are in
    // memory and so out of a filter's reach.
    let no_clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    apply(no_clone3, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?;

    let mut rules: BTreeMap<_, _> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    rules.extend(restricted()?);
    apply(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)
}

/// Returns the system calls that are allowed with certain arguments, each with its rules.
fn restricted() -> Result<Vec<(c_long, Vec<SeccompRule>)>, ConfineError> {
    let equal = |argument, value: u64| rule(argument, SeccompCmpOp::Eq, value);
    let masked = |argument, mask: u64, value: u64| rule(argument, SeccompCmpOp::MaskedEq(mask), value);
    let no_code = || Ok::<_, ConfineError>(vec![masked(2, libc::PROT_EXEC as u64, 0)?]);
    let thread = (libc::CLONE_VM | libc::CLONE_THREAD) as u64;

    Ok(vec![
        (
            libc::SYS_ioctl,
            vec![masked(1, REQUEST_TYPE, KVM_REQUESTS)?, equal(1, libc::TCGETS)?, equal(1, libc::FIONBIO)?],
        ),
        (libc::SYS_mmap, no_code()?),
        (libc::SYS_mprotect, no_code()?),
        // A thread, but no process.
        (libc::SYS_clone, vec![masked(0, thread, thread)?]),
        // A thread's name.
        (libc::SYS_prctl, vec![equal(0, libc::PR_SET_NAME as u64)?]),
        // Limits are read, not set.
        (libc::SYS_prlimit64, vec![rule_wide(2, SeccompCmpOp::Eq, 0)?]),
    ])
}

/// Returns a rule for the low 32 bits of an argument.
fn rule(argument: u8, operation: SeccompCmpOp, value: u64) -> Result<SeccompRule, ConfineError> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operation, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

/// Returns a rule for all bits of an argument.
fn rule_wide(argument: u8, operation: SeccompCmpOp, value: u64) -> Result<SeccompRule, ConfineError> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operation, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

/// Applies a filter to all threads.
fn apply(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    others: SeccompAction,
    these: SeccompAction,
) -> Result<(), ConfineError> {
    let filter = SeccompFilter::new(rules, others, these, ARCH.try_into()?)?;
    let program: BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter_all_threads(&program)?)
}

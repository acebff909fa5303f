//! A filter of system calls (seccomp) for a process that runs virtual machines.
//!
//! A guest that takes a processor's thread over finds a process that can open no file, connect to
//! nothing, start no program, signal no other process, and map no memory as code. The filter allows
//! what a machine needs from its start to its end: its processors, its memory slots, the messages
//! of its functions, and the threads and files of its own devices.

use std::{collections::BTreeMap, env::consts::ARCH, process};

use nix::libc::{self, c_long};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Why a process could not be confined. After such an error, all system calls are still allowed,
/// or all but `clone3`.
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
    // The software of a machine that starts anew, which is copied into its RAM.
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
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
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getrandom,
    // The first filter of `confine` makes it fail with `ENOSYS`.
    libc::SYS_clone3,
];

/// Commands of `fcntl` that a machine needs: for duplicates of eventfds, sockets and files. Others
/// could make the kernel signal another process (`F_SETOWN`, `F_SETOWN_EX`, `F_SETSIG`).
const FCNTL_COMMANDS: [i32; 3] = [libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_GETFL];

/// The type of KVM's `ioctl` requests (`KVMIO`), and the bits of a request that are its type.
const KVM_IOCTL_TYPE: u64 = 0xae << 8;
const IOCTL_TYPE_MASK: u64 = 0xff << 8;

/// Confines all threads of the process, and those that it starts, for ever. Other system calls than
/// the allowed ones fail with `EPERM`. That holds for the calling program's own code too: it can
/// open no file any more.
///
/// A program calls it when its machines run, or when all that they need is open: sockets of
/// functions, files of disks, and destinations of serial ports. [`crate::Running::restart`] works
/// afterwards. [`crate::Vm::new`] and [`crate::RemoteFunction::connect`] do not.
///
/// # Errors
/// [`ConfineError`]
pub fn confine() -> Result<(), ConfineError> {
    // The arguments of `clone3` are in memory, where a filter cannot check them. The C library
    // starts threads by `clone` when `clone3` fails with `ENOSYS`.
    let any_arguments = Vec::new();
    let no_clone3 = BTreeMap::from([(libc::SYS_clone3, any_arguments)]);
    apply(no_clone3, SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow)?;

    let mut rules: BTreeMap<_, _> = ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    rules.extend(restricted()?);
    apply(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))
}

/// Returns the system calls that are allowed with certain arguments, each with its rules. One rule
/// that matches allows the call. The first parameter of a rule is the argument's number from 0 on.
fn restricted() -> Result<Vec<(c_long, Vec<SeccompRule>)>, ConfineError> {
    let equal = |argument, value: u64| rule(argument, SeccompCmpOp::Eq, value);
    let masked = |argument, mask: u64, value: u64| rule(argument, SeccompCmpOp::MaskedEq(mask), value);
    let not_executable = || Ok::<_, ConfineError>(vec![masked(2, libc::PROT_EXEC as u64, 0)?]);
    let fcntl_commands = FCNTL_COMMANDS.iter().map(|command| equal(1, *command as u64));
    let thread_flags = (libc::CLONE_VM | libc::CLONE_THREAD) as u64;

    Ok(vec![
        // The requests of KVM, reading a terminal's settings, and making a descriptor non-blocking.
        (
            libc::SYS_ioctl,
            vec![
                masked(1, IOCTL_TYPE_MASK, KVM_IOCTL_TYPE)?,
                equal(1, libc::TCGETS)?,
                equal(1, libc::FIONBIO)?,
            ],
        ),
        (libc::SYS_fcntl, fcntl_commands.collect::<Result<_, _>>()?),
        (libc::SYS_mmap, not_executable()?),
        (libc::SYS_mprotect, not_executable()?),
        // A thread, but no process.
        (libc::SYS_clone, vec![masked(0, thread_flags, thread_flags)?]),
        // A signal to a thread of this process, which stops a processor.
        (libc::SYS_tgkill, vec![equal(0, process::id().into())?]),
        // A thread's name.
        (libc::SYS_prctl, vec![equal(0, libc::PR_SET_NAME as u64)?]),
        // Limits are read, not set: the pointer to new limits is null.
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

/// Applies a filter to all threads: what happens to calls that match a rule, and to other calls. A
/// call without rules in the map matches with any arguments.
fn apply(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    matching: SeccompAction,
    others: SeccompAction,
) -> Result<(), ConfineError> {
    let filter = SeccompFilter::new(rules, others, matching, ARCH.try_into()?)?;
    let program: BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter_all_threads(&program)?)
}

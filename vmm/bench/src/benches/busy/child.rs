//! The child processes.

use std::{hint::black_box, os::unix::process::CommandExt, path::Path, process::Command};

use clap::ValueEnum;
use nicforge::{
    cli::{EventLoop, ServeOptions},
    failure::{ErrorContext, Failure},
    serve::Served,
};
use nix::sys::signal::Signal;

use super::{
    BENCH, partner,
    task::{Answer, Order, ServedNode, Task},
};
use crate::{
    machine::describe,
    process::{carry_out_orders, follow_parent, unknown_task},
};

/// Runs a child process. Returns its exit code.
pub(super) fn main(task: &str) -> Result<u8, Failure> {
    follow_parent(Signal::SIGKILL)?;
    match serde_json::from_str(task).map_err(|_| unknown_task(task))? {
        Task::Loop => compute(),
        Task::Program(words) => become_program(&words),
        Task::Engine { sections, directory, event_loop } => serve(&sections, &directory, &event_loop),
        Task::Partner(partner) => partner::main(&partner),
    }
}

/// Computes until the process is killed.
fn compute() -> ! {
    let mut number = 1_u64;
    loop {
        number = black_box(number.wrapping_mul(3));
    }
}

/// Replaces this process by a program, which gets SIGTERM when the parent ends: it may have
/// processes of its own to end.
fn become_program(words: &[String]) -> Result<u8, Failure> {
    let Some((program, arguments)) = words.split_first() else { return Err(unknown_task("without words")) };
    follow_parent(Signal::SIGTERM)?;
    Err(Command::new(program).args(arguments).exec()).context(|| program.clone())
}

/// Serves a machine until the parent closes standard input.
fn serve(sections: &str, directory: &Path, event_loop: &str) -> Result<u8, Failure> {
    let event_loop = EventLoop::from_str(event_loop, false).map_err(Failure::usage)?;
    let options = ServeOptions::new(Some(directory.to_owned()), event_loop);
    let served = Served::start_plan(&describe(BENCH.name, sections)?, &options)?;

    let mut nodes = Vec::new();
    for node in served.built().nodes.iter().filter(|node| node.users().next().is_some()) {
        let users = node.users().map(|user| served.socket(node, user)).collect::<Result<_, _>>()?;
        nodes.push(ServedNode { name: node.name.clone(), users });
    }

    let failed = |message| Answer::Failed { message };
    let code = carry_out_orders(&Answer::Serving(nodes), failed, |order: Order| {
        Err(Failure::usage(format!("an engine takes no order {order:?}")))
    })?;
    served.stop()?;
    Ok(code)
}

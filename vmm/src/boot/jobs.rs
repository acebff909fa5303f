//! The work in the guests: a job in each of them, or a shell in one.

use std::{
    fs::File,
    path::PathBuf,
    sync::{Arc, mpsc::channel},
    time::Instant,
};

use nicforge_guest::{
    Guest, GuestConfig, GuestError, Job, Prepared, Progress, Stream as GuestStream, Toolkit,
};

use super::{
    CHECK_INTERVAL, SHELL_TIMEOUT, STARTED,
    options::Options,
    terminal,
    together::{GuestGroup, Member},
};
use crate::{
    failure::{Failure, print_note},
    lines::{Printer, Stream},
};

/// The operation in errors of a guest that does not begin its command.
const BEGIN: &str = "the start of the command in the booted guest";

/// The files that guests are made of.
pub(super) enum GuestFiles {
    /// Those of this host and of the cache.
    Toolkit(Box<Toolkit>),
    /// Those that another host has made in a folder.
    Prepared(Prepared, PathBuf),
}

impl GuestFiles {
    /// Boots a guest from the files.
    fn boot(&self, config: &GuestConfig, progress: &Progress) -> Result<Guest, GuestError> {
        match self {
            Self::Toolkit(toolkit) => Guest::boot(toolkit, config, progress),
            Self::Prepared(prepared, _) => Guest::boot_prepared(prepared, config, progress),
        }
    }

    /// Reports to the program outside a nested guest that a guest's command has begun. Others need
    /// no report.
    fn report_begun(&self, node: &str) -> Result<(), GuestError> {
        let Self::Prepared(_, folder) = self else { return Ok(()) };
        let file = folder.join(STARTED).join(node);
        let created = File::create(&file);
        created.map(drop).map_err(|source| GuestError::Io { what: file.display().to_string(), source })
    }
}

/// Runs the job in all guests at the same time. Returns the first failure, or 0.
pub(super) fn run_all(
    options: &Options,
    files: &GuestFiles,
    guests: Vec<GuestConfig>,
    job: &Job,
    progress: &Progress,
) -> Result<u8, Failure> {
    let width = guests.iter().map(|config| config.node().len()).max().unwrap_or(0);
    let printer = Arc::new(Printer::new(width));
    let (result_sender, results) = channel();
    let count = guests.len();
    let group = GuestGroup::new(&guests, options);

    std::thread::scope(|scope| {
        // A guest that fails cancels the others, and so does Ctrl-C.
        let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let guest_progress = {
            let (is_over, progress) = (is_over.clone(), progress.clone());
            Progress::silent().cancelled_by(move || {
                is_over.load(std::sync::atomic::Ordering::Relaxed) || progress.is_cancelled()
            })
        };

        let group = &group;
        for (number, config) in guests.iter().enumerate() {
            let (result_sender, guest_progress) = (result_sender.clone(), guest_progress.clone());
            let (printer, job) = (printer.clone(), job.clone());
            scope.spawn(move || {
                let member = group.member(number);
                let result = run_in_guest(files, config, job, &printer, &member, &guest_progress);
                // The receiver may already have ended the loop.
                let _ = result_sender.send((config.node().to_owned(), result));
            });
        }

        // Without this sender, the loop ends when all threads have.
        drop(result_sender);

        let mut first_failure: Option<Result<u8, Failure>> = None;
        for _ in 0..count {
            let (node, result) = match results.recv() {
                Ok(node_and_result) => node_and_result,
                Err(_) => break,
            };

            // Later failures are consequences of the first one, which ends all guests.
            if matches!(result, Ok(0)) || first_failure.is_some() {
                continue;
            }

            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            if let (Ok(code), true) = (&result, count > 1) {
                print_note(format_args!("the command in {node} ended with {code}; ending the other guests"));
            }

            first_failure = Some(result.map_err(Failure::from));
        }
        first_failure.unwrap_or(Ok(0))
    })
}

/// Boots a guest, and runs the job in it. Returns the job's status.
fn run_in_guest(
    files: &GuestFiles,
    config: &GuestConfig,
    job: Job,
    printer: &Arc<Printer>,
    member: &Member<'_>,
    progress: &Progress,
) -> Result<u8, GuestError> {
    let guest = files.boot(config, progress)?;
    let node = guest.node().to_owned();
    let limit = member.limit();
    let begin = Instant::now();
    let until = begin + limit;

    // A blocked output must not keep Ctrl-C or the time limit from ending the guest.
    let give_up = {
        let progress = progress.clone();
        move || progress.is_cancelled() || Instant::now() >= until
    };

    for problem in guest.problems() {
        printer.line(&node, Stream::Error, &problem, &give_up);
    }

    let running = guest.start(job.on_line({
        let (node, printer, give_up) = (node.clone(), printer.clone(), give_up.clone());
        Arc::new(move |stream, line: &str| {
            let stream = match stream {
                GuestStream::Output => Stream::Output,
                GuestStream::Error => Stream::Error,
            };
            printer.line(&node, stream, line, &give_up);
        })
    }))?;

    let mut has_begun = false;
    loop {
        let output = running.wait_for(CHECK_INTERVAL)?;
        if !has_begun && running.has_begun() {
            has_begun = true;
            files.report_begun(&node)?;
        }
        if let Some(output) = output {
            member.end_command();
            // A command that failed ends all guests, its own one included.
            if output.status == 0 {
                member.hold(&guest, progress)?;
            }
            return Ok(output.status);
        }

        member.serve(&guest, &give_up)?;
        if progress.is_cancelled() {
            return Err(GuestError::Cancelled);
        }

        let boot_limit = member.boot_limit();
        if !has_begun && begin.elapsed() >= boot_limit {
            let what = format!("{BEGIN} (--boot-timeout)");
            return Err(GuestError::Timeout { node, what, limit: boot_limit, end: guest.log_ends() });
        }
        if Instant::now() >= until {
            let what = "the command (--timeout)".to_owned();
            return Err(GuestError::Timeout { node, what, limit, end: guest.log_ends() });
        }
    }
}

/// Boots a guest, and connects its shell to this terminal.
pub(super) fn run_shell(
    options: &Options,
    files: &GuestFiles,
    mut guests: Vec<GuestConfig>,
    progress: &Progress,
) -> Result<u8, Failure> {
    let Some(config) = guests.pop() else { return Err(Failure::usage("the machine has no node")) };
    let guest = files.boot(&config, progress)?;
    for problem in guest.problems() {
        print_note(format_args!("{}: {problem}", guest.node()));
    }
    print_note(format_args!("a shell in {}; Ctrl-D ends it", guest.node()));

    let (begin, limit, node) = (Instant::now(), options.boot_timeout, guest.node().to_owned());
    let mut has_begun = false;
    let takes_input = |reads: bool| -> Result<bool, Failure> {
        if reads && !has_begun {
            has_begun = true;
            files.report_begun(&node)?;
        }
        if !has_begun && begin.elapsed() >= limit {
            let (node, what) = (node.clone(), format!("{BEGIN} (--boot-timeout)"));
            return Err(GuestError::Timeout { node, what, limit, end: guest.log_ends() }.into());
        }
        Ok(true)
    };
    terminal::run(&guest, options.timeout.unwrap_or(SHELL_TIMEOUT), progress, takes_input)
}

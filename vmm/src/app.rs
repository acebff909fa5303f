//! The program as a library: [`App`].

use std::process::ExitCode;

use clap::{ArgMatches, FromArgMatches, Subcommand};
use nicforge_family::{DeviceKind, Families, Family};

use crate::{
    beside::SiblingProgram,
    boot,
    cli::{self, Command},
    failure::{self, Failure},
    log::Log,
    run,
};

/// The exit codes, which the help text shows.
const EXIT_CODES: &str = "Exit codes: 0 done; 1 the result is bad; 2 the command line or a machine file is wrong; 3 something \
around it failed (a socket is taken, a server is gone); 4 a client kept the engine from ending, and the sockets are removed; 5 the engine panicked, which is a defect of nicforge; 130 ended by Ctrl-C, but 0 for `serve`, `top`, `stat --every` and `regs --watch`, which end so; \
141 nobody reads the output any more; `run` and `boot` end with the code of the first program that failed. Set NICFORGE_LOG=debug for a log on standard error.";

/// Runs a command of an [`App`]. It returns the exit code.
pub type CommandBody = fn(&ArgMatches, &Families) -> Result<u8, Failure>;

/// A program that serves, runs and boots machines with its own devices.
///
/// It has the commands `serve`, `run`, `boot`, `stat`, `top`, `regs` and `reset` of `nicforge`. A
/// crate that makes such a program depends on nicforge's crates, and nicforge does not know the
/// crate:
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use nicforge::{App, DeviceKind};
/// # use nicforge_proof::SlotFifo as Tally;
///
/// fn main() -> ExitCode {
///     App::new("tally").device(DeviceKind::plain("tally", Tally::new)).main()
/// }
/// ```
#[derive(Debug)]
pub struct App {
    name: &'static str,
    about: &'static str,
    version: &'static str,
    families: Families,
    /// The commands of the program's own.
    commands: Vec<(clap::Command, CommandBody)>,
    /// The commands that a program beside this one carries out.
    programs: Vec<SiblingProgram>,
}

impl App {
    /// Returns a program without devices. `name` is its name in messages and help texts.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            about: "Serve and drive devices of one's own",
            version: env!("CARGO_PKG_VERSION"),
            families: Families::new(),
            commands: Vec::new(),
            programs: Vec::new(),
        }
    }

    /// Sets the first line of the help text.
    #[must_use]
    pub fn about(mut self, about: &'static str) -> Self {
        self.about = about;
        self
    }

    /// Sets the version that `--version` shows. It is that of nicforge otherwise.
    #[must_use]
    pub fn version(mut self, version: &'static str) -> Self {
        self.version = version;
        self
    }

    /// Adds a NIC family.
    #[must_use]
    pub fn family(mut self, family: impl Family + 'static) -> Self {
        self.families = self.families.family(family);
        self
    }

    /// Adds a kind of device.
    #[must_use]
    pub fn device(mut self, kind: DeviceKind) -> Self {
        self.families = self.families.device(kind);
        self
    }

    /// Adds all families and kinds of a list.
    #[must_use]
    pub fn families(mut self, families: Families) -> Self {
        self.families = self.families.and(families);
        self
    }

    /// Adds a command of the program's own after those of every program.
    #[must_use]
    pub fn command(mut self, command: clap::Command, body: CommandBody) -> Self {
        self.commands.push((command, body));
        self
    }

    /// Adds a command that a program beside this one carries out.
    #[must_use]
    pub fn program(mut self, program: SiblingProgram) -> Self {
        self.programs.push(program);
        self
    }

    /// Parses the command line of this process, and runs the command. Returns the exit code of the
    /// process, after a message on standard error if the command failed.
    pub fn main(self) -> ExitCode {
        failure::name_program(self.name);
        // While this thread is the only one, it costs a microsecond. Later it waits until every
        // processor has run another thread, for seconds on a busy host. If it fails, so does the
        // same call of the library or the engine, which says so.
        let _ = nicforge_shm::register_membarrier();
        failure::report(self.run())
    }

    /// Parses the command line, and runs the command that it names. Returns its exit code.
    fn run(self) -> Result<u8, Failure> {
        // A wrong command line, `--help` and `--version` end the process here.
        let matches = self.command_line().get_matches();
        // The log is kept until the end. Its remaining lines are written when it is dropped.
        let _log = Log::install()?;

        if let Some((name, arguments)) = matches.subcommand() {
            if let Some(program) = self.programs.iter().find(|program| program.command == name) {
                return program.run(arguments);
            }
            if let Some((_, body)) = self.commands.iter().find(|(command, _)| command.get_name() == name) {
                return body(arguments, &self.families);
            }
        }

        let command =
            Command::from_arg_matches(&matches).map_err(|error| Failure::usage(error.to_string()))?;
        cli::carry_out(command, &self.families)
    }

    /// Returns the description of the command line.
    fn command_line(&self) -> clap::Command {
        let general = clap::Command::new(self.name)
            .version(self.version)
            .after_help(EXIT_CODES)
            .subcommand_required(true)
            .arg_required_else_help(true);

        // `about` comes after the subcommands: their enum sets its own documentation as the
        // description.
        Command::augment_subcommands(general)
            .about(self.about)
            .mut_subcommand("run", |command| command.after_help(run::help(&self.families.roles())))
            .mut_subcommand("boot", |command| command.after_help(boot::help()))
            .subcommands(self.commands.iter().map(|(command, _)| command.clone()))
            .subcommands(self.programs.iter().map(SiblingProgram::command_line))
    }
}

#[cfg(test)]
mod tests {
    use nicforge_nics::families;

    use super::*;

    #[test]
    fn command_line_is_consistent_and_helps_with_the_roles_of_its_devices() {
        let app = App::new("cards").about("Serve my cards").families(families());
        let mut line = app.command_line();
        line.clone().debug_assert();

        let first = line.render_help().to_string();
        assert!(first.starts_with("Serve my cards"), "{first}");

        let help = line.find_subcommand_mut("run").unwrap().render_help().to_string();
        assert!(help.contains("--io ./a : --compute ./b 2"), "{help}");
        assert!(
            help.contains("node      an EXTOLL card") && help.contains("device    a single device"),
            "{help}"
        );
    }

    #[test]
    fn program_without_a_list_has_only_its_own_devices() {
        let app = App::new("fifos").device(nicforge_proof::kinds()[0].clone());
        assert_eq!(app.families.kinds().len(), 1);
        assert_eq!(app.families.families().count(), 0);
        assert!(app.command_line().find_subcommand("demo").is_none());
    }
}

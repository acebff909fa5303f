//! `nicforge run`: serves a machine and starts programs on its nodes.
//!
//! The programs after the options are sections separated by `:`. A section starts with `--ROLE` or
//! `--NODE`, the role or name of a node, and contains the command for it. A single section without
//! a target runs on every node that no other section names.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use nicforge_family::{Families, Role};
use nicforge_machine::build::{Built, Node};

use crate::{
    beside::SiblingProgram,
    cli::ServeOptions,
    failure::{Failure, program},
    processes::{Processes, Program},
    serve::Served,
    signals::Signals,
};

/// Maximum number of characters of a role in the help text's column.
const ROLE_WIDTH: usize = 9;

/// Returns the help text below the options. `roles` are those of the registered devices.
pub fn help(roles: &[Role]) -> String {
    let name = |index: usize| roles.get(index).map_or("ROLE", |role| role.name());
    let (first, second) = (format!("--{} ./a", name(0)), format!("--{} ./b 2", name(1)));
    let by_role = if roles.len() > 1 { format!("{first} : {second}") } else { first };
    let list: String =
        roles.iter().map(|role| format!("  {:ROLE_WIDTH$} {}\n", role.name(), role.about())).collect();

    format!(
        "\
Programs:
  ./a 1 2                     the same on every node
  {by_role:27} by role
  --NODE ./a : ./b            one node by its name, another program on the rest

Roles:
{list}
Each program finds in its environment:
  NICFORGE_SOCKET   the sockets of its node's user attachments, with ':' between;
                    with --per-core its attachment's alone
  NICFORGE_NODE     its node's name
  NICFORGE_ROLE     the node's role
  NICFORGE_RANK     the node's number in that role
  NICFORGE_SIZE     how many nodes have the role
  NICFORGE_CORE     with --per-core, the number of its attachment
  NICFORGE_MACHINE  the machine's name
  NICFORGE_DIR      the directory of the sockets
and the variables that the node's devices set. A node without user attachments,
such as a switch, runs no program.

Options of `{program} run` come before the programs. The exit code is that of
the first program that failed, and the others are ended then.

Examples: {program} run MACHINE -- ./program
          {program} run MACHINE -- {by_role}",
        program = program()
    )
}

/// One section of the programs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Section {
    /// A role or a node. `None` stands for every other node.
    target: Option<String>,
    command: Vec<String>,
}

/// Runs the command. With `per_core`, a program is started for each user attachment, instead of for
/// each node. Returns the exit code.
pub fn main(
    machine: &Path,
    families: &Families,
    options: &ServeOptions,
    per_core: bool,
    programs: &[String],
) -> Result<u8, Failure> {
    let sections = parse(programs)?;
    let signals = Signals::block().map_err(|error| Failure::environment(format!("signals: {error}")))?;
    let served = Served::start(machine, families, options)?;
    let programs = assign(&sections, served.built(), &served, per_core)?;
    let mut processes = Processes::start_prefixed(programs)?;
    let code = processes.wait(&signals)?;
    drop(processes);
    served.stop()?;

    Ok(code)
}

/// The program that runs machines in virtual time. It is not a command of its own.
const VIRTUAL: SiblingProgram = SiblingProgram {
    command: "run",
    about: "",
    more_help: "",
    file: "nicforge-sim",
    first_arguments: &["run"],
};

/// The options of a run in virtual time. The program of virtual time has the defaults.
pub(crate) struct VirtualOptions {
    pub(crate) per_core: bool,
    pub(crate) host_based: bool,
    pub(crate) profile: Option<String>,
    pub(crate) seed: Option<u64>,
    pub(crate) trace: Option<PathBuf>,
    pub(crate) json: bool,
}

impl VirtualOptions {
    /// Returns the options as arguments.
    fn arguments(&self) -> Vec<OsString> {
        let flags = [(self.per_core, "--per-core"), (self.host_based, "--host-based"), (self.json, "--json")];
        let mut arguments: Vec<OsString> =
            flags.into_iter().filter(|(is_given, _)| *is_given).map(|(_, flag)| flag.into()).collect();

        if let Some(profile) = &self.profile {
            arguments.extend(["--profile".into(), profile.into()]);
        }
        if let Some(path) = &self.trace {
            arguments.extend(["--trace".into(), path.into()]);
        }
        if let Some(seed) = self.seed {
            arguments.extend(["--seed".into(), seed.to_string().into()]);
        }
        arguments
    }
}

/// Starts the program of virtual time, which runs one of its own programs on each node.
pub(crate) fn in_virtual_time(
    machine: &Path,
    options: &VirtualOptions,
    programs: &[String],
) -> Result<u8, Failure> {
    let mut arguments = options.arguments();
    arguments.extend([machine.into(), "--".into()]);
    arguments.extend(programs.iter().map(OsString::from));
    Err(VIRTUAL.start(&arguments))
}

/// Parses the programs on the command line, which `:` separates. `--TARGET` before one names its
/// role or node.
fn parse(arguments: &[String]) -> Result<Vec<Section>, Failure> {
    let mut sections = Vec::new();
    for words in arguments.split(|argument| argument == ":") {
        let (target, command) = match words.split_first() {
            Some((first, rest)) if first.len() > 2 && first.starts_with("--") => {
                (Some(first[2..].to_owned()), rest)
            }
            _ => (None, words),
        };

        if command.is_empty() {
            let section = target.map_or_else(|| "a section".to_owned(), |target| format!("--{target}"));
            let advice = format!("see `{} run --help`", program());
            return Err(Failure::usage(format!("{section} has no program; {advice}")));
        }

        if sections.iter().any(|section: &Section| section.target == target) {
            let nodes = target.map_or_else(|| "the other nodes".to_owned(), |target| format!("--{target}"));
            return Err(Failure::usage(format!("there are two programs for {nodes}")));
        }

        sections.push(Section { target, command: command.to_vec() });
    }

    Ok(sections)
}

/// Returns the section for a node: the one for its name, for its role, or for the rest.
fn section<'a>(sections: &'a [Section], node: &Node) -> Option<&'a Section> {
    let with_target =
        |target: Option<&str>| sections.iter().find(|section| section.target.as_deref() == target);
    with_target(Some(&node.name))
        .or_else(|| with_target(Some(node.role.name())))
        .or_else(|| with_target(None))
}

/// Checks that a target is a role or node of the machine, and that a program can run there.
fn check_target(target: &str, built: &Built) -> Result<(), Failure> {
    let mut named =
        built.nodes.iter().filter(|node| node.name == target || node.role.name() == target).peekable();

    if named.peek().is_none() {
        let names: Vec<_> = built.nodes.iter().map(|node| node.name.as_str()).collect();
        let mut roles: Vec<_> = built.nodes.iter().map(|node| node.role.name()).collect();
        roles.sort_unstable();
        roles.dedup();
        return Err(Failure::usage(format!(
            "--{target} is no role ({}) of this machine and no node; its nodes are {}",
            roles.join(", "),
            names.join(", ")
        )));
    }

    if named.all(|node| node.users().next().is_none()) {
        return Err(Failure::usage(format!(
            "--{target} has no user attachments, so that no program runs there"
        )));
    }
    Ok(())
}

/// Returns the programs to start: for each node that has one, or with `per_core` for each
/// attachment.
fn assign(
    sections: &[Section],
    built: &Built,
    served: &Served,
    per_core: bool,
) -> Result<Vec<Program>, Failure> {
    for target in sections.iter().filter_map(|section| section.target.as_deref()) {
        check_target(target, built)?;
    }

    let mut programs = Vec::new();
    for node in built.nodes.iter().filter(|node| node.users().next().is_some()) {
        let Some(section) = section(sections, node) else { continue };

        let sockets: Vec<String> = node
            .users()
            .map(|attachment| served.socket(node, attachment).map(|path| path.display().to_string()))
            .collect::<Result<_, _>>()?;

        let nodes_of_role = built.nodes.iter().filter(|other| other.role == node.role).count();
        let environment = |sockets: &str| {
            let mut variables = node.environment.clone();
            variables.extend([
                ("NICFORGE_SOCKET".to_owned(), sockets.to_owned()),
                ("NICFORGE_NODE".to_owned(), node.name.clone()),
                ("NICFORGE_ROLE".to_owned(), node.role.name().to_owned()),
                ("NICFORGE_RANK".to_owned(), node.rank.to_string()),
                ("NICFORGE_SIZE".to_owned(), nodes_of_role.to_string()),
                ("NICFORGE_MACHINE".to_owned(), built.name.clone()),
                ("NICFORGE_DIR".to_owned(), served.directory().path().display().to_string()),
            ]);
            variables
        };

        if per_core {
            for (core, socket) in sockets.iter().enumerate() {
                let mut variables = environment(socket);
                variables.push(("NICFORGE_CORE".to_owned(), core.to_string()));
                let name = format!("{}.{core}", node.name);
                programs.push(Program { name, command: section.command.clone(), environment: variables });
            }
        } else {
            let variables = environment(&sockets.join(":"));
            programs.push(Program {
                name: node.name.clone(),
                command: section.command.clone(),
                environment: variables,
            });
        }
    }

    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn one_program_for_all_is_one_section() {
        let sections = parse(&words("./program -v --fast x")).unwrap();
        assert_eq!(sections, [Section { target: None, command: words("./program -v --fast x") }]);
    }

    #[test]
    fn roles_are_split_at_colons() {
        let sections = parse(&words("--io a 1 : --compute b --two")).unwrap();
        assert_eq!(sections[0], Section { target: Some("io".into()), command: words("a 1") });
        assert_eq!(sections[1], Section { target: Some("compute".into()), command: words("b --two") });
    }

    #[test]
    fn a_section_without_a_program_is_refused() {
        assert_eq!(parse(&words("--io : b")).unwrap_err().code, crate::failure::EXIT_USAGE);
    }

    #[test]
    fn two_programs_for_one_role_are_refused() {
        assert!(parse(&words("--io a : --io b")).unwrap_err().message.contains("two programs for --io"));
    }
}

//! The users and groups that own the attachments' sockets: `--socket-owner` and
//! `--socket-group`.
//!
//! The input is the arguments of these options and a machine. The output is a [`SocketAccess`] for
//! each user attachment. The most specific argument applies: one for an attachment before one for
//! its node, and one for a node before one for all. Admin attachments stay with the server's user.

use std::{fmt, str::FromStr};

use nicforge_engine::SocketAccess;
use nicforge_machine::build::{Built, Node, NodeAttachment};
use nix::unistd::{Gid, Group, Uid, User};
use thiserror::Error;

use crate::failure::Failure;

/// The reason why the sockets' owners cannot be set as the command line says.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AccessError {
    /// The host has no such user.
    #[error("there is no user {name} on this host; give a name that `getent passwd` knows, or a number")]
    UnknownUser {
        /// The word of the command line.
        name: String,
    },
    /// The host has no such group.
    #[error("there is no group {name} on this host; give a name that `getent group` knows, or a number")]
    UnknownGroup {
        /// The word of the command line.
        name: String,
    },
    /// The machine has no such node or user attachment.
    #[error(
        "{target} is no node and no user attachment of this machine; a node is {node}, a user attachment {attachment}"
    )]
    UnknownTarget {
        /// The word of the command line.
        target: String,
        /// The name of an existing node.
        node: String,
        /// The name of an existing attachment.
        attachment: String,
    },
    /// Two arguments name the same sockets.
    #[error("{option} was given twice for {target}")]
    Twice {
        /// `--socket-owner` or `--socket-group`.
        option: &'static str,
        /// The sockets that both arguments name.
        target: String,
    },
}

impl From<AccessError> for Failure {
    fn from(error: AccessError) -> Self {
        Self::usage(error.to_string())
    }
}

/// One argument of `--socket-owner` or `--socket-group`: `NAME`, `NODE=NAME` or
/// `NODE.ATTACHMENT=NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketGrant {
    target: Target,
    name: String,
}

impl FromStr for SocketGrant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (target, name) = match text.split_once('=') {
            None => (Target::All, text),
            Some((target, name)) => (Target::parse(target), name),
        };

        let is_empty = name.is_empty() || target.to_string().split('.').any(str::is_empty);
        if is_empty {
            return Err("NAME, NODE=NAME or NODE.ATTACHMENT=NAME is possible".into());
        }

        Ok(Self { target, name: name.to_owned() })
    }
}

/// The sockets that an argument gives to a user or group.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    /// All user attachments of the machine.
    All,
    /// The user attachments of this node.
    Node(String),
    /// One user attachment.
    Attachment { node: String, attachment: String },
}

impl Target {
    /// Parses `NODE` or `NODE.ATTACHMENT`.
    fn parse(text: &str) -> Self {
        match text.split_once('.') {
            None => Self::Node(text.to_owned()),
            Some((node, attachment)) => {
                Self::Attachment { node: node.to_owned(), attachment: attachment.to_owned() }
            }
        }
    }

    /// Returns whether the machine has these sockets.
    fn exists_in(&self, built: &Built) -> bool {
        match self {
            Self::All => true,
            Self::Node(node) => built.node(node).is_some(),
            Self::Attachment { node, attachment } => {
                built.node(node).is_some_and(|node| node.users().any(|user| user.name == *attachment))
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all sockets"),
            Self::Node(node) => f.write_str(node),
            Self::Attachment { node, attachment } => write!(f, "{node}.{attachment}"),
        }
    }
}

/// The rules of a command line, checked against a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketRules {
    owners: Vec<Rule<Uid>>,
    groups: Vec<Rule<Gid>>,
}

/// The sockets that a user or group gets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule<T> {
    target: Target,
    id: T,
}

impl SocketRules {
    /// Looks up the names of users and groups.
    ///
    /// # Errors
    /// Returns an [`AccessError`] for an unknown or repeated argument.
    pub fn new(owners: &[SocketGrant], groups: &[SocketGrant], built: &Built) -> Result<Self, AccessError> {
        check_grants(owners, "--socket-owner", built)?;
        check_grants(groups, "--socket-group", built)?;
        let owner =
            |grant: &SocketGrant| Ok(Rule { target: grant.target.clone(), id: find_user(&grant.name)? });
        let group =
            |grant: &SocketGrant| Ok(Rule { target: grant.target.clone(), id: find_group(&grant.name)? });

        Ok(Self {
            owners: owners.iter().map(owner).collect::<Result<_, _>>()?,
            groups: groups.iter().map(group).collect::<Result<_, _>>()?,
        })
    }

    /// Returns whether all sockets stay with the server's own user.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty() && self.groups.is_empty()
    }

    /// Returns the users that sockets are given to.
    pub fn owners(&self) -> Vec<Uid> {
        self.owners.iter().map(|rule| rule.id).collect()
    }

    /// Returns the user and group that an attachment's socket is given to.
    pub fn access_of(&self, node: &Node, attachment: &NodeAttachment) -> SocketAccess {
        if attachment.admin {
            return SocketAccess::default();
        }

        let (node, attachment) = (node.name.as_str(), attachment.name.as_str());
        SocketAccess {
            owner: most_specific(&self.owners, node, attachment),
            group: most_specific(&self.groups, node, attachment),
        }
    }
}

/// Checks that the arguments name nodes or user attachments of the machine, and none twice.
fn check_grants(grants: &[SocketGrant], option: &'static str, built: &Built) -> Result<(), AccessError> {
    for (index, grant) in grants.iter().enumerate() {
        let target = grant.target.to_string();
        if grants[..index].iter().any(|earlier| earlier.target == grant.target) {
            return Err(AccessError::Twice { option, target });
        }

        if !grant.target.exists_in(built) {
            // The error names an existing node and one of its attachments as examples.
            let first = built.nodes.iter().find(|node| node.users().next().is_some());
            let node = first.map(|node| node.name.clone()).unwrap_or_default();
            let user = first.and_then(|node| node.users().next()).map(|user| user.name.clone());
            let attachment = format!("{node}.{}", user.unwrap_or_default());
            return Err(AccessError::UnknownTarget { target, node, attachment });
        }
    }

    Ok(())
}

/// Returns the user or group that the most specific rule gives an attachment's socket to.
fn most_specific<T: Copy>(rules: &[Rule<T>], node: &str, attachment: &str) -> Option<T> {
    let targets = [
        Target::Attachment { node: node.to_owned(), attachment: attachment.to_owned() },
        Target::Node(node.to_owned()),
        Target::All,
    ];
    targets.iter().find_map(|target| rules.iter().find(|rule| rule.target == *target)).map(|rule| rule.id)
}

/// Parses the number of a user or group. The largest number is refused, because it means no user or
/// group in the kernel's calls.
fn parse_id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number != u32::MAX)
}

/// Returns the user of a name or number.
fn find_user(name: &str) -> Result<Uid, AccessError> {
    let known = || User::from_name(name).ok().flatten().map(|user| user.uid);
    let number = || parse_id(name).map(Uid::from_raw);
    known().or_else(number).ok_or_else(|| AccessError::UnknownUser { name: name.to_owned() })
}

/// Returns the group of a name or number.
fn find_group(name: &str) -> Result<Gid, AccessError> {
    let known = || Group::from_name(name).ok().flatten().map(|group| group.gid);
    let number = || parse_id(name).map(Gid::from_raw);
    known().or_else(number).ok_or_else(|| AccessError::UnknownGroup { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use nicforge_machine::{build::build, description::parse};
    use nicforge_nics::families;

    use super::*;

    fn built() -> Built {
        let text = "name = \"m\"\n[[pset]]\ncompute_nodes = 2\n";
        build(&parse(text, "a test's machine", &families()).unwrap()).unwrap().1
    }

    fn grants(texts: &[&str]) -> Vec<SocketGrant> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn refused(owners: &[&str], groups: &[&str]) -> AccessError {
        SocketRules::new(&grants(owners), &grants(groups), &built()).unwrap_err()
    }

    #[test]
    fn the_most_specific_argument_applies_and_admin_attachments_keep_their_owner() {
        let built = built();
        let owners = grants(&["1001", "cn0=1002", "cn0.core1=1003"]);
        let rules = SocketRules::new(&owners, &grants(&["io0=root"]), &built).unwrap();
        let access = |node: &str, attachment: &str| {
            let node = built.node(node).unwrap();
            rules.access_of(node, node.attachments.iter().find(|one| one.name == attachment).unwrap())
        };
        let owner = |uid| SocketAccess { owner: Some(Uid::from_raw(uid)), group: None };

        assert_eq!(access("cn1", "core1"), owner(1001));
        assert_eq!(access("cn0", "core0"), owner(1002));
        assert_eq!(access("cn0", "core1"), owner(1003));
        assert_eq!(access("io0", "core0"), SocketAccess { group: Some(Gid::from_raw(0)), ..owner(1001) });
        assert_eq!(access("io0", "admin"), SocketAccess::default());
    }

    #[test]
    fn missing_users_groups_and_targets_are_refused() {
        assert!(matches!(refused(&["4294967295"], &[]), AccessError::UnknownUser { .. }));

        let name = "no-such-name".to_owned();
        assert_eq!(refused(&["no-such-name"], &[]), AccessError::UnknownUser { name: name.clone() });
        assert_eq!(refused(&[], &["cn0=no-such-name"]), AccessError::UnknownGroup { name });

        for target in ["cn9", "cn0.core9", "cn0.admin"] {
            let error = refused(&[&format!("{target}=1001")], &[]);
            assert!(error.to_string().starts_with(&format!("{target} is no node")), "{error}");
            assert!(error.to_string().ends_with("a user attachment io0.core0"), "{error}");
        }
    }

    #[test]
    fn two_arguments_for_the_same_sockets_are_refused() {
        let error = refused(&[], &["cn0=1", "2", "cn0=3"]);
        assert_eq!(error, AccessError::Twice { option: "--socket-group", target: "cn0".into() });
    }

    #[test]
    fn an_argument_without_a_name_or_target_is_refused() {
        for text in ["", "=alice", "cn0=", "cn0.=alice", ".core0=alice"] {
            assert!(text.parse::<SocketGrant>().is_err(), "{text}");
        }
    }
}

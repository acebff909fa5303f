//! The contract of a NIC family.

use crate::{Plan, Section, SectionError};

/// A NIC family: the devices of a kind of network, and how machine files describe such a network.
///
/// The crate's documentation has an example.
pub trait Family: Send + Sync {
    /// Returns the name of the family's tables in a machine file, as in `[[pset]]`.
    ///
    /// The names `name`, `function` and `link` are taken.
    fn table(&self) -> &'static str;

    /// Returns the roles of the family's nodes, for command lines and their help.
    fn roles(&self) -> &'static [Role];

    /// Returns the columns that `stat` shows of a machine with devices of this family.
    ///
    /// The columns `sent`, `received`, `stalls` and `errors` are there without a family. They show
    /// the counters of those names. A column of the same title adds its counters to them.
    fn columns(&self) -> &'static [CounterColumn] {
        &[]
    }

    /// Adds the nodes, functions and links of a file's sections to the plan of the machine.
    ///
    /// The call gets all sections of the family at once, at least one, in the order of the file.
    /// The sections of a family can thus share one network. It checks every value: a plan that it
    /// accepts can be built.
    ///
    /// # Errors
    /// The first section or value that is refused. The message names the line of the error's
    /// [`SectionError::span`], or else that of the first section.
    fn plan(&self, sections: Vec<Section<'_>>, plan: &mut Plan) -> Result<(), SectionError>;
}

/// The role of a node in its machine, such as `io` or `compute`.
///
/// Two roles are equal if their names are. Nodes are numbered within their role, and `run` selects
/// them by it.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    name: &'static str,
    about: &'static str,
}

impl Role {
    /// The role of a device that stands alone.
    pub const DEVICE: Self = Self::new("device", "a single device");

    /// Returns a role. `name` consists of lower-case letters, digits and `-`. `about` completes the
    /// sentence "The node is ...".
    pub const fn new(name: &'static str, about: &'static str) -> Self {
        Self { name, about }
    }

    /// Returns the role's name on command lines and in the environment.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Returns the description of a node of this role, for help texts.
    pub const fn about(self) -> &'static str {
        self.about
    }
}

impl PartialEq for Role {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Role {}

/// A column of the table that `stat` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterColumn {
    /// Title of the column.
    pub title: &'static str,
    /// Names of the devices' counters whose sum the column shows. The counter `sent` stands for
    /// those of all virtual channels, too: `vc0_sent`, `vc1_sent` and so on.
    pub counters: &'static [&'static str],
    /// Whether the counters count packets, which `stat --every` shows as a rate.
    pub packets: bool,
}

impl CounterColumn {
    /// Returns a column of levels or events.
    pub const fn new(title: &'static str, counters: &'static [&'static str]) -> Self {
        Self { title, counters, packets: false }
    }

    /// Returns a column of packets.
    pub const fn packets(title: &'static str, counters: &'static [&'static str]) -> Self {
        Self { title, counters, packets: true }
    }
}

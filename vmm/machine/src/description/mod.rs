//! Machine files: their tables, and how they become the plan of a machine.
//!
//! ```toml
//! name = "two-cards"
//!
//! [[FAMILY]]                # any number of sections of each NIC family that is registered
//!
//! [[function]]              # a single device
//! kind = "KIND"             # a kind of device that is registered
//! name = "nic0"             # of its node, or with `node` of the function within that node
//! node = "host0"            # optional: the device is a function of this node, as others may be
//!                           # further keys are the kind's own parameters
//!
//! [[link]]                  # a link between two ports of any functions in the file
//! a = "nic0:0"              # a node's name, or NODE.FUNCTION; and the number of a port
//! b = "host0.nic1:0"
//! delay_ns = 0              # 0 to one second
//! gbit_s = 0.0              # up to 10000; 0 is "as fast as it goes"
//! channels = 1              # virtual channels, 1 to 16
//! credits = 16              # packets of buffer at the receiving end of each, 1 to 1024
//! packet_bytes = 2048       # the longest packet, 1 to 65536
//! cut_through_bytes = 32    # optional: a router may forward a packet after these, 1 to 65536
//! ```
//!
//! The sections of a family are those of the family's own documentation. A value out of its limits
//! is refused with its line and the expected range.

mod error;
#[cfg(test)]
mod tests;

use std::{fs::File, io::Read, path::Path};

use nicforge_core::fabric::{DEFAULT_MAX_PACKET, MAX_CHANNELS};
use nicforge_family::{
    Families, FunctionKey, LinkSection, LinkSpec, Plan, PortKey, Section, SectionError, Spanned, range_or,
    refuse_value,
};
use serde::Deserialize;
use toml::de::DeTable;

pub use self::error::{DescriptionError, FilePosition};

/// The largest machine file that is read, in bytes.
pub const MAX_FILE: u64 = 1 << 20;

/// Number of virtual channels of a `[[link]]` without `channels`.
const DEFAULT_CHANNELS: u32 = 1;
/// Packets of buffer of each virtual channel of a `[[link]]` without `credits`.
const DEFAULT_CREDITS: u32 = 16;
/// The greatest `packet_bytes` of a `[[link]]`.
const MAX_PACKET_BYTES: u32 = 1 << 16;

/// Reads and checks a machine file with the sections of `families`.
///
/// # Errors
/// The file cannot be read, or [`parse`] refuses its text.
pub fn read(path: &Path, families: &Families) -> Result<Plan, DescriptionError> {
    let displayed_path = path.display().to_string();
    let unreadable = |source| DescriptionError::Read { path: displayed_path.clone(), source };
    let metadata = std::fs::metadata(path).map_err(unreadable)?;

    if !metadata.is_file() {
        return Err(DescriptionError::NoFile { path: displayed_path });
    }

    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text))
        .map_err(unreadable)?;
    if text.len() as u64 > MAX_FILE {
        return Err(DescriptionError::TooLarge { path: displayed_path, bytes: metadata.len() });
    }
    parse(&text, &displayed_path, families)
}

/// Checks the text of a machine file, and returns the plan of its machine. `path` is the file's
/// name in messages.
///
/// # Errors
/// The first error in the text, with its line.
pub fn parse(text: &str, path: &str, families: &Families) -> Result<Plan, DescriptionError> {
    plan_of(text, families).map_err(|problem| DescriptionError::in_file(path, text, problem))
}

/// Parses a machine file, and lets each family plan its sections.
fn plan_of(text: &str, families: &Families) -> Result<Plan, SectionError> {
    let table = DeTable::parse(text)
        .map_err(|error| SectionError::Syntax { span: error.span(), message: error.message().to_owned() })?;
    let mut file = Section::new(table);

    let name: Spanned<String> = file.take("name")?;
    let family_sections = families
        .families()
        .map(|family| Ok((family, file.take_sections(family.table())?)))
        .collect::<Result<Vec<_>, SectionError>>()?;
    let functions = file.take_sections("function")?;
    let links = file.take_sections("link")?;

    let mut tables: Vec<&str> = families.families().map(|family| family.table()).collect();
    tables.extend(["function", "link"]);
    file.finish(&[&["name"], tables.as_slice()].concat())?;

    let mut plan = Plan::new(name.get_ref()).map_err(|error| error.at(name.span()))?;
    if functions.is_empty() && family_sections.iter().all(|(_, sections)| sections.is_empty()) {
        // The message names the tables that add functions, so not `link`.
        tables.pop();
        return Err(SectionError::value(0..0, "the machine", "empty", at_least_one(&tables)));
    }

    for (family, sections) in family_sections {
        let Some(first) = sections.first().map(Section::span) else { continue };
        plan.add_columns(family.columns());
        family.plan(sections, &mut plan).map_err(|error| error.or_at(first))?;
    }
    for function in functions {
        add_function(&mut plan, function, families)?;
    }
    for link in links {
        add_link(&mut plan, &link)?;
    }

    Ok(plan)
}

/// Returns the words "at least one [[a]], [[b]] or [[c]]".
fn at_least_one(tables: &[&str]) -> String {
    let tables: Vec<String> = tables.iter().map(|table| format!("[[{table}]]")).collect();
    match tables.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("at least one {} or {last}", rest.join(", ")),
        _ => format!("at least one {}", tables.concat()),
    }
}

/// Adds the device of one `[[function]]`.
fn add_function(plan: &mut Plan, mut table: Section<'_>, families: &Families) -> Result<(), SectionError> {
    let name: Spanned<String> = table.take("name")?;
    let node: Option<Spanned<String>> = table.take_if_any("node")?;
    let kind: Spanned<String> = table.take("kind")?;

    let Some(device_kind) = families.kind(kind.get_ref()) else {
        let known: Vec<_> = families.kinds().iter().map(|kind| kind.name()).collect();
        return Err(refuse_value("kind", &kind, format!("one of {}", known.join(", "))));
    };

    let span = table.span();
    let source = device_kind.read(table).map_err(|error| error.or_at(span))?;
    plan.add_columns(device_kind.columns());

    // Without `node` the function is a node of its own.
    let Some(node) = node else {
        return match plan.single(name.get_ref(), device_kind.role(), source) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.at(name.span())),
        };
    };

    let node = match plan.find_node(node.get_ref()) {
        Some(node) => node,
        None => plan.node(node.get_ref(), device_kind.role()).map_err(|error| error.at(node.span()))?,
    };
    plan.function(node, name.get_ref(), source).map(drop).map_err(|error| error.at(name.span()))
}

/// One `[[link]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkTable {
    a: Spanned<String>,
    b: Spanned<String>,
    #[serde(default)]
    delay_ns: Option<Spanned<u64>>,
    #[serde(default)]
    gbit_s: Option<Spanned<f64>>,
    #[serde(default)]
    channels: Option<Spanned<u32>>,
    #[serde(default)]
    credits: Option<Spanned<u32>>,
    #[serde(default)]
    packet_bytes: Option<Spanned<u32>>,
    #[serde(default)]
    cut_through_bytes: Option<Spanned<u32>>,
}

impl LinkTable {
    /// Returns the link's properties, with defaults for those that the table does not name.
    fn spec(&self) -> Result<LinkSpec, SectionError> {
        let channel_limits = (1, MAX_CHANNELS as u32);
        let channels = range_or("channels", self.channels.as_ref(), channel_limits, DEFAULT_CHANNELS)?;
        let packet_limits = (1, MAX_PACKET_BYTES);
        let default_packet = DEFAULT_MAX_PACKET as u32;
        let packet_bytes =
            range_or("packet_bytes", self.packet_bytes.as_ref(), packet_limits, default_packet)?;

        let values = LinkSection {
            delay_ns: self.delay_ns.clone(),
            gbit_s: self.gbit_s.clone(),
            credits: self.credits.clone(),
            cut_through_bytes: self.cut_through_bytes.clone(),
        };
        values.with_defaults(LinkSpec::new(channels as usize, DEFAULT_CREDITS, packet_bytes as usize))
    }
}

/// Adds one `[[link]]`.
fn add_link(plan: &mut Plan, table: &Section<'_>) -> Result<(), SectionError> {
    let table: LinkTable = table.parse()?;
    let link = table.spec()?;

    let a = port(plan, "a", &table.a)?;
    let b = port(plan, "b", &table.b)?;
    plan.link(a, b, link).map_err(|error| error.at(table.b.span()))
}

/// Returns the port that one end of a link names, such as `nic0:1`.
fn port(plan: &Plan, end: &str, value: &Spanned<String>) -> Result<PortKey, SectionError> {
    let parts = value.get_ref().rsplit_once(':');
    let Some((name, Ok(number))) = parts.map(|(name, number)| (name, number.parse::<u8>())) else {
        let expected = "a function's name, ':' and the number of a port, such as \"nic0:0\"";
        return Err(refuse_value(end, value, expected));
    };

    let at_value = |error: nicforge_family::PlanError| error.at(value.span());
    let function: FunctionKey = plan.find_function(name).map_err(at_value)?;
    plan.check_port((function, number)).map_err(at_value)?;
    Ok((function, number))
}

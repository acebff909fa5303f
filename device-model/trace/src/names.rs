//! The names of a machine's functions, attachments, links and registers.

use std::ops::Range;

use nicforge_core::{
    fabric::{Direction, LinkId},
    ids::{Address, AttachmentId, FunctionId},
    machine::Machine,
    spec::FunctionSpec,
};
use nicforge_hwi::{
    attachment::control,
    pci::MSIX_REGISTER_MAP,
    register::{self, Register},
};

use crate::filter::FilterError;

/// Most names that an error lists.
pub(crate) const MAX_LISTED: usize = 20;

/// The names of a machine, as they were when they were taken. A function that is added later has
/// its number for a name.
#[derive(Clone, Debug)]
pub struct Names {
    functions: Vec<FunctionNames>,
    /// The two ends of each link.
    links: Vec<[(FunctionId, u8); 2]>,
}

#[derive(Clone, Debug)]
struct FunctionNames {
    name: String,
    attachments: Vec<String>,
    /// The registers that the device declares.
    registers: &'static [Register],
    /// The registers that the core adds, which the device does not see.
    core_areas: Vec<CoreArea>,
}

/// A range of a BAR with registers of the core.
#[derive(Clone, Debug)]
struct CoreArea {
    bar: u8,
    range: Range<u64>,
    /// The registers, with offsets in the range.
    registers: &'static [Register],
}

impl CoreArea {
    /// Returns the areas of a function.
    fn of(spec: &FunctionSpec) -> Vec<Self> {
        let area = |bar, offset: u32, length: u64, registers| {
            let start = u64::from(offset);
            Self { bar, range: start..start + length, registers }
        };
        let control = spec
            .rings
            .map(|rings| area(rings.control_bar, rings.control_offset, control::SIZE, control::REGISTER_MAP));
        let msix =
            spec.msix.map(|msix| area(msix.bar, msix.table, u64::from(msix.vectors) * 16, MSIX_REGISTER_MAP));
        control.into_iter().chain(msix).collect()
    }
}

impl Names {
    /// Returns the names of a machine.
    pub fn of(machine: &mut Machine) -> Self {
        let functions = (0..machine.functions()).map(FunctionId).map(|id| FunctionNames {
            name: machine.name(id).unwrap_or_default().to_owned(),
            attachments: machine.spec(id).map_or_else(Vec::new, |spec| {
                spec.attachments.iter().map(|attachment| attachment.name.clone()).collect()
            }),
            registers: machine.registers(id),
            core_areas: machine.spec(id).map_or_else(Vec::new, CoreArea::of),
        });
        let functions = functions.collect();

        let fabric = machine.fabric();
        let links = (0..fabric.links()).filter_map(|link| fabric.link_ends(LinkId(link)).ok()).collect();
        Self { functions, links }
    }

    /// Returns the name of a function.
    pub(crate) fn function(&self, id: FunctionId) -> String {
        match self.functions.get(id.0 as usize) {
            Some(function) => function.name.clone(),
            None => id.0.to_string(),
        }
    }

    /// Returns the name of an attachment within its function.
    pub(crate) fn attachment(&self, function: FunctionId, id: AttachmentId) -> String {
        let names = self.functions.get(function.0 as usize).map(|function| &function.attachments);
        match names.and_then(|names| names.get(usize::from(id.0))) {
            Some(name) => name.clone(),
            None => id.0.to_string(),
        }
    }

    /// Returns an access to a BAR by the names of registers and fields.
    pub(crate) fn access(&self, function: FunctionId, bar: u8, offset: u64, data: &[u8]) -> String {
        let (registers, base_bar, start) = self.table(function, bar, offset);
        register::show(registers, base_bar, offset - start, data).to_string()
    }

    /// Returns the address of an access by the name of a register.
    pub(crate) fn place(&self, function: FunctionId, Address { bar, offset }: Address) -> String {
        let (registers, base_bar, start) = self.table(function, bar, offset);
        match register::find(registers, base_bar, offset - start) {
            Some(found) => found.to_string(),
            None => format!("BAR{bar}+{offset:#x}"),
        }
    }

    /// Returns the name of one direction of a link, such as `cn0:1 > io0:0`.
    pub(crate) fn link(&self, link: LinkId, direction: Direction) -> String {
        let Some(&[first, second]) = self.links.get(link.0 as usize) else {
            return format!("link {}", link.0);
        };
        let (from, to) = if direction == Direction::Forward { (first, second) } else { (second, first) };

        format!("{} > {}", self.port(from), self.port(to))
    }

    /// Returns the two ends of each link.
    pub(crate) fn ends(&self) -> impl Iterator<Item = [(FunctionId, u8); 2]> + '_ {
        self.links.iter().copied()
    }

    /// Returns the name of a port: `cn0:1`.
    pub(crate) fn port(&self, (function, port): (FunctionId, u8)) -> String {
        format!("{}:{port}", self.function(function))
    }

    /// Returns the declarations for an address, and the BAR and offset from which they count.
    fn table(&self, function: FunctionId, bar: u8, offset: u64) -> (&'static [Register], u8, u64) {
        let Some(function) = self.functions.get(function.0 as usize) else { return (&[], bar, 0) };
        let mut areas = function.core_areas.iter();
        match areas.find(|area| area.bar == bar && area.range.contains(&offset)) {
            Some(area) => (area.registers, 0, area.range.start),
            None => (function.registers, bar, 0),
        }
    }

    /// Returns the function or attachment of this name: `cn0`, or `cn0.core1`.
    pub(crate) fn source(&self, name: &str) -> Result<(FunctionId, Option<AttachmentId>), FilterError> {
        for (number, function) in self.functions.iter().enumerate() {
            let id = FunctionId(number as u32);
            if function.name == name {
                return Ok((id, None));
            }
            let own = name.strip_prefix(function.name.as_str()).and_then(|rest| rest.strip_prefix('.'));
            let position = own.and_then(|own| function.attachments.iter().position(|known| known == own));
            if let Some(position) = position {
                return Ok((id, Some(AttachmentId(position as u16))));
            }
        }

        let known = self.functions.iter().flat_map(|function| {
            let attachments = function.attachments.iter();
            std::iter::once(function.name.clone())
                .chain(attachments.map(|attachment| format!("{}.{attachment}", function.name)))
        });
        Err(FilterError::NoSource { name: name.to_owned(), known: known.take(MAX_LISTED).collect() })
    }

    /// Returns the ranges of all registers of this name in the functions that `is_selected`
    /// accepts.
    pub(crate) fn register_ranges(
        &self,
        name: &str,
        is_selected: impl Fn(FunctionId) -> bool,
    ) -> Result<Vec<(FunctionId, u8, Range<u64>)>, FilterError> {
        let functions = self.functions.iter().enumerate();
        let functions = functions.map(|(number, function)| (FunctionId(number as u32), function));
        let selected: Vec<_> = functions.filter(|(id, _)| is_selected(*id)).collect();

        let mut ranges = Vec::new();
        let mut known = Vec::new();
        for (id, function) in selected {
            for register in function.registers {
                if register.name == name {
                    let end = register.end().unwrap_or(u64::MAX);
                    ranges.push((id, register.bar, register.offset..end));
                } else if known.len() < MAX_LISTED && !known.iter().any(|known| known == register.name) {
                    known.push(register.name.to_owned());
                }
            }
        }
        if ranges.is_empty() {
            return Err(FilterError::NoRegister { name: name.to_owned(), known });
        }
        Ok(ranges)
    }
}

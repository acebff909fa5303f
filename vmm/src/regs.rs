//! `nicforge regs`: shows the registers of an attachment of a served machine, by name and field.
//!
//! The server reads them without an effect of a read: see
//! [`nicforge_core::machine::Machine::peek`].

use std::{path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    control::{Request, Response, ask},
    escape,
    failure::{ErrorContext, Failure},
    samples,
    stat::{find_directory, unexpected_answer},
    table::{TableColumn, TableData},
};

/// The registers of an attachment, its posted-write rings, and the counters of its device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegistersSnapshot {
    /// The node and the attachment, as `NODE.ATTACHMENT`.
    pub attachment: String,
    /// Whether it has a client.
    pub has_client: bool,
    /// The registers that the device declares.
    pub registers: Vec<RegisterSnapshot>,
    /// The client's posted-write rings.
    pub rings: Vec<RingSnapshot>,
    /// The device's counters, in its order.
    pub counters: Vec<(String, u64)>,
}

/// A register, or an array of equal ones.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegisterSnapshot {
    /// Its name.
    pub name: String,
    /// Its meaning in a few words. It may be empty.
    pub about: String,
    /// Number of its BAR.
    pub bar: u8,
    /// Offset in the BAR in bytes.
    pub offset: u64,
    /// Width in bytes.
    pub width: u8,
    /// The effect of accesses, such as `rw` or `rc`.
    pub access: String,
    /// Number of registers of the array, 1 for a single one.
    pub count: u32,
    /// Distance of two registers of the array in bytes.
    pub stride: u64,
    /// Its fields.
    pub fields: Vec<FieldSnapshot>,
    /// The values of the array's registers, in order, 4096 at most. A register that is only
    /// written, or whose access alone has an effect, has none.
    pub values: Vec<ValueSnapshot>,
}

/// A field of a register.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FieldSnapshot {
    /// Its name.
    pub name: String,
    /// Its highest bit.
    pub high: u8,
    /// Its lowest bit.
    pub low: u8,
}

/// The value of a register.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueSnapshot {
    /// The value. `None` where it can't be said without an effect of a read.
    pub value: Option<u64>,
    /// The fields of the value, such as `RST SPEED=1000 Mb/s`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fields: String,
}

/// A posted-write ring. Positions count cells since the ring began, modulo 2^32.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingSnapshot {
    /// Number of its cells.
    pub cells: u32,
    /// Position of the next record that the device carries out.
    pub head: u32,
    /// Position behind the last record of the client.
    pub tail: u32,
    /// Cells between head and tail.
    pub fill: u32,
    /// Whether the device has refused the next record for now.
    pub stalled: bool,
}

impl RegistersSnapshot {
    /// Puts each text in one line without control characters. The texts are those of whoever
    /// answered at the control socket.
    pub(crate) fn escape_texts(&mut self) {
        let Self { attachment, has_client: _, registers, rings: _, counters } = self;
        let of_registers = registers.iter_mut().flat_map(|register| {
            let RegisterSnapshot { name, about, access, fields, values, .. } = register;
            let of_fields = fields.iter_mut().map(|field| &mut field.name);
            let of_values = values.iter_mut().map(|value| &mut value.fields);
            [name, about, access].into_iter().chain(of_fields).chain(of_values)
        });
        let of_counters = counters.iter_mut().map(|(name, _)| name);
        [attachment].into_iter().chain(of_registers).chain(of_counters).for_each(escape::put_in_one_line);
    }
}

/// Runs `nicforge regs`: once, or `every` so often until a signal comes. With `json` it prints one
/// object for each sample.
pub fn main(directory: &Path, attachment: &str, every: Option<Duration>, json: bool) -> Result<u8, Failure> {
    let directory = find_directory(directory)?;
    let request = Request::Registers { attachment: attachment.to_owned() };

    samples::print(every, !json, || match ask(&directory, &request)? {
        Response::Registers(snapshot) if json => {
            serde_json::to_string(&snapshot).context(|| "the answer".into())
        }
        Response::Registers(snapshot) => Ok(render(snapshot)),
        other => Err(unexpected_answer(&other)),
    })
}

/// Returns the tables of a snapshot as text.
fn render(snapshot: RegistersSnapshot) -> String {
    let RegistersSnapshot { attachment, has_client, registers, rings, counters } = snapshot;
    let client = if has_client { "" } else { ", without a client" };
    let mut text = format!("{attachment}{client}\n");

    if registers.is_empty() {
        text.push_str("its device declares no registers\n");
    } else {
        let columns = ["register", "BAR+offset", "access", "value", "meaning"];
        let columns = columns.map(|name| TableColumn::new(name, name == "value")).into();
        let rows = registers.iter().flat_map(rows_of).collect();
        text.push_str(&format!("{}\n", TableData { columns, rows }.table()));
    }

    for (number, ring) in rings.iter().enumerate() {
        let RingSnapshot { cells, head, tail, fill, stalled } = ring;
        let stalled = if *stalled { "; the device refuses the next record for now" } else { "" };
        text.push_str(&format!(
            "ring {number}: {fill} of {cells} cells filled, head {head}, tail {tail}{stalled}\n"
        ));
    }

    if !counters.is_empty() {
        let columns = vec![TableColumn::new("counter", false), TableColumn::new("value", true)];
        let rows = counters.into_iter().map(|(name, value)| vec![name, value.to_string()]).collect();
        text.push_str(&format!("{}\n", TableData { columns, rows }.table()));
    }
    text.truncate(text.trim_end().len());
    text
}

/// Returns the rows of a register. Registers of an array that follow each other and have the same
/// value share one row.
fn rows_of(register: &RegisterSnapshot) -> Vec<Vec<String>> {
    let RegisterSnapshot { name, about, bar, offset, width, access, count, stride, fields: _, values } =
        register;
    let unknown = ValueSnapshot::default();
    let value_at = |index: u32| values.get(index as usize).unwrap_or(&unknown);
    let row = |first: u32, last: u32| {
        let name = match (count, first == last) {
            (1, _) => name.clone(),
            (_, true) => format!("{name}[{first}]"),
            (_, false) => format!("{name}[{first}-{last}]"),
        };
        let offset = offset.wrapping_add(stride.wrapping_mul(first.into()));
        let ValueSnapshot { value, fields } = value_at(first);
        let digits = 2 * usize::from(*width);
        let meaning = if fields.is_empty() { about } else { fields };
        vec![
            name,
            format!("{bar}+{offset:#06x}"),
            access.clone(),
            value.map_or_else(|| "-".to_owned(), |value| format!("0x{value:0digits$x}")),
            meaning.clone(),
        ]
    };

    let mut rows = Vec::new();
    let mut first = 0;
    // Beyond the values that the server sent, all registers are alike.
    let different = u32::try_from(values.len()).unwrap_or(u32::MAX).min(*count);
    for next in 1..=different {
        if next == different || value_at(next) != value_at(first) {
            rows.push(row(first, next - 1));
            first = next;
        }
    }
    if first < *count {
        rows.push(row(first, count - 1));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an array of registers with these values.
    fn array(count: u32, values: &[Option<u64>]) -> RegisterSnapshot {
        RegisterSnapshot {
            name: "RDT".into(),
            about: "tails".into(),
            bar: 0,
            offset: 0x2818,
            width: 4,
            access: "rw".into(),
            count,
            stride: 0x100,
            fields: Vec::new(),
            values: values.iter().map(|&value| ValueSnapshot { value, ..Default::default() }).collect(),
        }
    }

    fn names_and_values(register: &RegisterSnapshot) -> Vec<String> {
        rows_of(register).iter().map(|row| format!("{} {} {}", row[0], row[1], row[3])).collect()
    }

    #[test]
    fn single_register_has_a_row_with_its_fields_or_its_description() {
        let mut register = array(1, &[Some(0x40)]);
        assert_eq!(rows_of(&register), [["RDT", "0+0x2818", "rw", "0x00000040", "tails"]]);

        register.fields = vec![FieldSnapshot { name: "ON".into(), high: 6, low: 6 }];
        register.values[0].fields = "ON".into();
        assert_eq!(rows_of(&register), [["RDT", "0+0x2818", "rw", "0x00000040", "ON"]]);
    }

    #[test]
    fn equal_neighbours_of_an_array_share_a_row() {
        let register = array(5, &[Some(1), Some(1), Some(2), None, None]);
        let expected = ["RDT[0-1] 0+0x2818 0x00000001", "RDT[2] 0+0x2a18 0x00000002", "RDT[3-4] 0+0x2b18 -"];
        assert_eq!(names_and_values(&register), expected);
    }

    #[test]
    fn registers_without_values_have_one_row() {
        assert_eq!(names_and_values(&array(1, &[])), ["RDT 0+0x2818 -"]);
        assert_eq!(names_and_values(&array(u32::MAX, &[])), ["RDT[0-4294967294] 0+0x2818 -"]);
        let cut = array(9, &[Some(7)]);
        assert_eq!(names_and_values(&cut), ["RDT[0] 0+0x2818 0x00000007", "RDT[1-8] 0+0x2918 -"]);
        // A server may answer anything.
        assert!(rows_of(&array(0, &[Some(1)])).is_empty());
    }

    #[test]
    fn page_has_the_rings_and_the_counters_below_the_registers() {
        let ring = RingSnapshot { cells: 64, head: 5, tail: 7, fill: 2, stalled: true };
        let text = render(RegistersSnapshot {
            attachment: "fifo0.user0".into(),
            has_client: false,
            registers: Vec::new(),
            rings: vec![ring],
            counters: vec![("errors".into(), 3)],
        });

        let lines: Vec<_> = text.lines().take(3).collect();
        let expected = [
            "fifo0.user0, without a client",
            "its device declares no registers",
            "ring 0: 2 of 64 cells filled, head 5, tail 7; the device refuses the next record for now",
        ];
        assert_eq!(lines, expected);
        assert!(text.contains("errors"), "{text}");
    }
}

//! Packets of chosen ports in the pcapng format, which Wireshark and tshark read.
//!
//! Each captured port is an interface of the file. A packet that crosses the port's link in either
//! direction is a packet of the interface, with its direction. The link type is Ethernet where an
//! end of the link is an Ethernet controller (PCI class 02 00). Packets of other networks have the
//! first user-defined link type, and begin with a [`PREFIX`].
//!
//! Source: draft-ietf-opsawg-pcapng, sections 4.1 (section header), 4.2 (interface description) and
//! 4.3 (enhanced packet).

use std::fmt;

use nicforge_core::{
    fabric::{Direction, Fabric, LinkId},
    machine::Machine,
    trace::Crossing,
};
use thiserror::Error;

use crate::names::Names;

/// Bytes in front of each packet that is no Ethernet frame: the virtual channel (1 byte), 7 bytes
/// of zeros, and the packet's header word (8 bytes, little-endian).
pub const PREFIX: usize = 16;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
/// Link type of Ethernet frames.
const LINKTYPE_ETHERNET: u16 = 1;
/// The first user-defined link type.
const LINKTYPE_USER0: u16 = 147;
/// Option: name of the interface.
const IF_NAME: u16 = 2;
/// Option: resolution of time stamps, as a negative power of ten.
const IF_TSRESOL: u16 = 9;
/// Option: flags of a packet.
const EPB_FLAGS: u16 = 2;
/// Flag of a packet that the port has received.
const INBOUND: u32 = 1;
/// Flag of a packet that the port has sent.
const OUTBOUND: u32 = 2;

/// PCI base class and subclass of an Ethernet controller.
const ETHERNET: u32 = 0x02_00;

/// Reason why a port can't be captured.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CaptureError {
    /// The text is no port.
    #[error("{text} is no port: write NODE:PORT, such as nic0:0")]
    NoPort {
        /// The text.
        text: String,
    },
    /// The port has no link, or the machine has no such node.
    #[error("no link is at {name}; links are at {}", known.join(", "))]
    NoLink {
        /// The port.
        name: String,
        /// Some ports that have one.
        known: Vec<String>,
    },
}

/// A port whose packets are captured.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkId,
    /// The direction in which the port sends.
    sends: Direction,
    is_ethernet: bool,
}

/// The packets of one file: blocks that wait to be written.
pub struct Capture {
    interfaces: Vec<Interface>,
    blocks: Vec<u8>,
    limit: usize,
    lost: u64,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.blocks.len();
        f.debug_struct("Capture").field("interfaces", &self.interfaces).field("waiting", &waiting).finish()
    }
}

impl Capture {
    /// Returns a capture of ports of a machine that keeps at most `limit` bytes until they are
    /// taken. A port is named by its function and number, as `nic0:0`. The first bytes to take
    /// describe the ports.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn new(machine: &mut Machine, ports: &[String], limit: usize) -> Result<Self, CaptureError> {
        let names = Names::of(machine);
        let interfaces: Vec<_> =
            ports.iter().map(|port| Interface::of(machine, &names, port)).collect::<Result<_, _>>()?;

        let mut capture = Self { interfaces, blocks: Vec::with_capacity(limit), limit, lost: 0 };
        capture.describe_section();
        for (interface, name) in capture.interfaces.clone().into_iter().zip(ports) {
            capture.describe(interface, name);
        }
        Ok(capture)
    }

    /// Taps the links of the ports, so that their packets come as a whole.
    pub fn set_taps(&self, fabric: &mut Fabric) {
        for interface in &self.interfaces {
            for direction in [Direction::Forward, Direction::Backward] {
                // The link was found when the capture was made.
                let _ = fabric.set_tap(interface.link, direction, Some(usize::MAX));
            }
        }
    }

    /// Takes the bytes to append to the file, and keeps the memory of `empty` for the next ones.
    pub fn take(&mut self, mut empty: Vec<u8>) -> Vec<u8> {
        empty.clear();
        std::mem::replace(&mut self.blocks, empty)
    }

    /// Returns the number of packets for which there was no room.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Adds a packet of the ports, sent at `now` in nanoseconds.
    pub(crate) fn add(&mut self, now: u64, crossing: &Crossing<'_>) {
        for number in 0..self.interfaces.len() {
            let interface = self.interfaces[number];
            if interface.link == crossing.link {
                self.add_to(number as u32, interface, now, crossing);
            }
        }
    }

    fn add_to(&mut self, number: u32, interface: Interface, now: u64, crossing: &Crossing<'_>) {
        let prefix = if interface.is_ethernet { 0 } else { PREFIX };
        let captured = prefix + crossing.data.len();
        // Block header and trailer, five words, padding and the option of the flags.
        if self.blocks.len() + captured + 64 > self.limit {
            self.lost += 1;
            return;
        }

        let flags = if crossing.direction == interface.sends { OUTBOUND } else { INBOUND };
        self.block(ENHANCED_PACKET, |block| {
            let lengths = [captured, prefix + crossing.length].map(|length| length as u32);
            for word in [number, (now >> 32) as u32, now as u32, lengths[0], lengths[1]] {
                block.extend(word.to_le_bytes());
            }
            if prefix > 0 {
                block.extend([crossing.channel, 0, 0, 0, 0, 0, 0, 0]);
                block.extend(crossing.header.to_le_bytes());
            }
            block.extend(crossing.data);
            pad(block, captured);
            option(block, EPB_FLAGS, &flags.to_le_bytes());
            option(block, 0, &[]);
        });
    }

    fn describe_section(&mut self) {
        self.block(SECTION_HEADER, |block| {
            block.extend(BYTE_ORDER_MAGIC.to_le_bytes());
            // Version 1.0, and a length that is not given.
            block.extend([1, 0, 0, 0]);
            block.extend(u64::MAX.to_le_bytes());
        });
    }

    fn describe(&mut self, interface: Interface, name: &str) {
        let link_type = if interface.is_ethernet { LINKTYPE_ETHERNET } else { LINKTYPE_USER0 };
        self.block(INTERFACE_DESCRIPTION, |block| {
            block.extend(link_type.to_le_bytes());
            // Reserved, and no limit of a packet's length.
            block.extend([0; 6]);
            option(block, IF_NAME, name.as_bytes());
            option(block, IF_TSRESOL, &[9]);
            option(block, 0, &[]);
        });
    }

    /// Adds a block with the content that `fill` writes, which has whole words.
    fn block(&mut self, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
        let start = self.blocks.len();
        self.blocks.extend(kind.to_le_bytes());
        self.blocks.extend([0; 4]);
        fill(&mut self.blocks);
        let length = (self.blocks.len() - start + 4) as u32;
        self.blocks[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
        self.blocks.extend(length.to_le_bytes());
    }
}

impl Interface {
    /// Returns the interface of a port by its name, `nic0:0`.
    fn of(machine: &mut Machine, names: &Names, text: &str) -> Result<Self, CaptureError> {
        let no_port = || CaptureError::NoPort { text: text.to_owned() };
        let (_, port) = text.rsplit_once(':').ok_or_else(no_port)?;
        port.parse::<u8>().map_err(|_| no_port())?;

        let (mut known, mut found) = (Vec::new(), None);
        for (number, ends) in names.ends().enumerate() {
            for (end, sends) in ends.into_iter().zip([Direction::Forward, Direction::Backward]) {
                let name = names.port(end);
                if name == text {
                    found = Some((LinkId(number as u32), sends, ends));
                } else if known.len() < crate::names::MAX_LISTED {
                    known.push(name);
                }
            }
        }

        let (link, sends, ends) =
            found.ok_or_else(|| CaptureError::NoLink { name: text.to_owned(), known })?;
        let is_ethernet = ends
            .iter()
            .any(|(end, _)| machine.spec(*end).is_some_and(|spec| spec.identity.class >> 8 == ETHERNET));
        Ok(Self { link, sends, is_ethernet })
    }
}

/// Pads data of this length to whole words.
fn pad(block: &mut Vec<u8>, length: usize) {
    block.extend(&[0; 3][..length.next_multiple_of(4) - length]);
}

/// Adds an option of a block. Number 0 without a value ends the options.
fn option(block: &mut Vec<u8>, number: u16, value: &[u8]) {
    block.extend(number.to_le_bytes());
    block.extend((value.len() as u16).to_le_bytes());
    block.extend(value);
    pad(block, value.len());
}

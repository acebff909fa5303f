//! The registers of BAR 0.

use nicforge_core::{
    context::Context,
    fabric::Ports,
    ids::{Address, AttachmentId},
    warning::Warning,
};
use nicforge_hwi::{
    torus::{
        CHANNELS, CORES, INJECTION_FIFOS, KERNEL, PORTS, PRIORITY_INJECTION, PRIORITY_RECEPTION, QUAD,
        RECEPTION_FIFOS, Status, reg,
    },
    torus_dcr as dcr,
};
use nicforge_kit::RegisterValue;

use crate::{
    config::Site,
    device::{BAR_REGISTERS, TorusNic},
    group::GROUPS,
};

/// A register of BAR 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Register {
    /// The port to a reception FIFO.
    Reception(usize),
    /// The port to an injection FIFO.
    Injection(usize),
    /// The status of the client's group.
    Status,
    /// The status of the other group.
    OtherStatus,
    /// A device control register.
    Control(u32),
    /// The tail of an injection FIFO.
    Tail(usize),
    HeadsMoved,
    InterruptEnable,
    InterruptStatus,
    PresenceChanges,
    /// The lives of a node's cores.
    Presence(u32),
}

impl Register {
    /// Returns the register that an access names: `None` if there is none at the offset, or the
    /// access has another width.
    fn decode(offset: u64, length: usize) -> Option<Self> {
        match offset {
            reg::R0..reg::RH => {
                let fifo = (offset / nicforge_hwi::torus::FIFO) as usize;
                (fifo < PRIORITY_RECEPTION).then_some(Self::Reception(fifo))
            }
            reg::RH..reg::I0 => {
                let is_inside = offset < reg::RH + nicforge_hwi::torus::FIFO;
                is_inside.then_some(Self::Reception(PRIORITY_RECEPTION))
            }
            reg::I0..reg::STATUS => {
                let fifo = ((offset - reg::I0) / reg::INJECTION) as usize;
                Some(Self::Injection(fifo.min(PRIORITY_INJECTION)))
            }
            _ if offset & !0xf == reg::STATUS => Some(Self::Status),
            _ if offset & !0xf == reg::OTHER_STATUS => Some(Self::OtherStatus),
            _ if u32::is_whole_access(offset, length) => Self::of_words(offset),
            _ => None,
        }
    }

    /// Returns the register of 32 bits at an offset.
    fn of_words(offset: u64) -> Option<Self> {
        const DCR_END: u64 = reg::DCR + 4 * dcr::COUNT as u64;
        const TAILS_END: u64 = reg::INJECTION_TAIL + 4 * INJECTION_FIFOS as u64;
        let index = |base: u64| ((offset - base) / 4) as u32;
        match offset {
            reg::DCR..DCR_END => Some(Self::Control(index(reg::DCR))),
            reg::INJECTION_TAIL..TAILS_END => Some(Self::Tail(index(reg::INJECTION_TAIL) as usize)),
            reg::HEADS_MOVED => Some(Self::HeadsMoved),
            reg::INTERRUPT_ENABLE => Some(Self::InterruptEnable),
            reg::INTERRUPT_STATUS => Some(Self::InterruptStatus),
            reg::PRESENCE_CHANGES => Some(Self::PresenceChanges),
            reg::PRESENCE..reg::SIZE => Some(Self::Presence(index(reg::PRESENCE))),
            _ => None,
        }
    }
}

/// Returns the address of the register at an offset.
fn register_at(offset: u64) -> Address {
    Address { bar: BAR_REGISTERS, offset }
}

/// Returns the FIFO group of an attachment; `None` for the kernel, which has none.
pub(crate) fn group_of(attachment_id: AttachmentId) -> Option<usize> {
    (attachment_id.0 < CORES).then_some(attachment_id.0.into())
}

/// Copies the part of a status that an access covers.
fn answer_status(status: Status, offset: u64, data: &mut [u8]) {
    let bytes: [u8; QUAD] = zerocopy::transmute!(status);
    let start = (offset % QUAD as u64) as usize;
    if let Some(part) = bytes.get(start..start + data.len()) {
        data.copy_from_slice(part);
    }
}

impl TorusNic {
    /// Handles a trapped read. A register that does not exist leaves ones in `data`.
    pub(crate) fn read_register(
        &mut self,
        context: &mut Context<'_>,
        from: AttachmentId,
        offset: u64,
        data: &mut [u8],
    ) {
        let Some(register) = Register::decode(offset, data.len()) else { return };

        match (register, group_of(from)) {
            (Register::Reception(fifo), Some(group)) => {
                let group = &mut self.groups[group];
                let errors = group.all_errors();
                group.read_port(fifo, offset, data);
                if group.all_errors() != errors {
                    let rule =
                        &"reads of a FIFO's port find a packet, and are quads or their halves in order";
                    context.warn(from, Warning::refused(rule).register(register_at(offset)));
                }
                return;
            }
            (Register::Status | Register::InterruptStatus, Some(group)) => self.groups[group].poll_heads(),
            (Register::OtherStatus, Some(group)) => self.groups[GROUPS - 1 - group].poll_heads(),
            _ => {}
        }
        self.peek_register(&context.ports(), from, offset, data);
    }

    /// Answers a trapped read as far as it has no effect. Returns false for the port to a FIFO, and
    /// for a register that does not exist.
    pub(crate) fn peek_register(
        &self,
        ports: &Ports<'_>,
        from: AttachmentId,
        offset: u64,
        data: &mut [u8],
    ) -> bool {
        let Some(register) = Register::decode(offset, data.len()) else { return false };

        let word = match (register, group_of(from)) {
            (Register::Status, Some(group)) => {
                answer_status(self.groups[group].status(), offset, data);
                return true;
            }
            (Register::OtherStatus, Some(group)) => {
                answer_status(self.groups[GROUPS - 1 - group].status(), offset, data);
                return true;
            }
            (Register::Tail(fifo), Some(group)) => {
                let fifo = &self.groups[group].injection[fifo];
                Some(fifo.head().wrapping_add(fifo.count()))
            }
            (Register::InterruptEnable, Some(group)) => Some(self.groups[group].enabled()),
            (Register::InterruptStatus, Some(group)) => Some(self.groups[group].conditions()),
            (Register::PresenceChanges, _) => Some(self.site.lives.changes()),
            (Register::Presence(node), _) => self.site.lives.shown(node),
            (Register::Control(number), _) => self.control(ports, number),
            _ => None,
        };
        word.map(|word| word.answer_read(data)).is_some()
    }

    /// Handles a trapped or posted write. A register that does not exist, or that the client may
    /// not write, ignores it.
    #[inline]
    pub(crate) fn write_register(
        &mut self,
        context: &mut Context<'_>,
        from: AttachmentId,
        offset: u64,
        data: &[u8],
    ) {
        let Some(register) = Register::decode(offset, data.len()) else { return };
        if let (Register::Injection(fifo), Some(group)) = (register, group_of(from)) {
            let group = &mut self.groups[group];
            let errors = group.all_errors();
            group.write_port(fifo, offset, data);
            if group.all_errors() != errors {
                let rule = &"writes to a FIFO's port find room, and are quads or their halves in order";
                context.warn(from, Warning::refused(rule).register(register_at(offset)).written(data));
            }
            return;
        }

        let Some(value) = u32::from_write(data) else { return };
        match (register, group_of(from)) {
            (Register::Tail(fifo), Some(group)) => {
                let is_possible = self.groups[group].set_tail(fifo, value);
                if !is_possible {
                    let rule = &"a tail moves forward, and no further than its FIFO has room";
                    context.warn(from, Warning::refused(rule).register(register_at(offset)).written(data));
                }
            }
            (Register::HeadsMoved, Some(group)) => self.groups[group].poll_heads(),
            (Register::InterruptEnable, Some(group)) => {
                let due = self.groups[group].enable(value);
                self.raise(context, from, due);
            }
            (Register::Control(number), None) if from.0 == KERNEL => {
                self.set_control(&context.ports(), number, value);
            }
            _ => {}
        }
    }

    /// Returns the value of a device control register, or `None` if it does not exist.
    fn control(&self, ports: &Ports<'_>, number: u32) -> Option<u32> {
        let port_of =
            |first: u32| (first..first + u32::from(PORTS)).contains(&number).then(|| (number - first) as u8);
        if let Some(port) = port_of(dcr::STAT_SEND_TOK) {
            let credits = |vc| ports.credits(port, vc).min(0xff) as u8;
            return Some(u32::from_be_bytes([0, 1, 2, 3].map(credits)));
        }
        if let Some(port) = port_of(dcr::RE_SEND_RETRY) {
            return Some(retransmissions(ports, port).wrapping_sub(self.cleared.retries[usize::from(port)]));
        }
        if let Some(index) = number.checked_sub(dcr::STAT_CKSUM_INJ).filter(|&index| index < 8) {
            let (group, fifo) = checksum_fifo(index);
            return Some(self.groups[group].injection[fifo].checksum());
        }

        Some(match number {
            dcr::CTRL_NODES => Site::pack(self.site.last()),
            dcr::CTRL_COORDS_NODE => Site::pack(self.site.place),
            dcr::CTRL_COORDS_PLUS => Site::pack(self.site.neighbours(false)),
            dcr::CTRL_COORDS_MINUS => Site::pack(self.site.neighbours(true)),
            dcr::CTRL_HINT_PLUS => self.hint_cutoffs[0],
            dcr::CTRL_HINT_MINUS => self.hint_cutoffs[1],
            dcr::CTRL_WM_G0 => self.groups[0].watermarks,
            dcr::CTRL_WM_G1 => self.groups[1].watermarks,
            dcr::RE_BADHDR_FULLFIFO => (self.client_errors() - self.cleared.of_clients) as u32,
            _ => return None,
        })
    }

    /// Handles a write of a device control register.
    fn set_control(&mut self, ports: &Ports<'_>, number: u32, value: u32) {
        match number {
            dcr::CTRL_HINT_PLUS => self.hint_cutoffs[0] = value,
            dcr::CTRL_HINT_MINUS => self.hint_cutoffs[1] = value,
            dcr::CTRL_WM_G0 => self.groups[0].watermarks = value,
            dcr::CTRL_WM_G1 => self.groups[1].watermarks = value,
            dcr::RE_BADHDR_FULLFIFO => self.cleared.of_clients = self.client_errors(),
            _ => {
                let port = number.checked_sub(dcr::RE_SEND_RETRY).filter(|&port| port < PORTS.into());
                if let Some(port) = port {
                    self.cleared.retries[port as usize] = retransmissions(ports, port as u8);
                }
            }
        }
    }
}

/// Returns the number of packets that the sender at a port has repeated, modulo 2^32.
pub(crate) fn retransmissions(ports: &Ports<'_>, port: u8) -> u32 {
    (0..CHANNELS).map(|vc| ports.sent(port, vc).retransmissions).sum::<u64>() as u32
}

/// Returns the group and the FIFO of a checksum register, counted from the first.
fn checksum_fifo(index: u32) -> (usize, usize) {
    let index = index as usize;
    match index.checked_sub(GROUPS * PRIORITY_INJECTION) {
        Some(group) => (group.min(GROUPS - 1), PRIORITY_INJECTION),
        None => (index / PRIORITY_INJECTION, index % PRIORITY_INJECTION),
    }
}

const _: () = assert!(RECEPTION_FIFOS == PRIORITY_RECEPTION + 1 && CHANNELS == 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_the_offsets_of_the_public_header() {
        let cases = [
            (0x0000, 16, Some(Register::Reception(0))),
            (0x1408, 8, Some(Register::Reception(5))),
            (0x1800, 16, None),
            (0x2000, 16, Some(Register::Reception(6))),
            (0x2400, 16, None),
            (0x3000, 16, Some(Register::Injection(0))),
            (0x5ff0, 16, Some(Register::Injection(2))),
            (0x6008, 8, Some(Register::Injection(3))),
            (0x7000, 16, Some(Register::Status)),
            (0x7018, 8, Some(Register::OtherStatus)),
            (0x7020, 16, None),
            (0x8004, 4, Some(Register::Control(1))),
            (0x8004, 8, None),
            (0x81fc, 4, Some(Register::Control(0x7f))),
            (0x8200, 4, None),
            (0x900c, 4, Some(Register::Tail(3))),
            (0x9010, 4, Some(Register::HeadsMoved)),
            (0x9012, 4, None),
            (0xc000, 4, Some(Register::Presence(0))),
            (0xfffc, 4, Some(Register::Presence(4095))),
            (0x1_0000, 4, None),
        ];

        for (offset, length, register) in cases {
            assert_eq!(Register::decode(offset, length), register, "{length} bytes at {offset:#x}");
        }
    }

    #[test]
    fn checksum_registers_are_in_the_order_of_the_public_header() {
        let fifos: Vec<_> = (0..8).map(checksum_fifo).collect();
        assert_eq!(fifos, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]);
    }
}

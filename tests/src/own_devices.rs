//! Devices as a user's own crate has them: a station, a hub that no client reaches, and a family
//! that puts stations around a hub. The program `own-devices` serves them.
//!
//! ```toml
//! name = "own"
//!
//! [[star]]                  # stations around a hub: hub0, star0-0, star0-1, ...
//! stations = 3              # 1 to 60
//!
//! [[function]]
//! name = "nic0"
//! kind = "station"
//! seed = 7                  # what its register SEED has, 1 to 1000
//! ```

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Progress, Reset, Write},
    fabric::{Packet, Ports},
    ids::{Address, AttachmentId},
    spec::{AttachmentSpec, FunctionSpec, Identity, NicSizes},
};
use nicforge_family::{
    CounterColumn, DeviceKind, DeviceSource, Families, Family, LinkSection, LinkSpec, Plan, Role, Section,
    SectionError, Spanned, check_range,
};
use nicforge_kit::{RegisterValue, retry};
use serde::Deserialize;

/// Sends the value that is written to all that the station's link reaches.
pub const SEND: u64 = 0x00;
/// Number of values that were received.
pub const RECEIVED: u64 = 0x08;
/// The last value that was received.
pub const LAST: u64 = 0x10;
/// The seed of the machine file.
pub const SEED: u64 = 0x18;

/// The role of a station.
pub const STATION: Role = Role::new("station", "a station of a star");
/// The role of a hub.
pub const HUB: Role = Role::new("hub", "the hub of a star");

/// Bytes of a packet.
const PACKET: usize = 8;

/// A card with one link, which sends and receives words.
pub struct Station {
    seed: u64,
    sent: u64,
    received: u64,
    last: u64,
}

impl Station {
    /// Returns a station in the state of power-on.
    pub fn new(seed: u64) -> Self {
        Self { seed, sent: 0, received: 0, last: 0 }
    }
}

fn identity(device: u16) -> Identity {
    Identity {
        vendor: 0x1efc,
        device,
        subsystem_vendor: 0x1efc,
        subsystem: device,
        class: 0xff_00_00,
        revision: 1,
    }
}

impl Device for Station {
    fn spec(&self) -> FunctionSpec {
        let user = AttachmentSpec { name: "user0".into(), group: 0 };
        FunctionSpec::nic(
            identity(0x5701),
            vec![user],
            NicSizes { register_bytes: 4096, vectors: 1, ring_cells: 64, ..NicSizes::default() },
        )
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, at: Address, data: &mut [u8]) {
        let value = match at.offset {
            RECEIVED => self.received,
            LAST => self.last,
            SEED => self.seed,
            _ => return,
        };
        value.answer_read(data);
    }

    fn write(&mut self, context: &mut Context<'_>, _: AttachmentId, at: Address, data: &[u8]) -> Write {
        let Some(value) = u64::from_write(data).filter(|_| at.offset == SEND) else { return Write::Accepted };

        let mut ports = context.ports();
        if !ports.ready(0, 0) {
            return Write::Stalled;
        }
        let Ok(mut packet) = ports.new_packet(PACKET) else {
            retry::when_starved(context);
            return Write::Stalled;
        };
        packet.bytes_mut().copy_from_slice(&value.to_le_bytes());

        match ports.send(0, 0, packet) {
            Ok(()) => {
                self.sent += 1;
                Write::Accepted
            }
            Err(unsent) => {
                ports.recycle(unsent.packet);
                Write::Stalled
            }
        }
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {
        (self.received, self.last) = (0, 0);
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let mut ports = context.ports();
        for _ in 0..budget {
            let Some(packet) = ports.take(0, 0) else { return Progress::Idle };
            self.last = u64::from_le_bytes(packet.bytes().try_into().unwrap_or_default());
            self.received += 1;
            ports.recycle(packet);
        }
        Progress::Busy
    }

    fn counters(&self) -> Vec<Counter> {
        vec![
            Counter { name: "station_sent", value: self.sent },
            Counter { name: "received", value: self.received },
        ]
    }
}

/// A hub, which is no PCI function: it repeats each packet on all its other ports.
#[derive(Default)]
pub struct Hub {
    repeated: u64,
    lost: u64,
}

impl Hub {
    /// Repeats a packet that arrived at one port. A copy that can't be made or sent is lost.
    fn repeat(&mut self, ports: &mut Ports<'_>, from: u8, packet: Packet) {
        for to in 0..ports.count() {
            if to == from || !ports.connected(to) {
                continue;
            }

            let Ok(copy) = ports.copy_packet(&packet) else {
                self.lost += 1;
                continue;
            };
            if let Err(unsent) = ports.send(to, 0, copy) {
                ports.recycle(unsent.packet);
                self.lost += 1;
            }
        }

        ports.recycle(packet);
        self.repeated += 1;
    }
}

impl Device for Hub {
    fn spec(&self) -> FunctionSpec {
        FunctionSpec::hub(identity(0x5702))
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {
        self.lost = 0;
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let mut ports = context.ports();
        let mut remaining = budget;
        for from in 0..ports.count() {
            while let Some(packet) = ports.take(from, 0) {
                self.repeat(&mut ports, from, packet);
                remaining = remaining.saturating_sub(1);
                if remaining == 0 {
                    return Progress::Busy;
                }
            }
        }
        Progress::Idle
    }

    fn counters(&self) -> Vec<Counter> {
        vec![Counter { name: "repeated", value: self.repeated }, Counter { name: "lost", value: self.lost }]
    }
}

// ANCHOR: family
/// The family of stars.
pub struct Stars;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Star {
    stations: Spanned<u8>,
    #[serde(default)]
    link: LinkSection,
}

impl Family for Stars {
    fn table(&self) -> &'static str {
        "star"
    }

    fn roles(&self) -> &'static [Role] {
        &[STATION, HUB]
    }

    fn columns(&self) -> &'static [CounterColumn] {
        const COLUMNS: &[CounterColumn] = &[
            CounterColumn::packets("sent", &["station_sent"]),
            CounterColumn::new("repeated", &["repeated"]),
        ];
        COLUMNS
    }

    fn plan(&self, sections: Vec<Section<'_>>, plan: &mut Plan) -> Result<(), SectionError> {
        for (number, section) in sections.iter().enumerate() {
            let Star { stations, link } = section.parse()?;
            let stations = check_range("stations", &stations, 1, 60)?;
            let link = link.with_defaults(LinkSpec::new(1, 4, PACKET))?;

            let hub = plan.single(&format!("hub{number}"), HUB, DeviceSource::new(Hub::default))?;
            for station in 0..stations {
                let node = plan.node(&format!("star{number}-{station}"), STATION)?;
                plan.environment(node, "STAR", &number.to_string())?;
                let source = DeviceSource::new(move || Station::new(station.into()));
                let card = plan.function(node, "card", source)?;
                plan.link((card, 0), (hub, station), link.clone())?;
            }
        }
        Ok(())
    }
}
// ANCHOR_END: family

// ANCHOR: kind
/// Returns the kind of a single station.
pub fn station() -> DeviceKind {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Parameters {
        seed: Spanned<u64>,
    }

    const COLUMNS: &[CounterColumn] = &[CounterColumn::packets("sent", &["station_sent"])];
    DeviceKind::new("station", |section| {
        let Parameters { seed } = section.parse()?;
        let seed = check_range("seed", &seed, 1, 1000)?;
        Ok(DeviceSource::new(move || Station::new(seed)))
    })
    .with_columns(COLUMNS)
}

/// Returns the kind of a single hub.
pub fn hub() -> DeviceKind {
    DeviceKind::plain("hub", Hub::default).with_role(HUB)
}
// ANCHOR_END: kind

// ANCHOR: list
/// Returns all of these devices.
pub fn families() -> Families {
    Families::new().family(Stars).device(station()).device(hub())
}
// ANCHOR_END: list

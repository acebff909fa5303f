//! The family of the machine file's tables `[[ethernet]]`, and kinds of single devices.
//!
//! ```toml
//! [[ethernet]]              # network devices at one switch
//! stations = 4              # 2 to 64
//! mtu = 1500                # optional: bytes of the longest packet of IP, 68 to 9000
//! addresses = 1024          # optional: addresses that the switch can know
//! macs = []                 # optional: an address for each station, as in "52:54:00:00:00:01"
//! switch = true             # optional: false connects two stations directly
//!
//! [ethernet.link]           # of each link, per direction; all zero is "as fast as it goes"
//! delay_ns = 0
//! gbit_s = 0.0
//! credits = 256             # frames of buffer at the receiving end
//!
//! [[function]]              # a single device, for links of the file's own
//! name = "nic0"
//! kind = "virtio-net"
//! mac = "52:54:01:00:00:01"
//! mtu = 1500                # optional
//!
//! [[function]]
//! name = "hub0"
//! kind = "ethernet-switch"
//! addresses = 1024          # optional
//! ```
//!
//! The nodes are `en0`, `en1`, ... and `sw0`, `sw1`, ..., counted through all networks. A station
//! without an address of its own has `52:54:00:..` with its number.

use std::collections::BTreeSet;

use nicforge_core::fabric::MAX_PORTS;
use nicforge_family::{
    CounterColumn, DeviceKind, DeviceSource, Family, LinkSection, LinkSpec, Plan, Role, Section,
    SectionError, Spanned, check_range, range_or, refuse_value,
};
use serde::Deserialize;

use crate::{
    MacAddress, NicConfig, Switch, SwitchConfig, VirtioNet, max_frame,
    nic::{DEFAULT_MTU, MIN_MTU, PORT},
    switch::{DEFAULT_ADDRESSES, MAX_ADDRESSES},
};

/// The greatest number of stations of a network.
pub const MAX_STATIONS: u32 = MAX_PORTS as u32;
/// The largest MTU that a machine file can name, in bytes.
pub const MAX_MTU: u16 = 9000;
/// Frames of buffer at the receiving end of a link, unless the file says otherwise.
const CREDITS: u32 = 256;
/// Virtual channels of a link.
const CHANNELS: usize = 1;

/// The role of a network device.
pub const STATION: Role = Role::new("station", "a station of an Ethernet");
/// The role of a switch, which no program or guest runs on.
pub const SWITCH: Role = Role::new("switch", "the switch of an Ethernet");

/// Columns of `stat`. A switch shows what it forwarded as sent.
const COLUMNS: &[CounterColumn] = &[
    CounterColumn::packets("sent", &["sent", "forwarded", "copies"]),
    CounterColumn::packets("received", &["received"]),
    CounterColumn::new(
        "dropped",
        &["no_buffer", "no_driver", "short_buffer", "no_link", "bad_length", "full", "short", "too_long"],
    ),
    CounterColumn::new("errors", &["queue_errors", "bad_header", "no_packet"]),
];

/// The family of Ethernets. The module documentation describes their tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ethernets;

/// Stations at a switch, or two that are connected directly.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ethernet {
    /// Number of stations, 2 to [`MAX_STATIONS`].
    stations: Spanned<u32>,
    /// MTU in bytes, [`MIN_MTU`] to [`MAX_MTU`].
    #[serde(default)]
    mtu: Option<Spanned<u16>>,
    /// Addresses that the switch can know, 1 to [`MAX_ADDRESSES`].
    #[serde(default)]
    addresses: Option<Spanned<usize>>,
    /// Addresses of the stations: none, or one for each.
    #[serde(default)]
    macs: Option<Spanned<Vec<Spanned<String>>>>,
    /// Whether there is a switch.
    #[serde(default)]
    switch: Option<Spanned<bool>>,
    /// The links.
    #[serde(default)]
    link: LinkSection,
}

/// The values of a network after the checks.
struct NetworkValues {
    stations: Vec<NicConfig>,
    switch: Option<SwitchConfig>,
    link: LinkSpec,
}

/// The stations of the networks that have been checked so far.
#[derive(Default)]
struct KnownStations {
    /// Number of these stations.
    stations: u32,
    macs: BTreeSet<MacAddress>,
}

impl Family for Ethernets {
    fn table(&self) -> &'static str {
        "ethernet"
    }

    fn roles(&self) -> &'static [Role] {
        &[STATION, SWITCH]
    }

    fn columns(&self) -> &'static [CounterColumn] {
        COLUMNS
    }

    fn plan(&self, sections: Vec<Section<'_>>, plan: &mut Plan) -> Result<(), SectionError> {
        let mut known = KnownStations::default();
        let mut networks = Vec::with_capacity(sections.len());
        for section in &sections {
            networks.push(NetworkValues::from_section(section, &section.parse()?, &mut known)?);
        }

        let (mut stations, mut switches) = (0, 0);
        for (section, network) in sections.iter().zip(networks) {
            add_network(plan, section, network, &mut stations, &mut switches)?;
        }
        Ok(())
    }
}

impl NetworkValues {
    /// Returns the checked values of a network's section. Its stations are added to the known ones.
    fn from_section(
        section: &Section<'_>,
        network: &Ethernet,
        known: &mut KnownStations,
    ) -> Result<Self, SectionError> {
        let count = check_range("stations", &network.stations, 2, MAX_STATIONS)?;
        let mtu = mtu_or_default(network.mtu.as_ref())?;
        let addresses = addresses_or_default(network.addresses.as_ref())?;

        let has_switch = network.switch.as_ref().is_none_or(|switch| *switch.get_ref());
        if let Some(switch) = network.switch.as_ref().filter(|_| !has_switch && count != 2) {
            return Err(refuse_value("switch", switch, "true, unless there are 2 stations"));
        }

        let mut stations = Vec::with_capacity(count as usize);
        for mac in macs(section, network, count, known)? {
            stations.push(NicConfig { mtu, ..NicConfig::new(mac) });
        }

        Ok(Self {
            stations,
            switch: has_switch.then_some(SwitchConfig { addresses, ..SwitchConfig::default() }),
            link: network.link.with_defaults(LinkSpec::new(CHANNELS, CREDITS, max_frame(mtu)))?,
        })
    }
}

/// Returns the MTU that a file gives, or the usual one.
fn mtu_or_default(mtu: Option<&Spanned<u16>>) -> Result<u16, SectionError> {
    range_or("mtu", mtu, (MIN_MTU, MAX_MTU), DEFAULT_MTU)
}

/// Returns the number of addresses that a file gives, or the usual one.
fn addresses_or_default(addresses: Option<&Spanned<usize>>) -> Result<usize, SectionError> {
    range_or("addresses", addresses, (1, MAX_ADDRESSES), DEFAULT_ADDRESSES)
}

/// Returns the address that a file gives.
fn parse_mac(description: &str, text: &Spanned<String>) -> Result<MacAddress, SectionError> {
    let address = text.get_ref().parse().ok().filter(|mac: &MacAddress| mac.is_valid_source());
    address
        .ok_or_else(|| refuse_value(description, text, "an address of one station, as in 52:54:01:00:00:01"))
}

/// Returns the addresses of a network's stations, which differ from all others of the file.
fn macs(
    section: &Section<'_>,
    network: &Ethernet,
    count: u32,
    known: &mut KnownStations,
) -> Result<Vec<MacAddress>, SectionError> {
    // The stations are counted through all networks.
    let numbers = known.stations..known.stations + count;
    known.stations = numbers.end;

    let macs = match &network.macs {
        Some(listed) if !listed.get_ref().is_empty() => {
            let found = listed.get_ref().len();
            if found != count as usize {
                let expected = format!("{count}, one for each station, or none");
                return Err(SectionError::value(listed.span(), "the number of macs", found, expected));
            }
            listed.get_ref().iter().map(|text| parse_mac("macs", text)).collect::<Result<_, _>>()?
        }
        _ => numbers.map(MacAddress::derived).collect::<Vec<_>>(),
    };

    if let Some(duplicate) = macs.iter().find(|mac| !known.macs.insert(**mac)) {
        let span = network.macs.as_ref().map_or_else(|| section.span(), Spanned::span);
        return Err(SectionError::value(span, "the address", duplicate, "addresses that all differ"));
    }
    Ok(macs)
}

/// Adds the nodes of a network, and the links between them. `stations` and `switches` count the
/// nodes of all networks, whose names have these numbers.
fn add_network(
    plan: &mut Plan,
    section: &Section<'_>,
    network: NetworkValues,
    stations: &mut u32,
    switches: &mut u32,
) -> Result<(), SectionError> {
    let mut ends = Vec::with_capacity(network.stations.len());
    for config in network.stations {
        let name = numbered("en", stations);
        let function = plan.single(&name, STATION, nic(config)).map_err(|error| section.refuse(error))?;
        ends.push((function, PORT));
    }

    let pairs: Vec<_> = match network.switch {
        None => vec![(ends[0], ends[1])],
        Some(config) => {
            let name = numbered("sw", switches);
            let switch = plan.single(&name, SWITCH, switch(config)).map_err(|error| section.refuse(error))?;
            ends.into_iter().zip((0..).map(|port| (switch, port))).collect()
        }
    };
    for (a, b) in pairs {
        plan.link(a, b, network.link.clone()).map_err(|error| section.refuse(error))?;
    }
    Ok(())
}

/// Returns the next name of a series, and counts it.
fn numbered(series: &str, count: &mut u32) -> String {
    let name = format!("{series}{count}");
    *count += 1;
    name
}

/// Returns the source of a network device.
fn nic(config: NicConfig) -> DeviceSource {
    DeviceSource::fallible(move || VirtioNet::new(config))
}

/// Returns the source of a switch.
fn switch(config: SwitchConfig) -> DeviceSource {
    DeviceSource::fallible(move || Switch::new(config))
}

/// Returns the kinds of single devices.
pub fn kinds() -> [DeviceKind; 2] {
    /// The parameters of a network device.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nic {
        mac: Spanned<String>,
        #[serde(default)]
        mtu: Option<Spanned<u16>>,
    }

    /// The parameters of a switch.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Parameters {
        #[serde(default)]
        addresses: Option<Spanned<usize>>,
    }

    let nics = DeviceKind::new("virtio-net", |section| {
        let Nic { mac, mtu } = section.parse()?;
        let (mac, mtu) = (parse_mac("mac", &mac)?, mtu_or_default(mtu.as_ref())?);
        Ok(nic(NicConfig { mtu, ..NicConfig::new(mac) }))
    });
    let switches = DeviceKind::new("ethernet-switch", |section| {
        let Parameters { addresses } = section.parse()?;
        let addresses = addresses_or_default(addresses.as_ref())?;
        Ok(switch(SwitchConfig { addresses, ..SwitchConfig::default() }))
    });

    [nics.with_columns(COLUMNS), switches.with_role(SWITCH).with_columns(COLUMNS)]
}

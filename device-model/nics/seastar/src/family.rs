//! The family of the machine file's tables `[[seastar]]`.
//!
//! ```toml
//! [[seastar]]               # SeaStars on one network
//! torus = [2, 2, 2]         # the number of nodes in each of up to three dimensions
//! wrap = [true, true, true] # whether each dimension is closed to rings; Red Storm's is z alone
//! processes = 2             # processes of a node, 1 to 15
//! firmware_mhz = 500        # clock of the embedded processor; 0: its work takes no time
//! ht_mbytes_s = 2400        # host interface, in each direction; 0: no limit
//! end_to_end_crc = true     # else: if the links have a bandwidth
//! mtu = 8192                # bytes of a packet over links without a bandwidth, 64 to 65536
//! implicit_acks = false     # messages of one packet need no acknowledgement of flow control
//! flow_control = true       # false: no message is acknowledged or repeated, for measurements
//! node_timeout_ms = 10000   # how long a node may be silent before it is taken to be off
//! firmware_threads = 3      # nodes whose firmware has a thread; else: the processors that engine
//!                           # and a program a node leave over, in all networks together
//!
//! [seastar.link]
//! delay_ns = 30
//! gbit_s = 20.0
//! cut_through_bytes = 16
//! credits = 32              # packets of buffer at the receiving end of a virtual channel
//! ```
//!
//! The nodes are `ss0`, `ss1`, ..., counted through all networks.
//!
//! A served machine runs the firmware of its first nodes on threads, and steps that of the others.
//! A thread for each node would take the processors from the engine and from programs.
//!
//! [`Networks::default`] has the firmware that comes with nicforge, and [`Networks::new`] takes
//! another one.

use nicforge_core::ids::AttachmentId;
use nicforge_family::{
    CounterColumn, DeviceSource, Family, LinkSection, Plan, Role, Section, SectionError, Spanned, list_of,
    range_or, refuse_value,
};
use nicforge_hwi::seastar::{KERNEL, MAX_PROCESSES, PACKET};
use nicforge_kit::Clock;
use nicforge_seastar_firmware::{
    chip::Program,
    firmware::{Firmware, Settings},
};
use serde::Deserialize;

use crate::{Network, Options, ProgramSite, SeaStar, config::MAX_MTU};

/// Maximum number of nodes of all networks of a machine file together.
const MAX_ALL_NODES: u32 = nicforge_hwi::seastar::MAX_NODES;
/// The highest frequency of the processor in MHz.
const MAX_CLOCK: u32 = 10_000;
/// The highest rate of the host interface in megabytes a second.
const MAX_HOST_RATE: u32 = 1_000_000;
/// The longest time-out of a node in milliseconds: an hour.
const MAX_TIMEOUT: u64 = 3_600_000;
/// The time-out unless the file says otherwise, in milliseconds.
const DEFAULT_TIMEOUT: u64 = 10_000;
/// Nanoseconds of a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// The role of a node with a SeaStar.
pub const NODE: Role = Role::new("seastar", "a node with a SeaStar");

/// The options of a node's firmware, as a machine file has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirmwareOptions {
    /// The node.
    pub site: ProgramSite,
    /// Messages of one packet need no acknowledgement of flow control.
    pub implicit_acks: bool,
    /// Messages are acknowledged and repeated. Firmware without it is for measurements.
    pub flow_control: bool,
    /// Nanoseconds after which a silent node is taken to be off.
    pub node_timeout: u64,
}

/// The family of SeaStar networks. The module documentation describes their tables.
#[derive(Clone, Copy, Debug)]
pub struct Networks<P> {
    /// Makes a node's firmware.
    make: fn(FirmwareOptions) -> P,
    /// Number of processors of the host, or `None` to ask the host.
    processors: Option<u32>,
}

impl<P: Program + Send + 'static> Networks<P> {
    /// Returns the family with a firmware: `make` makes it at each start of a node's processor.
    pub const fn new(make: fn(FirmwareOptions) -> P) -> Self {
        Self { make, processors: None }
    }

    /// Returns the family for a host with this number of processors. Without it, the host is asked.
    #[must_use]
    pub const fn with_processors(self, processors: u32) -> Self {
        Self { processors: Some(processors), ..self }
    }

    /// Returns the number of firmware threads that the networks share whose sections name none: one
    /// for each processor that is left over beside the engine and a program a node. A firmware
    /// thread that shares its processor with another waits for it at each message.
    fn threads(&self, nodes: u32) -> u32 {
        let of_host = || {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            u32::try_from(processors).unwrap_or(u32::MAX)
        };
        self.processors.unwrap_or_else(of_host).saturating_sub(1).saturating_sub(nodes)
    }
}

impl Default for Networks<Firmware> {
    /// Returns the family with the firmware that comes with nicforge.
    fn default() -> Self {
        Self::new(|options| {
            let FirmwareOptions { site, implicit_acks, flow_control, node_timeout } = options;
            Firmware::new(Settings {
                processes: site.processes,
                implicit_acknowledgements: implicit_acks,
                flow_control,
                timeout: node_timeout,
            })
        })
    }
}

/// SeaStars on one network.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkSection {
    /// The number of nodes in each of up to three dimensions.
    torus: Spanned<Vec<u32>>,
    /// Whether each dimension is closed to rings. Those that are left out are.
    #[serde(default)]
    wrap: Option<Spanned<Vec<bool>>>,
    /// Number of processes of a node.
    #[serde(default)]
    processes: Option<Spanned<u16>>,
    /// The clock of the embedded processor in MHz.
    #[serde(default)]
    firmware_mhz: Option<Spanned<u32>>,
    /// Rate of the host interface in megabytes a second.
    #[serde(default)]
    ht_mbytes_s: Option<Spanned<u32>>,
    /// Whether long messages carry an end-to-end check.
    #[serde(default)]
    end_to_end_crc: Option<bool>,
    /// Bytes of a packet over links without a bandwidth.
    #[serde(default)]
    mtu: Option<Spanned<u32>>,
    /// Messages of one packet need no acknowledgement of flow control.
    #[serde(default)]
    implicit_acks: bool,
    /// Messages are acknowledged and repeated.
    #[serde(default = "yes")]
    flow_control: bool,
    /// How long a node may be silent, in milliseconds.
    #[serde(default)]
    node_timeout_ms: Option<Spanned<u64>>,
    /// Number of nodes whose firmware has a thread.
    #[serde(default)]
    firmware_threads: Option<Spanned<u32>>,
    /// The network's links.
    #[serde(default)]
    link: LinkSection,
}

/// Returns the default of options that are on unless the file says otherwise.
const fn yes() -> bool {
    true
}

impl NetworkSection {
    /// Returns the options that the file gives. `threads` is the number of nodes whose firmware has
    /// a thread if the file does not set it.
    fn options(&self, threads: u32) -> Result<Options, SectionError> {
        let default = Options::default();
        let processes = self.processes.as_ref();
        let mhz = range_or("firmware_mhz", self.firmware_mhz.as_ref(), (0, MAX_CLOCK), 0)?;
        let firmware_threads = self.firmware_threads.as_ref();
        let mtu = range_or("mtu", self.mtu.as_ref(), (PACKET as u32, MAX_MTU as u32), default.mtu as u32)?;

        Ok(Options {
            processes: range_or("processes", processes, (1, MAX_PROCESSES), default.processes)?,
            clock: Clock::of_mhz(mhz),
            host_rate: range_or("ht_mbytes_s", self.ht_mbytes_s.as_ref(), (0, MAX_HOST_RATE), 0)?,
            end_to_end_crc: self.end_to_end_crc,
            mtu: mtu as usize,
            firmware_threads: range_or("firmware_threads", firmware_threads, (0, MAX_ALL_NODES), threads)?,
            link: self.link.with_defaults(default.link)?,
        })
    }

    /// Returns the number of nodes, whether the torus is possible or not.
    fn nodes(&self) -> u32 {
        self.torus.get_ref().iter().fold(1, |nodes: u32, length| nodes.saturating_mul(*length))
    }

    /// Returns the network that the section describes. `threads` is as in [`Self::options`].
    fn network(&self, section: &Section<'_>, threads: u32) -> Result<Network, SectionError> {
        let lengths = self.torus.get_ref();
        let wraps = list_of("wrap", self.wrap.as_ref(), lengths.len())?;

        Network::torus(lengths, wraps, self.options(threads)?).map_err(|error| {
            SectionError::value(section.span(), "the network", "impossible", error.to_string())
        })
    }

    /// Returns the time-out of nodes in nanoseconds.
    fn node_timeout(&self) -> Result<u64, SectionError> {
        let milliseconds =
            range_or("node_timeout_ms", self.node_timeout_ms.as_ref(), (1, MAX_TIMEOUT), DEFAULT_TIMEOUT)?;
        Ok(milliseconds * MILLISECOND)
    }
}

impl<P: Program + Send + 'static> Family for Networks<P> {
    fn table(&self) -> &'static str {
        "seastar"
    }

    fn roles(&self) -> &'static [Role] {
        &[NODE]
    }

    fn columns(&self) -> &'static [CounterColumn] {
        const COLUMNS: &[CounterColumn] = &[
            CounterColumn::packets("sent", &["packets_sent"]),
            CounterColumn::packets("received", &["packets_received"]),
            CounterColumn::new("forwarded", &["forwarded"]),
            CounterColumn::new("dropped", &["dropped"]),
            CounterColumn::new("repeated", &["firmware_repetitions"]),
            CounterColumn::new("streams", &["streams"]),
            CounterColumn::new("halts", &["firmware_halts"]),
        ];
        COLUMNS
    }

    fn plan(&self, sections: Vec<Section<'_>>, plan: &mut Plan) -> Result<(), SectionError> {
        let parsed = sections.iter().map(|section| section.parse::<NetworkSection>());
        let parsed = parsed.collect::<Result<Vec<_>, _>>()?;
        let all_nodes = parsed.iter().map(NetworkSection::nodes).fold(0, u32::saturating_add);

        let (mut nodes, mut threads) = (0, self.threads(all_nodes));
        for (section, parsed) in sections.iter().zip(&parsed) {
            let network = parsed.network(section, threads)?;
            // The networks that set no number of threads share those of the host.
            if parsed.firmware_threads.is_none() {
                threads = threads.saturating_sub(network.nodes());
            }

            if network.nodes() > MAX_ALL_NODES - nodes {
                let expected = format!("at most {MAX_ALL_NODES} nodes in all networks together");
                return Err(refuse_value("torus", &text_of(&parsed.torus), expected));
            }

            self.add_network(plan, section, &network, parsed, nodes)?;
            nodes += network.nodes();
        }
        Ok(())
    }
}

/// Returns the lengths of a torus as text for an error.
fn text_of(torus: &Spanned<Vec<u32>>) -> Spanned<String> {
    Spanned::new(torus.span(), format!("{:?}", torus.get_ref()))
}

impl<P: Program + Send + 'static> Networks<P> {
    /// Adds the nodes and links of one network to the plan. The nodes are named `ss` and a number,
    /// from `first` on.
    fn add_network(
        &self,
        plan: &mut Plan,
        section: &Section<'_>,
        network: &Network,
        parsed: &NetworkSection,
        first: u32,
    ) -> Result<(), SectionError> {
        let NetworkSection { implicit_acks, flow_control, .. } = *parsed;
        let (make, node_timeout) = (self.make, parsed.node_timeout()?);
        let mut functions = Vec::with_capacity(network.nodes() as usize);

        for node in 0..network.nodes() {
            let network = network.clone();
            let program =
                move |site| make(FirmwareOptions { site, implicit_acks, flow_control, node_timeout });
            let max_packet = network.options().link.max_packet;
            let source = DeviceSource::fallible(move || SeaStar::new(&network, node, program))
                .with_admin(AttachmentId(KERNEL))
                .with_max_packet(max_packet);
            let name = format!("ss{}", first + node);
            functions.push(plan.single(&name, NODE, source).map_err(|error| section.refuse(error))?);
        }

        for cable in network.cables() {
            let ends = [cable.a, cable.b].map(|end| (functions[end.node as usize], end.port));
            let link = network.options().link.clone();
            plan.link(ends[0], ends[1], link).map_err(|error| section.refuse(error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use nicforge_core::companion::CompanionMode;
    use nicforge_seastar_firmware::chip::{Chip, Event, Halted, Polled};
    use nicforge_test_kit::{Client, Testbed};
    use toml::de::DeTable;

    use super::*;

    struct Nothing;

    impl Program for Nothing {
        fn poll<C: Chip>(&mut self, _: &mut C, _: Option<&Event>) -> Result<Polled, Halted> {
            Ok(Polled::Idle)
        }
    }

    /// Returns the plan of a machine with this section, or the error's message.
    fn plan(lines: &str) -> Result<Plan, String> {
        plan_for(2, &[lines])
    }

    /// Returns the plan of a machine with these sections, on a host with this number of processors.
    fn plan_for(processors: u32, sections: &[&str]) -> Result<Plan, String> {
        let sections = sections.iter().map(|lines| Section::new(DeTable::parse(lines).unwrap())).collect();
        let mut plan = Plan::new("test").unwrap();
        let family = Networks::new(|_| Nothing).with_processors(processors);
        family.plan(sections, &mut plan).map_err(|error| error.to_string())?;
        Ok(plan)
    }

    /// Returns the number of firmware threads of each node of a plan's machine, if the machine has
    /// threads.
    fn threads(plan: &Plan) -> Vec<u32> {
        let mut bed = Testbed::new();
        bed.set_companions(CompanionMode::Threads, Waker::noop().clone());
        let functions: Vec<_> = plan
            .functions()
            .iter()
            .map(|function| {
                let name = plan.full_name(function);
                bed.add_function(&name, function.source.make().unwrap()).unwrap()
            })
            .collect();

        // A node begins to work when it has a client.
        for &function in &functions {
            Client::attach(&mut bed, function, AttachmentId(KERNEL));
        }
        bed.rescan();
        bed.run_until(|bed| functions.iter().all(|function| !bed.companions(*function).is_empty()));
        let count = |function| {
            let companions = bed.companions(function);
            assert_eq!(companions.len(), 1);
            u32::from(companions[0].mode == CompanionMode::Threads)
        };
        functions.into_iter().map(count).collect()
    }

    #[test]
    fn firmware_has_a_thread_for_each_processor_beside_engine_and_programs() {
        for (processors, expected) in
            [(1, [0, 0, 0, 0]), (5, [0, 0, 0, 0]), (6, [1, 0, 0, 0]), (8, [1, 1, 1, 0]), (64, [1; 4])]
        {
            assert_eq!(threads(&plan_for(processors, &["torus = [4]"]).unwrap()), expected, "{processors}");
        }
    }

    #[test]
    fn networks_share_the_threads_unless_the_file_gives_a_number() {
        let all = |processors, sections: &[&str]| threads(&plan_for(processors, sections).unwrap());

        assert_eq!(all(8, &["torus = [2]", "torus = [2]"]), [1, 1, 1, 0]);
        assert_eq!(all(1, &["torus = [2]\nfirmware_threads = 2", "torus = [2]"]), [1, 1, 0, 0]);
        assert_eq!(all(7, &["torus = [2]\nfirmware_threads = 0", "torus = [2]"]), [0, 0, 1, 1]);
        assert_eq!(all(2, &["torus = [2]\nfirmware_threads = 9"]), [1, 1]);
    }

    #[test]
    fn torus_has_nodes_and_links() {
        let plan = plan("torus = [3, 4]\n").unwrap();

        assert_eq!((plan.nodes().len(), plan.links().len()), (12, 24));
        assert!(plan.find_node("ss11").is_some() && plan.find_node("ss12").is_none());
        assert_eq!(plan.links()[0].link.max_packet, crate::config::DEFAULT_MTU);
        for function in plan.functions() {
            assert!(function.source.make().is_ok());
        }
    }

    #[test]
    fn open_dimension_has_fewer_links_and_links_with_a_bandwidth_have_packets_of_64_bytes() {
        let plan = plan("torus = [4, 4, 4]\nwrap = [false, false, true]\n[link]\ngbit_s = 20.0\n").unwrap();

        assert_eq!(plan.links().len(), 48 + 48 + 64);
        assert_eq!(plan.links()[0].link.max_packet, PACKET);
    }

    #[test]
    fn machine_files_that_come_with_nicforge_have_eight_nodes() {
        for text in [
            include_str!("../../../../machines/seastar.toml"),
            include_str!("../../../../machines/seastar-timed.toml"),
        ] {
            let mut file = Section::new(DeTable::parse(text).unwrap());
            let sections = file.take_sections("seastar").unwrap();
            let mut plan = Plan::new("test").unwrap();
            Networks::default().plan(sections, &mut plan).unwrap();

            assert_eq!((plan.nodes().len(), plan.links().len()), (8, 12));
            assert!(plan.functions().iter().all(|function| function.source.make().is_ok()));
        }
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (lines, expected) in [
            ("torus = []", "0 dimensions"),
            ("torus = [2, 2, 2, 2]", "4 dimensions"),
            ("torus = [20000]", "1 to 16000"),
            ("torus = [2]\nwrap = [true, true]", "1 values"),
            ("torus = [2]\nprocesses = 16", "1 to 15"),
            ("torus = [2]\nfirmware_mhz = 20000", "0 to 10000"),
            ("torus = [2]\nmtu = 63", "64 to 65536"),
            ("torus = [2]\nnode_timeout_ms = 0", "1 to 3600000"),
            ("torus = [2]\nht_mbytes_s = 2000000", "0 to 1000000"),
            ("torus = [2]\nfirmware_threads = 16001", "0 to 16000"),
            ("torus = [2]\nspeed = 1", "unknown field"),
        ] {
            let Err(message) = plan(lines) else { panic!("{lines} is taken") };
            assert!(message.contains(expected), "{message}");
        }
    }
}

//! The guests of the benchmark.

use std::path::{Path, PathBuf};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_guest::{Accelerator, Driver, Function, Guest, GuestConfig, Progress, Toolkit};
use serde_json::{Value, json};

use super::{
    machine::Machine,
    worker::{PROGRAM, TIMEOUT},
};

/// QEMU's trace events for an access to a device's registers or configuration on behalf of its
/// guest.
const EXITS: [&str; 4] =
    ["vfio_region_read", "vfio_region_write", "vfio_pci_read_config", "vfio_pci_write_config"];

/// A network between the guests alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    /// QEMU's own, between its virtio network devices.
    Qemu,
    /// The served machine's, between its virtio network devices.
    Served,
}

impl Network {
    /// Returns the address of guest `number`, 1 or 2.
    pub(super) fn address(self, number: u8) -> String {
        match self {
            Self::Qemu => format!("10.77.0.{number}"),
            Self::Served => format!("10.78.0.{number}"),
        }
    }
}

/// A guest's role in the benchmark.
pub(super) struct Role<'a> {
    pub(super) name: &'static str,
    /// 1 or 2: the last part of the guest's address on the network.
    pub(super) number: u8,
    /// The functions of the guest's programs, in the order of its devices.
    pub(super) functions: &'a [(&'a Machine, &'a str)],
    /// The network device that the guest's kernel drives.
    pub(super) network: (&'a Machine, &'a str),
}

/// A booted guest.
pub(super) struct BenchGuest {
    pub(super) guest: Guest,
    /// The name of the network device of its kernel, whose exits are not counted: the kernel
    /// refreshes its table of neighbours at any time.
    network: String,
    /// The file of QEMU's trace.
    trace: PathBuf,
}

impl BenchGuest {
    /// Boots a guest. `folder` is for the guests' sockets and logs.
    pub(super) fn boot(
        toolkit: &Toolkit,
        progress: &Progress,
        role: &Role<'_>,
        accelerator: Accelerator,
        driver: Driver,
        folder: &Path,
    ) -> Result<Self, Failure> {
        let Role { name, number, functions, network: (network_machine, network_function) } = *role;
        let context = || format!("the guest {name}");
        let this_program = std::env::current_exe().context(|| "this program's own file".into())?;
        let socket_of_guest = |number| folder.join(format!("network{number}")).display().to_string();
        // The guests are numbers 1 and 2.
        let (own_socket, peer_socket) = (socket_of_guest(number), socket_of_guest(3 - number));
        let mut config = GuestConfig::new(name)
            .driver(driver)
            .iommu(driver == Driver::Vfio)
            .accelerator(accelerator)
            .boot_deadline(TIMEOUT)
            .program_as(this_program, PROGRAM)
            .logs(folder)
            .terminal(true)
            .module("virtio_pci")
            .module("virtio_net")
            .network(format!(
                "dgram,id=network,local.type=unix,local.path={own_socket},remote.type=unix,remote.path={peer_socket}"
            ))
            .device(format!("virtio-net-pci,netdev=network,mac=52:54:00:00:00:{number:02x}"));

        for event in EXITS {
            config = config.trace(event);
        }
        for (index, (machine, function)) in functions.iter().enumerate() {
            config = config.user_function(format!("f{index}.{function}"), machine.socket(function));
        }

        let (network, socket) = (network_function.to_owned(), network_machine.socket(network_function));
        config = config.function(Function { name: network.clone(), socket, hotplug: false, user: false });

        let guest = Guest::boot(toolkit, &config, progress).context(context)?;
        if let Some(problem) = guest.problems().first() {
            return Err(Failure::environment(format!("the guest {name}: {problem}")));
        }

        let done = guest.run(set_up_script(number).as_str(), TIMEOUT).context(context)?;
        if done.status != 0 {
            return Err(Failure::environment(format!("the guest {name}: its network: {}", done.stderr)));
        }

        let guest = Self { guest, network, trace: folder.join(format!("{name}.trace.log")) };
        guest.trace_exits(false)?;

        Ok(guest)
    }

    /// Turns the trace of exits on or off.
    pub(super) fn trace_exits(&self, is_on: bool) -> Result<(), Failure> {
        for event in EXITS {
            let state = json!({ "name": event, "enable": is_on });
            self.guest.execute("trace-event-set-state", state).context(|| "QEMU's trace".into())?;
        }
        Ok(())
    }

    /// Returns KVM's counts, if KVM runs the guest.
    pub(super) fn kvm_exits(&self) -> Result<Option<KvmExits>, Failure> {
        let arguments = json!({ "target": "vcpu", "providers": [{ "provider": "kvm" }] });
        let stats = self.guest.execute("query-stats", arguments).context(|| "KVM's counters".into())?;
        Ok(KvmExits::in_stats(&stats))
    }

    /// Returns the number of exits in the trace, without those for the kernel's network device.
    pub(super) fn count_exits(&self) -> Result<u64, Failure> {
        let trace = std::fs::read_to_string(&self.trace).context(|| self.trace.display().to_string())?;
        let counted =
            |line: &&str| EXITS.iter().any(|event| line.contains(event)) && !line.contains(&self.network);
        Ok(trace.lines().filter(counted).count() as u64)
    }
}

/// Returns the script that sets up both network interfaces of guest `number`. It tells them apart
/// by their Ethernet addresses: those of QEMU's devices begin with 52.
fn set_up_script(number: u8) -> String {
    let (qemu, served) = (Network::Qemu.address(number), Network::Served.address(number));
    format!(
        "set -e\n\
         test -e /sys/class/net/eth0 && test -e /sys/class/net/eth1\n\
         for interface in eth0 eth1; do\n\
         case $(cat /sys/class/net/$interface/address) in\n\
         52:*) address={qemu} ;;\n\
         *) address={served} ;;\n\
         esac\n\
         ip addr add $address/24 dev $interface\n\
         ip link set $interface up\n\
         done"
    )
}

/// Exits of a guest's processors, as KVM counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KvmExits {
    /// Exits of every kind, including timers and the host's interrupts.
    pub(super) all: u64,
    /// Exits for memory accesses that must be emulated.
    pub(super) mmio: u64,
}

impl KvmExits {
    /// Reads QEMU's answer to `query-stats`, and returns the sum over all processors. Returns
    /// `None` if KVM counts nothing.
    fn in_stats(stats: &Value) -> Option<Self> {
        let mut sum: Option<Self> = None;
        for processor in stats.as_array()? {
            let value = |name: &str| {
                let found = processor["stats"].as_array()?.iter().find(|stat| stat["name"] == name);
                found?["value"].as_u64()
            };
            if let (Some(all), Some(mmio)) = (value("exits"), value("mmio_exits")) {
                sum = Some(Self { all, mmio }.and(sum.unwrap_or_default()));
            }
        }

        sum
    }

    /// Returns the sum of both.
    pub(super) fn and(self, other: Self) -> Self {
        Self { all: self.all + other.all, mmio: self.mmio + other.mmio }
    }

    /// Returns the exits that came after `then`.
    pub(super) fn since(self, then: Self) -> Self {
        Self { all: self.all.saturating_sub(then.all), mmio: self.mmio.saturating_sub(then.mmio) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_counts_of_all_processors_are_summed() {
        let processor = |exits, mmio| {
            let stats = json!([
                { "name": "signal_exits", "value": 7 },
                { "name": "mmio_exits", "value": mmio },
                { "name": "halt_wait_hist", "value": [0, 1] },
                { "name": "exits", "value": exits },
            ]);
            json!({ "provider": "kvm", "stats": stats })
        };

        let sum = KvmExits::in_stats(&json!([processor(10, 1), processor(20, 2)]));
        assert_eq!(sum, Some(KvmExits { all: 30, mmio: 3 }));
    }

    #[test]
    fn an_emulated_guest_has_no_kvm_counts() {
        assert_eq!(KvmExits::in_stats(&json!([])), None);
        assert_eq!(KvmExits::in_stats(&json!([{ "provider": "tcg", "stats": [] }])), None);
    }
}

//! The registry of test bodies, and the doors that they run through. A *door* is a way to reach a
//! device: in the test's own process, over a socket, or from a guest.
//!
//! - In: the functions with the attribute [`body`](nicforge_test_body::body), which registers each
//!   where it is defined.
//! - Out: [`all`] bodies. The test program `bodies` runs them through the doors of the host, and
//!   the program `guest_bodies` through those of a guest.
//!
//! A body runs on each of its machines, through every door that neither the body nor the machine
//! excludes with a reason ([`Body::reason_not_to_run`]).

pub mod reasons;

use std::path::PathBuf;

use nicforge_core::machine::Machine;

use crate::{
    backing::{EventLoopKind, InProcess, Rig, Served},
    bgl_body::{self, OnTorus},
    extoll_body::Extoll,
    matching_body::InMemory,
    mu_body::{self, Units},
    own_vm,
};

/// All bodies, in the linker's order.
#[linkme::distributed_slice]
#[allow(unsafe_code, reason = "linkme reads the section that the attribute `body` fills")]
pub static BODIES: [Body];

/// Returns all bodies, by modules and lines.
pub fn all() -> Vec<&'static Body> {
    let mut all: Vec<_> = BODIES.iter().collect();
    all.sort_by_key(|body| (body.module, body.line));
    all
}

/// A way to reach a machine's attachments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// A program on the host reaches them.
    Host(HostDoor),
    /// A program in a guest reaches them.
    Guest(GuestDoor),
}

/// The ways in which a program on the host reaches a machine's attachments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostDoor {
    /// The machine is in the test's own process.
    InProcess,
    /// An engine serves the machine on sockets, with the event loop that it chooses itself.
    Served,
    /// An engine serves the machine on sockets, by epoll.
    ServedByEpoll,
}

impl HostDoor {
    /// All doors of the host.
    pub const ALL: [Self; 3] = [Self::InProcess, Self::Served, Self::ServedByEpoll];

    /// Returns the door's name, as in a test's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::InProcess => "in_process",
            Self::Served => "served",
            Self::ServedByEpoll => "served_by_epoll",
        }
    }

    /// Returns a rig that opens the attachments of `machine` in this way.
    pub fn rig(self, machine: Machine) -> Box<dyn Rig> {
        match self {
            Self::InProcess => Box::new(InProcess::new(machine)),
            Self::Served => Box::new(Served::new(machine, EventLoopKind::Auto)),
            Self::ServedByEpoll => Box::new(Served::new(machine, EventLoopKind::Epoll)),
        }
    }
}

/// The ways in which a program in a guest reaches the attachments that the guest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestDoor {
    /// Linux's VFIO, behind a virtual IOMMU.
    Vfio,
    /// The kernel shim, without an IOMMU.
    Shim,
    /// The kernel shim, behind a virtual IOMMU.
    ShimIommu,
    /// The kernel shim in a guest of our own virtual machine. The other ways are those of QEMU's
    /// guests.
    Own,
}

impl GuestDoor {
    /// All doors of guests.
    pub const ALL: [Self; 4] = [Self::Vfio, Self::Shim, Self::ShimIommu, Self::Own];

    /// Returns the door's name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vfio => "vfio",
            Self::Shim => "shim",
            Self::ShimIommu => "shim-iommu",
            Self::Own => "own",
        }
    }

    /// Returns the door of this name on a command line.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|door| door.name() == name)
    }
}

/// A machine that bodies run on. Each body on the host gets one of its own; the bodies in a guest
/// share one.
#[derive(Debug)]
pub struct TestMachine {
    /// Its name, with which the names of its tests begin.
    pub name: &'static str,
    /// Makes the machine.
    pub make: fn() -> Machine,
    /// The guests that run its bodies.
    pub guests: Guests,
}

/// The guests that run the bodies of a [`TestMachine`].
#[derive(Debug)]
pub enum Guests {
    /// One guest for each of these doors.
    Booted {
        /// The attachments that a guest gets: lists of functions, each with the attachments of
        /// every function of the list.
        attachments: &'static [(&'static [&'static str], &'static [&'static str])],
        /// The doors.
        doors: &'static [GuestDoor],
    },
    /// No guest, for this reason.
    None(&'static str),
}

impl TestMachine {
    /// Returns names and sockets of the attachments that a guest gets.
    pub fn sockets(&self, served: &Served) -> Vec<(String, PathBuf)> {
        let Guests::Booted { attachments, .. } = self.guests else { return Vec::new() };
        let all = attachments.iter().flat_map(|(functions, attachments)| {
            functions.iter().flat_map(|function| attachments.iter().map(move |name| (*function, *name)))
        });
        all.map(|(function, name)| (format!("{function}.{name}"), served.socket(function, name))).collect()
    }

    /// Returns why no body of this machine runs through a door.
    fn reason_not_to_run(&self, door: Door) -> Option<&'static str> {
        match (&self.guests, door) {
            (Guests::None(reason), Door::Guest(_)) => Some(reason),
            (Guests::Booted { doors, .. }, Door::Guest(door)) if !doors.contains(&door) => match door {
                GuestDoor::Own => Some(reasons::FEW_BODIES_NESTED),
                _ => Some(reasons::SHIM_ALONE_IS_ENOUGH),
            },
            _ => None,
        }
    }
}

/// A registered test body. The attribute [`body`](nicforge_test_body::body) makes it.
#[derive(Debug)]
pub struct Body {
    /// The path of its module.
    pub module: &'static str,
    /// The name of its function.
    pub function: &'static str,
    /// The line that it begins in.
    pub line: u32,
    /// The machines it runs on.
    pub machines: &'static [&'static TestMachine],
    /// Doors that it does not run through, with the reasons.
    pub not_through: &'static [(Door, &'static str)],
    /// The function.
    pub run: Run,
}

/// The function of a body.
#[derive(Debug)]
pub enum Run {
    /// A body that opens attachments.
    Rig(fn(&dyn Rig)),
    /// A body of the matching layer, on each network that there is.
    Network {
        /// Between ranks of one process, without a machine.
        in_memory: fn(&InMemory),
        /// Between ranks on the EXTOLL cards of a machine.
        on_cards: fn(&Extoll<'_>),
        /// Between ranks on the Message Units of a machine.
        on_units: fn(&Units<'_>),
        /// Between ranks on a torus of Blue Gene/L.
        on_torus: fn(&OnTorus<'_>),
    },
}

impl Body {
    /// Returns the body's topic: the name of its module without `_body`.
    pub fn topic(&self) -> &'static str {
        let module = self.module.rsplit("::").next().unwrap_or(self.module);
        module.strip_suffix("_body").unwrap_or(module)
    }

    /// Returns its name on a machine: those of the machine, the door, the topic and the function,
    /// as in `tree::served::port::a_pushed_packet_is_popped`. A name in a guest has no door. A
    /// topic with the machine's name is left out.
    pub fn name(&self, machine: &TestMachine, door: Option<HostDoor>) -> String {
        let topic = Some(self.topic()).filter(|topic| *topic != machine.name);
        let parts = [Some(machine.name), door.map(HostDoor::name), topic, Some(self.function)];
        parts.into_iter().flatten().collect::<Vec<_>>().join("::")
    }

    /// Returns why the body does not run on a machine through a door, or `None` if it does.
    pub fn reason_not_to_run(&self, machine: &TestMachine, door: Door) -> Option<&'static str> {
        if door == Door::Guest(GuestDoor::Own) && !own_vm::BODIES.contains(&self.function) {
            return Some(reasons::FEW_BODIES_NESTED);
        }

        let exclusion = self.not_through.iter().find(|(excluded, _)| *excluded == door);
        exclusion.map(|(_, reason)| *reason).or_else(|| machine.reason_not_to_run(door))
    }

    /// Runs the body on the machine of a name, with a rig of that machine.
    pub fn run(&self, machine: &str, rig: &dyn Rig) {
        match self.run {
            Run::Rig(body) => body(rig),
            Run::Network { on_units, .. } if machine == mu_body::MACHINE.name => on_units(&Units::new(rig)),
            Run::Network { on_torus, .. } if machine == bgl_body::TORUS.name => on_torus(&OnTorus::new(rig)),
            Run::Network { on_cards, .. } => on_cards(&Extoll::new(rig)),
        }
    }
}

//! The kernel's calls: allocation of FIFOs and base addresses, and the device control registers.

mod state;

use std::{
    fmt,
    sync::{Mutex, MutexGuard},
};

use nicforge_driver::{Device, runtime::lock};
use nicforge_hwi::{
    mu::{
        BAR_REGISTERS, DEVICE_CONTROL, INJECTION_FIFOS, KERNEL, RECEPTION_FIFOS, SUBGROUPS,
        SUBGROUPS_OF_GROUP, SYSTEM_GROUP,
    },
    mu_dcr::{
        self, MAX_SYS_ADDR_RANGE, MAX_USR_ADDR_RANGE, MIN_SYS_ADDR_RANGE, MIN_USR_ADDR_RANGE, SYS_RANGES,
        USR_RANGES,
    },
    mu_packet::LINES,
    nd_dcr::{self, class_type},
};

use self::state::{Allocated, FifoRegister, RangeRegisters, State, check_numbers};
use crate::{
    ClassRoute, CollectiveChannel, Error, NodePosition, Options, Resource, Subgroup,
    page::{Page, check_identity},
};

const REMOTE_GET: FifoRegister = FifoRegister { offset: mu_dcr::IMFIFO_RGET, fifos: INJECTION_FIFOS };
const INJECTION_THRESHOLD: FifoRegister =
    FifoRegister { offset: mu_dcr::IMFIFO_THOLD_INT_EN, fifos: INJECTION_FIFOS };
const RECEPTION: FifoRegister = FifoRegister { offset: mu_dcr::RMFIFO_EN, fifos: RECEPTION_FIFOS };
const RECEPTION_THRESHOLD: FifoRegister =
    FifoRegister { offset: mu_dcr::RMFIFO_THOLD_INT_EN, fifos: RECEPTION_FIFOS };
const PACKETS: FifoRegister = FifoRegister { offset: mu_dcr::RMFIFO_PACKET_INT_EN, fifos: RECEPTION_FIFOS };

/// Offset of the network's registers from [`DEVICE_CONTROL`].
const NETWORK_OFFSET: u64 = nd_dcr::BASE - DEVICE_CONTROL;
/// Range of addresses that the unit may read and write: whole MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// Lowest address. Its lowest 20 bits count as zeros.
    pub first: u64,
    /// Highest address. Its lowest 20 bits count as ones.
    pub last: u64,
    /// The unit may only read there.
    pub read_only: bool,
}

/// The program that holds the kernel's attachment of a node.
///
/// It allocates FIFOs, base addresses and class routes, so that several programs of a node agree,
/// and writes the device control registers. The unit itself lets each subgroup use its own FIFOs
/// without an allocation. Threads may share it.
pub struct Kernel {
    device: Device,
    position: NodePosition,
    /// A change of a register is a read and a write, so a lock serializes the changes.
    state: Mutex<State>,
}

impl Kernel {
    /// Opens the kernel's attachment of a node.
    ///
    /// # Errors
    /// [`Error::WrongDevice`].
    pub fn open(device: &Device) -> Result<Self, Error> {
        let wanted = "the kernel's attachment";
        let attachment = check_identity(device, wanted)?;
        if attachment != KERNEL {
            return Err(Error::WrongDevice { wanted, found: format!("attachment {attachment}") });
        }

        let position = Page::of_system(device, 0)?.position()?;
        let registers = device.bar(BAR_REGISTERS)?;
        let state = Mutex::new(State { registers, allocated: Allocated::default() });
        Ok(Self { device: device.clone(), position, state })
    }

    /// Returns the position of the node in the network, and the network's shape. The public name is
    /// `Kernel_GetPersonality`.
    pub fn position(&self) -> NodePosition {
        self.position
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Opens subgroup `number`, 0 to 3, of the system's group. Its FIFOs may use the channels of
    /// the system. The kernel's attachment has one posted-write ring, so that one of the four can
    /// be open at a time.
    ///
    /// # Errors
    /// [`Error::NoSuchSubgroup`]; as [`Subgroup::open`].
    pub fn system_subgroup(&self, number: u8, options: Options) -> Result<Subgroup, Error> {
        Subgroup::of_page(Page::of_system(&self.device, number)?, options)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Allocates injection FIFOs of a subgroup, all or none. The public name is
    /// `Kernel_AllocateInjFifos`.
    ///
    /// # Errors
    /// [`Error::Taken`], [`Error::NoSuch`], [`Error::NoSuchSubgroup`].
    pub fn allocate_injection_fifos(&self, subgroup: u16, fifos: &[u8]) -> Result<(), Error> {
        self.state().allocated.allocate(Resource::InjectionFifo, subgroup, fifos)
    }

    /// Allocates reception FIFOs of a subgroup, all or none. The public name is
    /// `Kernel_AllocateRecFifos`.
    ///
    /// # Errors
    /// As [`Kernel::allocate_injection_fifos`].
    pub fn allocate_reception_fifos(&self, subgroup: u16, fifos: &[u8]) -> Result<(), Error> {
        self.state().allocated.allocate(Resource::ReceptionFifo, subgroup, fifos)
    }

    /// Allocates base addresses of a subgroup, all or none. The public name is
    /// `Kernel_AllocateBaseAddressTable`.
    ///
    /// # Errors
    /// As [`Kernel::allocate_injection_fifos`].
    pub fn allocate_base_addresses(&self, subgroup: u16, entries: &[u8]) -> Result<(), Error> {
        self.state().allocated.allocate(Resource::BaseAddress, subgroup, entries)
    }

    /// Frees FIFOs or base addresses of a subgroup, all or none. The public names are
    /// `Kernel_DeallocateInjFifos`, `Kernel_DeallocateRecFifos` and
    /// `Kernel_DeallocateBaseAddressTable`.
    ///
    /// A freed reception FIFO takes no more packets until the kernel enables it
    /// ([`Kernel::set_reception`]), and a freed injection FIFO no more remote gets.
    ///
    /// # Errors
    /// [`Error::NotAllocated`]; errors of a trapped access.
    pub fn free(&self, resource: Resource, subgroup: u16, numbers: &[u8]) -> Result<(), Error> {
        let mut state = self.state();
        state.allocated.release(resource, subgroup, numbers)?;

        match resource {
            Resource::InjectionFifo => state.set_fifos(REMOTE_GET, subgroup, numbers, false),
            Resource::ReceptionFifo => state.set_fifos(RECEPTION, subgroup, numbers, false),
            Resource::BaseAddress | Resource::CollectiveClass | Resource::BarrierClass => Ok(()),
        }
    }

    /// Returns the numbers that are not allocated: of a subgroup's FIFOs and base addresses, or of
    /// the node's class routes. The public names are `Kernel_QueryInjFifos`,
    /// `Kernel_QueryRecFifos`, `Kernel_QueryBaseAddressTable` and
    /// `Kernel_QueryCollectiveClassRoutes`.
    pub fn unallocated(&self, resource: Resource, subgroup: u16) -> Vec<u8> {
        let state = self.state();
        let is_free = |number: &u8| !state.allocated.0.contains(&(resource, subgroup, *number));
        (0..resource.count()).filter(is_free).collect()
    }

    /// Enables or disables reception FIFOs of a subgroup. A disabled one drops packets. The
    /// subgroup must have given them memory before. If one was enabled when it is disabled here, no
    /// client of the subgroup enables it before the kernel does. The public names are
    /// `Kernel_RecFifoEnable` and `Kernel_RecFifoDisable`.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::NoSuchSubgroup`]; errors of a trapped access.
    pub fn set_reception(&self, subgroup: u16, fifos: &[u8], enabled: bool) -> Result<(), Error> {
        check_numbers(Resource::ReceptionFifo, subgroup, fifos)?;
        self.state().set_fifos(RECEPTION, subgroup, fifos, enabled)
    }

    /// Lets remote gets use injection FIFOs of a subgroup, or not.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::NoSuchSubgroup`]; errors of a trapped access.
    pub fn set_remote_get(&self, subgroup: u16, fifos: &[u8], permitted: bool) -> Result<(), Error> {
        check_numbers(Resource::InjectionFifo, subgroup, fifos)?;
        self.state().set_fifos(REMOTE_GET, subgroup, fifos, permitted)
    }

    /// Lets injection FIFOs interrupt when their free space rises above the threshold, or not. The
    /// public name is `Kernel_ConfigureInjFifoInterrupts`.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::NoSuchSubgroup`]; errors of a trapped access.
    pub fn set_injection_interrupts(&self, subgroup: u16, fifos: &[u8], enabled: bool) -> Result<(), Error> {
        check_numbers(Resource::InjectionFifo, subgroup, fifos)?;
        self.state().set_fifos(INJECTION_THRESHOLD, subgroup, fifos, enabled)
    }

    /// Lets reception FIFOs interrupt when their free space falls below the threshold, and when a
    /// packet comes that asks for it, or not. The public name is
    /// `Kernel_ConfigureRecFifoInterrupts`.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::NoSuchSubgroup`]; errors of a trapped access.
    pub fn set_reception_interrupts(
        &self,
        subgroup: u16,
        fifos: &[u8],
        on_threshold: bool,
        on_packet: bool,
    ) -> Result<(), Error> {
        check_numbers(Resource::ReceptionFifo, subgroup, fifos)?;
        let mut state = self.state();
        state.set_fifos(RECEPTION_THRESHOLD, subgroup, fifos, on_threshold)?;
        state.set_fifos(PACKETS, subgroup, fifos, on_packet)
    }

    /// Sets the thresholds of all subgroups: the free space of an injection FIFO in descriptors,
    /// that of an injection FIFO for remote gets in chunks of 32 bytes, and that of a reception
    /// FIFO in such chunks. `None` leaves one as it is. The public names are
    /// `Kernel_ConfigureInjFifoThresholds` and `Kernel_ConfigureRecFifoThreshold`.
    ///
    /// # Errors
    /// Errors of a trapped access.
    pub fn set_thresholds(
        &self,
        injection: Option<u64>,
        remote_get: Option<u64>,
        reception: Option<u64>,
    ) -> Result<(), Error> {
        let state = self.state();
        let values = [
            (mu_dcr::IMU_THOLD, injection),
            (mu_dcr::RGET_THOLD, remote_get),
            (mu_dcr::RMU_THOLD, reception),
        ];

        for (register, value) in values {
            if let Some(value) = value {
                state.write(register, value)?;
            }
        }
        Ok(())
    }

    /// Allocates a class route of collectives or barriers. The public names are
    /// `Kernel_AllocateCollectiveClassRoute` and `Kernel_AllocateGlobalInterruptClassRoute`.
    ///
    /// # Errors
    /// [`Error::Taken`], [`Error::NoSuch`].
    pub fn allocate_class(&self, resource: Resource, class: u8) -> Result<(), Error> {
        self.state().allocated.allocate(resource, 0, &[class])
    }

    /// Sets this node's part of a class route of collectives, for packets of a channel. The public
    /// name is `Kernel_SetCollectiveClassRoute`.
    ///
    /// All nodes of the class route set their parts before one of them injects.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::ClassRouteRefused`]; errors of a trapped access.
    pub fn set_collective_route(
        &self,
        class: u8,
        route: ClassRoute,
        channel: CollectiveChannel,
    ) -> Result<(), Error> {
        let class_type = match channel {
            CollectiveChannel::CommWorld => class_type::USER,
            CollectiveChannel::SubComm => class_type::SUB_COMM,
            CollectiveChannel::System => class_type::SYSTEM,
        };
        let route = checked_route(class, route)?;
        let route = ClassRoute { input: route.input | class_type << class_type::SHIFT, ..route };
        self.state().set_class(Resource::CollectiveClass, nd_dcr::CTRL_COLL_CLASS, class, route)
    }

    /// Sets this node's part of a class route of barriers. The node is then in no barrier of it,
    /// and sets none of its lines. The public name is `Kernel_SetGlobalInterruptClassRoute`.
    ///
    /// All nodes of the class route set their parts before one of them enters. A node without the
    /// route drops what comes for it, and the barrier is never complete.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::ClassRouteRefused`]; errors of a trapped access.
    pub fn set_barrier_route(&self, class: u8, route: ClassRoute) -> Result<(), Error> {
        let route = checked_route(class, route)?;
        let mut state = self.state();

        // The unit leaves a class alone whose route does not change. Without a route, it forgets
        // the barrier and the lines that an earlier job has left.
        for route in [ClassRoute::default(), route] {
            state.set_class(Resource::BarrierClass, nd_dcr::CTRL_GI_CLASS, class, route)?;
        }
        Ok(())
    }

    /// Lets completed barriers of these classes interrupt all subgroups. One bit is a class.
    ///
    /// # Errors
    /// Errors of a trapped access.
    pub fn set_barrier_interrupts(&self, classes: u16) -> Result<(), Error> {
        self.state().set_bits(mu_dcr::BARRIER_INT_EN, u16::MAX.into(), classes.into())
    }

    /// Lets these lines of a class route interrupt all subgroups when a node sets them. One bit is
    /// a line. The public name is `Kernel_ConfigureGIInterrupts`.
    ///
    /// # Errors
    /// [`Error::NoSuch`]; errors of a trapped access.
    pub fn set_global_interrupts(&self, class: u8, lines: u8) -> Result<(), Error> {
        check_numbers(Resource::BarrierClass, 0, &[class])?;
        let shift = mu_dcr::GI_INT_EN_SHIFT + u32::from(LINES * class);
        let all = (1 << LINES) - 1;
        self.state().set_bits(mu_dcr::BARRIER_INT_EN, all << shift, (u64::from(lines) & all) << shift)
    }

    /// Returns the lines of a class route that interrupt.
    ///
    /// # Errors
    /// [`Error::NoSuch`]; errors of a trapped access.
    pub fn global_interrupts(&self, class: u8) -> Result<u8, Error> {
        check_numbers(Resource::BarrierClass, 0, &[class])?;
        let bits = self.state().read(mu_dcr::BARRIER_INT_EN)? >> mu_dcr::GI_INT_EN_SHIFT;
        Ok((bits >> (LINES * class)) as u8 & ((1 << LINES) - 1))
    }

    /// Makes these classes of barriers the system's. One bit is a class.
    ///
    /// # Errors
    /// Errors of a trapped access.
    pub fn set_system_barriers(&self, classes: u16) -> Result<(), Error> {
        self.state().write(mu_dcr::SYS_BARRIER, classes.into())
    }

    /// Permits the users' FIFOs and messages these addresses, and no others.
    ///
    /// # Errors
    /// [`Error::TooManyRanges`] for more than 20; errors of a trapped access.
    pub fn set_user_ranges(&self, ranges: &[AddressRange]) -> Result<(), Error> {
        let (first, last) = (MIN_USR_ADDR_RANGE, MAX_USR_ADDR_RANGE);
        let registers = RangeRegisters { first, last, read_only: mu_dcr::USR_INJ_RANGE, count: USR_RANGES };
        self.state().set_ranges(registers, ranges)
    }

    /// Permits the system's FIFOs and messages these addresses, and no others.
    ///
    /// # Errors
    /// [`Error::TooManyRanges`] for more than 8; errors of a trapped access.
    pub fn set_system_ranges(&self, ranges: &[AddressRange]) -> Result<(), Error> {
        let (first, last) = (MIN_SYS_ADDR_RANGE, MAX_SYS_ADDR_RANGE);
        let registers = RangeRegisters { first, last, read_only: mu_dcr::SYS_INJ_RANGE, count: SYS_RANGES };
        self.state().set_ranges(registers, ranges)
    }

    /// Reads a device control register, at its offset in `nicforge_hwi::mu_dcr`, or that of the
    /// network's plus 0x1000.
    ///
    /// # Errors
    /// Errors of a trapped access.
    pub fn control(&self, register: u64) -> Result<u64, Error> {
        self.state().read(register)
    }

    /// Writes a device control register: see [`Kernel::control`].
    ///
    /// # Errors
    /// Errors of a trapped access.
    pub fn set_control(&self, register: u64, value: u64) -> Result<(), Error> {
        self.state().write(register, value)
    }
}

/// Returns a class route without the bits that are no links, if a node can have it: it has at most
/// one output, which is neither an input nor the node itself.
fn checked_route(class: u8, route: ClassRoute) -> Result<ClassRoute, Error> {
    let [input, output] = [route.input, route.output].map(|links| links & nd_dcr::LINKS);
    if output.count_ones() > 1 || output & (input | nd_dcr::LOCAL) != 0 {
        return Err(Error::ClassRouteRefused { class, input, output });
    }
    Ok(ClassRoute { input, output })
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("position", &self.position).finish()
    }
}

const _: () = assert!(SYSTEM_GROUP * SUBGROUPS_OF_GROUP < SUBGROUPS);

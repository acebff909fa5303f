//! The device of the chapter "Write your own device": registers, device, driver and test in one
//! file.
//!
//! *Tally* adds the numbers that its clients write, and raises an interrupt when the sum reaches a
//! target. Each client has a sum of its own.
#![forbid(unsafe_code)]

// ANCHOR: hwi
/// The register map. In the project it belongs into a module of `device-model/hwi`.
pub mod hwi {
    use nicforge_hwi::register::{Field, Register};

    /// PCI device id.
    pub const DEVICE_TALLY: u16 = 0x00f0;
    /// Attachments of the card.
    pub const ATTACHMENTS: u16 = 2;
    /// BAR 0, write (32-bit): added to the sum. Clients may post these writes.
    pub const REG_ADD: u64 = 0x00;
    /// BAR 0, read (64-bit): the sum.
    pub const REG_SUM: u64 = 0x08;
    /// BAR 0, read-write (64-bit): the target; 0 for none.
    pub const REG_TARGET: u64 = 0x10;
    /// BAR 2 (mirror), 64-bit: the sum.
    pub const MIRROR_SUM: u64 = 0x1000;
    /// MSI-X vector: the sum has reached the target. It is raised once for each target written.
    pub const VECTOR_REACHED: u16 = 0;

    /// The declarations of the registers.
    pub static REGISTER_MAP: &[Register] = &[
        Register::wo32("ADD", 0, REG_ADD).about("added to the sum"),
        Register::ro64("SUM", 0, REG_SUM),
        Register::rw64("TARGET", 0, REG_TARGET)
            .fields(&[Field::bits("TARGET", 63, 0).values(&[(0, "none")])]),
        Register::ro64("MIRROR_SUM", 2, MIRROR_SUM),
    ];
}
// ANCHOR_END: hwi

// ANCHOR: device
/// The device. In the project it belongs into a crate of `device-model/nics`.
pub mod device {
    use nicforge_core::{
        context::Context,
        device::{Counter, Device, Ended, Reset, Write},
        fabric::Ports,
        ids::{Address, AttachmentId},
        register::Register,
        spec::{AttachmentSpec, FunctionSpec, Identity, NicSizes},
    };
    use nicforge_hwi::pci::VENDOR_ID;
    use nicforge_kit::{MirrorWord, RegisterValue};
    use nicforge_shm::SharedU64;

    use super::hwi::*;

    /// The card.
    #[derive(Default)]
    pub struct Tally {
        lanes: [Lane; ATTACHMENTS as usize],
        added: u64,
    }

    /// The state of one client. The default is the state at power-on.
    #[derive(Default)]
    struct Lane {
        sum: u64,
        target: u64,
        mirror: Option<MirrorWord<SharedU64>>,
    }

    impl Tally {
        fn start(&mut self, context: &Context<'_>, attachment_id: AttachmentId) {
            let word = context.memory(attachment_id, 2).and_then(|bar| bar.u64(MIRROR_SUM).ok());
            self.lanes[usize::from(attachment_id.0)] =
                Lane { mirror: word.map(MirrorWord::new), ..Lane::default() };
        }
    }

    impl Device for Tally {
        fn spec(&self) -> FunctionSpec {
            let identity = Identity {
                vendor: VENDOR_ID,
                device: DEVICE_TALLY,
                subsystem_vendor: VENDOR_ID,
                subsystem: DEVICE_TALLY,
                class: 0xff_00_00,
                revision: 1,
            };

            let user = |number| AttachmentSpec { name: format!("user{number}"), group: number as u8 };
            let users = (0..ATTACHMENTS).map(user).collect();
            FunctionSpec::nic(
                identity,
                users,
                NicSizes {
                    register_bytes: 0x1000,
                    vectors: 1,
                    ring_cells: 64,
                    mirror_bytes: 0x1000,
                    ..NicSizes::default()
                },
            )
        }

        fn attached(&mut self, context: &mut Context<'_>, attachment_id: AttachmentId) {
            self.start(context, attachment_id);
        }

        fn detached(&mut self, _: &mut Context<'_>, attachment_id: AttachmentId, _: Ended) {
            self.lanes[usize::from(attachment_id.0)] = Lane::default();
        }

        fn reset(&mut self, context: &mut Context<'_>, reach: Reset) {
            for attachment_id in (0..ATTACHMENTS).map(AttachmentId) {
                // A lane without memory has no client, or is losing it, and is already in the state
                // of power-on.
                if reach.reaches(attachment_id) && self.lanes[usize::from(attachment_id.0)].mirror.is_some() {
                    self.start(context, attachment_id);
                }
            }
        }

        fn registers(&self) -> &'static [Register] {
            REGISTER_MAP
        }

        fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
            // `data` comes filled with ones, the value of reads that no register answers.
            self.peek(&context.ports(), from, at, data);
        }

        fn peek(&self, _: &Ports<'_>, from: AttachmentId, at: Address, data: &mut [u8]) -> bool {
            let lane = &self.lanes[usize::from(from.0)];
            match at.offset {
                REG_SUM => lane.sum.answer_read(data),
                REG_TARGET => lane.target.answer_read(data),
                _ => return false,
            }
            true
        }

        fn write(
            &mut self,
            context: &mut Context<'_>,
            from: AttachmentId,
            at: Address,
            data: &[u8],
        ) -> Write {
            let lane = &mut self.lanes[usize::from(from.0)];
            let was_reached = lane.is_reached();

            match (at.offset, u32::from_write(data), u64::from_write(data)) {
                (REG_ADD, Some(number), _) => {
                    lane.sum = lane.sum.wrapping_add(number.into());
                    self.added += 1;
                }
                (REG_TARGET, _, Some(target)) => lane.target = target,
                _ => return Write::Accepted,
            }

            let now_reached = lane.is_reached() && (!was_reached || at.offset == REG_TARGET);

            // The mirror is stored before the interrupt, so that a woken client finds the sum.
            if let Some(mirror) = &mut lane.mirror {
                mirror.publish(lane.sum);
            }
            if now_reached {
                context.interrupt(from, VECTOR_REACHED);
            }

            Write::Accepted
        }

        fn counters(&self) -> Vec<Counter> {
            vec![Counter { name: "added", value: self.added }]
        }
    }

    impl Lane {
        fn is_reached(&self) -> bool {
            self.target != 0 && self.sum >= self.target
        }
    }
}
// ANCHOR_END: device

// ANCHOR: kind
/// Returns the kind of the card, for the tables `[[function]]` of machine files.
pub fn kind() -> nicforge_family::DeviceKind {
    nicforge_family::DeviceKind::plain("tally", device::Tally::default)
}
// ANCHOR_END: kind

// ANCHOR: driver
/// The driver. In the project it belongs into a crate of `userlib`.
pub mod driver {
    use std::sync::atomic::Ordering;

    use nicforge_driver::{Bar, Cancel, Deadline, Device, Error, Interrupt, Poster};
    use nicforge_hwi::pci::VENDOR_ID;
    use nicforge_shm::SharedU64;

    use super::hwi::*;

    /// The card, opened.
    #[derive(Debug)]
    pub struct Tally {
        registers: Bar,
        poster: Poster,
        sum: SharedU64,
        reached: Interrupt,
    }

    impl Tally {
        /// Drives `device`.
        ///
        /// # Errors
        /// Returns [`Error::Unsupported`] when it is another device, or the error of mapping its
        /// memory.
        pub fn open(device: &Device) -> Result<Self, Error> {
            let identity = device.identity();
            if (identity.vendor, identity.device) != (VENDOR_ID, DEVICE_TALLY) {
                return Err(Error::Unsupported { what: "driving another device as a tally" });
            }

            Ok(Self {
                registers: device.bar(0)?,
                poster: device.poster(0)?,
                sum: device.bar(2)?.window(MIRROR_SUM, 8)?.u64(0)?,
                reached: device.interrupt(VECTOR_REACHED.into())?,
            })
        }

        /// Adds `number`. It needs no trap and no system call, unless the ring is full or the
        /// engine sleeps.
        ///
        /// # Errors
        /// Returns the errors of [`Poster::post`].
        pub fn add(&mut self, number: u32) -> Result<(), Error> {
            self.poster.post(0, REG_ADD, &number.to_le_bytes())
        }

        /// Returns the sum that the mirror shows. This is a load, and may not yet include the last
        /// [`Tally::add`].
        pub fn shown(&self) -> u64 {
            self.sum.load(Ordering::Acquire)
        }

        /// Returns the sum of all numbers added before. This is a trapped read, which waits for the
        /// ring.
        ///
        /// # Errors
        /// Returns the errors of a trapped read.
        pub fn sum(&self) -> Result<u64, Error> {
            self.registers.read64(REG_SUM)
        }

        /// Requests an interrupt at `target`.
        ///
        /// # Errors
        /// Returns the errors of a trapped write.
        pub fn set_target(&self, target: u64) -> Result<(), Error> {
            self.registers.write64(REG_TARGET, target)
        }

        /// Waits for the interrupt requested by [`Tally::set_target`].
        ///
        /// # Errors
        /// Returns [`Error::Timeout`], [`Error::Cancelled`] or [`Error::DeviceGone`].
        pub fn wait(&self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<(), Error> {
            self.reached.wait(deadline, cancel).map(drop)
        }
    }
}
// ANCHOR_END: driver

// ANCHOR: test
#[cfg(test)]
mod tests {
    use nicforge_core::machine::Machine;
    use nicforge_engine::EventLoopKind;
    use nicforge_family::Families;
    use nicforge_machine::{build::build, description::parse};
    use nicforge_tests::backing::{InProcess, Rig, Served, test_deadline};

    use super::{driver::Tally, kind};

    fn machine() -> Machine {
        let file = "name = \"mine\"\n[[function]]\nname = \"tally0\"\nkind = \"tally\"\n";
        build(&parse(file, "mine.toml", &Families::new().device(kind())).unwrap()).unwrap().0
    }

    fn sum_that_reaches_the_target_interrupts(rig: &dyn Rig) {
        let device = rig.open("tally0", "user0");
        let mut tally = Tally::open(&device).unwrap();
        tally.set_target(5050).unwrap();

        (1..=100).for_each(|number| tally.add(number).unwrap());
        tally.wait(test_deadline(), None).unwrap();

        assert_eq!(tally.shown(), 5050);
        assert_eq!(tally.sum().unwrap(), 5050);
    }

    fn two_clients_have_sums_of_their_own(rig: &dyn Rig) {
        let devices = ["user0", "user1"].map(|user| rig.open("tally0", user));
        let [mut first, second] = devices.each_ref().map(|device| Tally::open(device).unwrap());

        first.add(7).unwrap();

        assert_eq!((first.sum().unwrap(), second.sum().unwrap()), (7, 0));
    }

    fn a_reset_clears_the_sum(rig: &dyn Rig) {
        let device = rig.open("tally0", "user0");
        let mut tally = Tally::open(&device).unwrap();
        tally.add(7).unwrap();
        tally.set_target(8).unwrap();

        device.reset().unwrap();
        tally.add(9).unwrap();

        assert_eq!((tally.sum().unwrap(), tally.shown()), (9, 9));
        assert!(tally.wait(nicforge_driver::Deadline::now(), None).is_err());
    }

    macro_rules! through_both_doors {
        ($($body:ident)+) => {
            mod in_process {
                use super::*;
                $(#[test] fn $body() { super::$body(&InProcess::new(machine())) })+
            }
            mod served {
                use super::*;
                $(#[test] fn $body() { super::$body(&Served::new(machine(), EventLoopKind::Auto)) })+
            }
        };
    }

    through_both_doors! {
        sum_that_reaches_the_target_interrupts
        two_clients_have_sums_of_their_own
        a_reset_clears_the_sum
    }
}
// ANCHOR_END: test

//! Messages that are torn on their way to the card.
//!
//! The ports here are on devices without a posted-write ring, so messages are stored directly. A
//! `Torn` backing treats these stores as a processor's write-combining buffers do: they leave in
//! pieces, reordered, or not at all.

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use nicforge_driver::{
    Backing, Device, DmaMemory, DmaPermission, Error as DriverError, InterruptSource, IrqInfo, OpenOptions,
    REGION_CONFIG, RegionInfo, Relax, WriteMode,
};
use nicforge_hwi::{
    extoll::BAR_VELO,
    pci::{AttachmentCapability, CAP_ID_VENDOR, CAP_KIND_ATTACHMENT},
};
use nicforge_shm::{SharedMemory, SharedU64};
use nicforge_test_body::body;
use nicforge_velo::{Config, DeviceError, Error, Filter, Port};

use super::{MACHINE, at, drain, drive_until, link, pattern, port};
use crate::backing::{Rig, test_deadline};

/// The frequency of torn messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TearFrequency {
    Never = 0,
    Often = 1,
    Always = 2,
}

/// A device without a posted-write ring, whose stores to the send aperture are torn.
struct Torn {
    inner: Arc<dyn Backing>,
    /// Offset of the number of rings in configuration space.
    ring_count: u64,
    frequency: AtomicU64,
    random: AtomicU64,
}

impl Torn {
    /// Returns a backing that hides the posted-write rings of `inner`.
    fn new(inner: Arc<dyn Backing>, frequency: TearFrequency) -> Arc<Self> {
        let byte = |at: u64| {
            let mut byte = [0];
            inner.read(REGION_CONFIG, at, &mut byte).unwrap();
            byte[0]
        };

        let mut capability = u64::from(byte(0x34));
        while (byte(capability), byte(capability + 3)) != (CAP_ID_VENDOR, CAP_KIND_ATTACHMENT) {
            capability = byte(capability + 1).into();
            assert_ne!(capability, 0, "there is an attachment");
        }

        let ring_count = capability + std::mem::offset_of!(AttachmentCapability, ring_count) as u64;
        let (frequency, random) = (AtomicU64::new(frequency as u64), AtomicU64::new(0x9e37_79b9_7f4a_7c15));
        Arc::new(Self { inner, ring_count, frequency, random })
    }

    /// Sets the frequency of torn messages.
    fn set_frequency(&self, frequency: TearFrequency) {
        self.frequency.store(frequency as u64, Ordering::SeqCst);
    }

    /// Returns the next pseudo-random number.
    fn random(&self) -> u64 {
        let next = |state: u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        self.random.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).unwrap() >> 33
    }

    /// Splits a message into the pieces in which it leaves the processor: each with its offset and
    /// bytes.
    fn pieces<'a>(&self, data: &'a [u8]) -> Vec<(usize, &'a [u8])> {
        let (front, back) = data.split_at(data.len() / 16 * 8);
        let quadwords = || data.chunks(8).enumerate().map(|(index, piece)| (index * 8, piece));
        // 0 leaves the message whole, 1 and 2 split it, and 3 to 6 tear it.
        let choice = match self.frequency.load(Ordering::SeqCst) {
            0 => 0,
            1 => self.random() % 7,
            _ => 3 + self.random() % 4,
        };

        match choice {
            // A message of one quadword can't be torn.
            0 => vec![(0, data)],
            _ if front.is_empty() => vec![(0, data)],
            1 => vec![(0, front), (front.len(), back)],
            2 => quadwords().collect(),
            3 => vec![(front.len(), back), (0, front)],
            4 => vec![(0, front)],
            5 => vec![(front.len(), back)],
            _ => {
                let lost = self.random() as usize % (data.len() / 8);
                quadwords().filter(|(position, _)| position / 8 != lost).collect()
            }
        }
    }
}

impl Backing for Torn {
    fn region_info(&self, region: u32) -> Result<RegionInfo, DriverError> {
        self.inner.region_info(region)
    }

    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), DriverError> {
        self.inner.read(region, offset, out)?;
        if region == REGION_CONFIG
            && let Some(byte) = self.ring_count.checked_sub(offset).and_then(|at| out.get_mut(at as usize))
        {
            *byte = 0;
        }

        Ok(())
    }

    fn write(&self, region: u32, offset: u64, data: &[u8], mode: WriteMode) -> Result<(), DriverError> {
        if region != u32::from(BAR_VELO) {
            return self.inner.write(region, offset, data, mode);
        }

        for (position, piece) in self.pieces(data) {
            self.inner.write(region, offset + position as u64, piece, mode)?;
        }

        Ok(())
    }

    fn map(&self, region: u32) -> Result<Option<SharedMemory>, DriverError> {
        self.inner.map(region)
    }

    fn irq_info(&self, index: u32) -> Result<IrqInfo, DriverError> {
        self.inner.irq_info(index)
    }

    fn interrupt(&self, index: u32, vector: u32) -> Result<Arc<dyn InterruptSource>, DriverError> {
        self.inner.interrupt(index, vector)
    }

    fn unbind_interrupts(&self, index: u32) -> Result<(), DriverError> {
        self.inner.unbind_interrupts(index)
    }

    fn mask(&self, index: u32, start: u32, count: u32) -> Result<(), DriverError> {
        self.inner.mask(index, start, count)
    }

    fn unmask(&self, index: u32, start: u32, count: u32) -> Result<(), DriverError> {
        self.inner.unmask(index, start, count)
    }

    fn dma_map(&self, iova: u64, memory: DmaMemory, permission: DmaPermission) -> Result<(), DriverError> {
        self.inner.dma_map(iova, memory, permission)
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), DriverError> {
        self.inner.dma_unmap(iova, len)
    }

    fn reset(&self) -> Result<(), DriverError> {
        self.inner.reset()
    }

    fn relax(&self, relax: &mut Relax) -> Result<(), DriverError> {
        self.inner.relax(relax)
    }

    fn set_heartbeat(&self, heartbeat: SharedU64) {
        self.inner.set_heartbeat(heartbeat);
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.event_fd()
    }

    fn handle_events(&self) -> Result<(), DriverError> {
        self.inner.handle_events()
    }
}

/// Opens a port whose messages are torn, and returns it with its backing.
fn torn_port(rig: &dyn Rig, node: u32, frequency: TearFrequency) -> (Port, Arc<Torn>) {
    let torn = Torn::new(rig.open(&format!("ex{node}"), "vpid0").backing().clone(), frequency);
    let options = OpenOptions { heartbeat: None, ..OpenOptions::default() };
    let device = Device::open(torn.clone(), options).unwrap();
    assert_eq!(device.ring_count(), 0);
    (Port::open(device, Config::default()).unwrap(), torn)
}

/// Messages that are usually torn arrive whole, in order, and once. This holds both ways, beside a
/// port whose messages are intact.
#[body(not_through(shim) = CHOOSES_ADDRESSES)]
pub fn torn_messages_arrive_once_and_in_order(rig: &dyn Rig) {
    let messages = u64::from(rig.repetitions(1500));
    let (mut local, _) = torn_port(rig, 0, TearFrequency::Often);
    let (mut remote, _) = torn_port(rig, 1, TearFrequency::Often);
    let mut intact = port(rig, at(0, 1));
    let (to, back) = (link(&mut local, &mut remote), link(&mut remote, &mut local));
    let intact_link = link(&mut intact, &mut remote);
    let message = |number: u64| {
        let mut bytes = pattern(number, 8 * (1 + number as usize % 8));
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes
    };

    let directions = [(0, to), (1, back), (2, intact_link)];
    let (mut sent, mut expected) = ([0; 3], [0; 3]);

    while expected != [messages; 3] {
        let mut ports = [&mut local, &mut remote, &mut intact];
        for (direction, &(port, link)) in directions.iter().enumerate() {
            while sent[direction] < messages {
                match ports[port].send_nb(link, 1, &message(sent[direction])) {
                    Ok(()) => sent[direction] += 1,
                    Err(error) => {
                        assert_eq!(error, Error::WouldBlock);
                        break;
                    }
                }
            }
        }

        let [local, remote, intact] = &mut ports;
        drive_until("messages", &mut [local, remote, intact], |ports| {
            let mut moved = false;
            for (port, sender, direction) in [(1, at(0, 0), 0), (0, at(1, 0), 1), (1, at(0, 1), 2)] {
                while let Some(received) = ports[port].poll_for(Filter::from(sender)).unwrap() {
                    assert_eq!(
                        (received.tag, received.bytes()),
                        (1, &message(expected[direction])[..]),
                        "direction {direction}"
                    );
                    expected[direction] += 1;
                    moved = true;
                }
            }

            let mut senders = directions.iter().zip(sent).filter(|(_, sent)| *sent < messages);
            moved || senders.any(|(&(port, link), _)| ports[port].credits(link) != Some(0))
        });
    }

    for port in [&mut local, &mut remote, &mut intact] {
        assert_eq!(drain(port), []);
        port.device().flush().unwrap();
        assert_eq!(port.check(), Ok(()), "a message that was repaired is no error");
    }

    let replayed = [&local, &remote, &intact].map(|port| port.statistics().replayed);
    assert!(replayed[0] > messages / 4 && replayed[1] > messages / 4, "{replayed:?}");
    assert_eq!(replayed[2], 0);
}

/// A message that never arrives whole is an error and was not sent. The next one is sent once.
#[body(not_through(shim) = CHOOSES_ADDRESSES)]
pub fn a_message_that_is_torn_each_time_is_an_error(rig: &dyn Rig) {
    let (mut local, torn) = torn_port(rig, 0, TearFrequency::Never);
    let mut remote = port(rig, at(1, 0));
    let to = link(&mut local, &mut remote);

    for round in 0..3_u64 {
        torn.set_frequency(TearFrequency::Always);
        let result = local.send(to, 2, &[9; 32], test_deadline(), None);
        assert!(matches!(result, Err(Error::Device { error: DeviceError::Torn, .. })), "{result:?}");
        torn.set_frequency(TearFrequency::Never);
        local.send(to, 3, &round.to_le_bytes(), test_deadline(), None).unwrap();
        let received = remote.recv(Filter::ANY, test_deadline(), None).unwrap();
        assert_eq!((received.tag, received.quadword(0)), (3, round));
    }

    assert_eq!(drain(&mut remote), []);
}

//! The registers of virtio on PCI: capabilities, negotiation, queues.

use nicforge_driver::{Device, REGION_CONFIG, WriteMode};
use nicforge_test_body::body;
use nicforge_virtio_net::registers::*;

use super::{
    MACHINE, MTU,
    driver::{ALL, LEAST, accept, add_status, negotiate, reset},
    mac,
};
use crate::backing::Rig;

/// Offset in configuration space of the pointer to the first capability.
pub(super) const CAPABILITIES: u64 = 0x34;
/// Id of vendor-specific capabilities.
const VENDOR_SPECIFIC: u8 = 0x09;

/// Reads bytes of configuration space.
pub(super) fn config<const N: usize>(device: &Device, offset: u64) -> [u8; N] {
    let mut bytes = [0; N];
    device.backing().read(REGION_CONFIG, offset, &mut bytes).unwrap();
    bytes
}

/// Writes bytes of configuration space.
pub(super) fn set_config(device: &Device, offset: u64, bytes: &[u8]) {
    device.backing().write(REGION_CONFIG, offset, bytes, WriteMode::Confirmed).unwrap();
}

/// Returns the vendor-specific capabilities: type and place of each.
fn capabilities(device: &Device) -> Vec<(u8, u64)> {
    let mut found = Vec::new();
    let [mut at] = config(device, CAPABILITIES);
    while at != 0 {
        let [id, next, _, kind] = config(device, at.into());
        if id == VENDOR_SPECIFIC {
            found.push((kind, u64::from(at)));
        }
        at = next;
    }
    found
}

/// Software finds the registers by the capabilities (4.1.4).
#[body]
pub fn the_capabilities_locate_the_registers(rig: &dyn Rig) {
    let device = rig.open("en0", "user0");
    let identity = device.identity();
    assert_eq!(
        (identity.vendor, identity.device, identity.class),
        (VENDOR_VIRTIO, DEVICE_NET, CLASS_ETHERNET)
    );

    let found = capabilities(&device);
    let location = |kind| {
        let (_, at) = found.iter().find(|(of, _)| *of == kind).expect("the capability is there");
        let [_, _, length, _, bar, ..] = config::<8>(&device, *at);
        let [offset, size] = [8, 12].map(|word| u32::from_le_bytes(config(&device, at + word)));
        (length, bar, u64::from(offset), u64::from(size))
    };

    assert_eq!(location(capability::COMMON), (16, BAR, COMMON, common::SIZE));
    assert_eq!(location(capability::NOTIFY), (20, BAR, NOTIFY, 8));
    assert_eq!(location(capability::ISR), (16, BAR, ISR, 1));
    assert_eq!(location(capability::DEVICE), (16, BAR, DEVICE, size_of::<DeviceConfig>() as u64));
    assert_eq!(location(capability::PCI), (20, BAR, 0, 0));

    let (_, notify) = found.iter().find(|(kind, _)| *kind == capability::NOTIFY).unwrap();
    assert_eq!(u32::from_le_bytes(config(&device, notify + 16)), NOTIFY_STRIDE);
}

/// Software without access to the BAR reaches the registers through configuration space (4.1.4.9).
#[body]
pub fn the_window_in_configuration_space_reaches_the_registers(rig: &dyn Rig) {
    let device = rig.open("en0", "user0");
    let bar = device.bar(BAR).unwrap();
    let found = capabilities(&device);
    let (_, window) = *found.iter().find(|(kind, _)| *kind == capability::PCI).unwrap();
    let aim = |offset: u64, length: u32| {
        set_config(&device, window + 4, &[BAR]);
        set_config(&device, window + 8, &(offset as u32).to_le_bytes());
        set_config(&device, window + 12, &length.to_le_bytes());
    };

    aim(common::STATUS, 1);
    set_config(&device, window + 16, &[status::ACKNOWLEDGE]);
    assert_eq!(bar.read8(common::STATUS).unwrap(), status::ACKNOWLEDGE);

    bar.write16(common::QUEUE_SELECT, 1).unwrap();
    aim(common::QUEUE_SIZE, 2);
    assert_eq!(config::<2>(&device, window + 16), MAX_QUEUE_SIZE.to_le_bytes());

    aim(DEVICE, 4);
    assert_eq!(config::<4>(&device, window + 16), mac(0).0[..4]);

    // A window that aims at nothing reads ones, and its writes have no effect.
    for (offset, length) in
        [(BAR_SIZE, 4), (DEVICE, 3), (DEVICE + 1, 4), (DEVICE, 0), (u64::from(u32::MAX), 1)]
    {
        aim(offset, length);
        set_config(&device, window + 16, &[0xff; 4]);
        assert_eq!(config::<4>(&device, window + 16), [0xff; 4]);
    }
    set_config(&device, window + 4, &[7]);
    assert_eq!(config::<4>(&device, window + 16), [0xff; 4]);
    assert_eq!(bar.read8(common::STATUS).unwrap(), status::ACKNOWLEDGE);
}

/// The device's configuration has its address, its link, and the network's MTU.
#[body]
pub fn the_configuration_has_address_link_and_mtu_of_the_machine_file(rig: &dyn Rig) {
    for number in 0..3 {
        let device = rig.open(&format!("en{number}"), "user0");
        let bar = device.bar(BAR).unwrap();

        let address: Vec<_> = (0..6).map(|byte| bar.read8(DEVICE + byte).unwrap()).collect();
        assert_eq!(address, mac(number).0);
        let words = [6, 8, 10].map(|offset| bar.read16(DEVICE + offset).unwrap());
        assert_eq!(words, [LINK_UP, 1, MTU]);
    }
}

/// The device takes the features that it offers, if `VERSION_1` is among them.
#[body]
pub fn features_are_negotiated(rig: &dyn Rig) {
    let device = rig.open("en0", "user0");
    let bar = device.bar(BAR).unwrap();
    let offered = [0, 1, 2].map(|half| {
        bar.write32(common::DEVICE_FEATURE_SELECT, half).unwrap();
        bar.read32(common::DEVICE_FEATURE).unwrap()
    });
    assert_eq!(offered, [ALL as u32, (ALL >> 32) as u32, 0]);

    for refused in [0, ALL & !LEAST, LEAST | 1 << 15, LEAST | 1 << 40, u64::MAX] {
        reset(&device, &bar);
        add_status(&bar, status::ACKNOWLEDGE | status::DRIVER);
        accept(&bar, refused);
        let status = add_status(&bar, status::FEATURES_OK);
        assert_eq!(status, status::ACKNOWLEDGE | status::DRIVER, "{refused:#x}");
    }

    // The choice is final until a reset.
    negotiate(&device, &bar, LEAST | feature::CSUM);
    accept(&bar, ALL);
    bar.write32(common::DRIVER_FEATURE_SELECT, 0).unwrap();
    assert_eq!(bar.read32(common::DRIVER_FEATURE).unwrap(), feature::CSUM as u32);
}

/// A driver can't set the bit by which the device reports an error, and clears bits only all at
/// once.
#[body]
pub fn the_status_grows_until_a_reset(rig: &dyn Rig) {
    let device = rig.open("en0", "user0");
    let bar = device.bar(BAR).unwrap();
    negotiate(&device, &bar, ALL);

    let status = bar.read8(common::STATUS).unwrap();
    bar.write8(common::STATUS, status::NEEDS_RESET | status::DRIVER).unwrap();
    assert_eq!(bar.read8(common::STATUS).unwrap(), status);

    reset(&device, &bar);
    assert_eq!(bar.read8(common::STATUS).unwrap(), 0);
}

/// The registers of a queue keep what the driver writes. Those of a queue that does not exist show
/// the size 0.
#[body]
pub fn queues_have_registers_of_their_own(rig: &dyn Rig) {
    let device = rig.open("en0", "user0");
    let bar = device.bar(BAR).unwrap();
    assert_eq!(bar.read16(common::QUEUES).unwrap(), QUEUES as u16);

    for queue in 0..QUEUES as u16 {
        bar.write16(common::QUEUE_SELECT, queue).unwrap();
        assert_eq!(bar.read16(common::QUEUE_SIZE).unwrap(), MAX_QUEUE_SIZE);
        assert_eq!(bar.read16(common::QUEUE_NOTIFY_OFFSET).unwrap(), queue);
        assert_eq!(bar.read16(common::QUEUE_VECTOR).unwrap(), NO_VECTOR);
        bar.write16(common::QUEUE_SIZE, 16 << queue).unwrap();
        bar.write16(common::QUEUE_VECTOR, queue).unwrap();
        bar.write32(common::QUEUE_DRIVER, 0x1234_5670 + u32::from(queue)).unwrap();
        bar.write32(common::QUEUE_DRIVER + 4, 0x9).unwrap();
    }
    for queue in 0..QUEUES as u16 {
        bar.write16(common::QUEUE_SELECT, queue).unwrap();
        assert_eq!(bar.read16(common::QUEUE_SIZE).unwrap(), 16 << queue);
        assert_eq!(bar.read16(common::QUEUE_VECTOR).unwrap(), queue);
        assert_eq!(bar.read32(common::QUEUE_DRIVER).unwrap(), 0x1234_5670 + u32::from(queue));
        assert_eq!(bar.read32(common::QUEUE_DRIVER + 4).unwrap(), 0x9);
    }

    for missing in [QUEUES as u16, u16::MAX] {
        bar.write16(common::QUEUE_SELECT, missing).unwrap();
        bar.write16(common::QUEUE_SIZE, 16).unwrap();
        assert_eq!(bar.read16(common::QUEUE_SIZE).unwrap(), 0);
    }

    // A vector that does not exist reads as none.
    for register in [common::CONFIG_VECTOR, common::QUEUE_VECTOR] {
        bar.write16(common::QUEUE_SELECT, 0).unwrap();
        bar.write16(register, VECTORS - 1).unwrap();
        assert_eq!(bar.read16(register).unwrap(), VECTORS - 1);
        bar.write16(register, VECTORS).unwrap();
        assert_eq!(bar.read16(register).unwrap(), NO_VECTOR);
    }
}

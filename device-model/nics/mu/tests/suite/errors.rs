//! Packets that nothing at the receiver takes.

use nicforge_hwi::{
    mu::{DESCRIPTOR, NO_BASE_ADDRESS, atomic, reg},
    mu_dcr::{error, errors},
    mu_packet::Descriptor,
};

use crate::common::{COUNTERS, DATA, PAYLOAD, Rig, User, Way};

const WAY: Way = Way { from: 0, to: 1 };

/// Sends a message that the receiver must drop, and checks which error tells of it.
fn check_dropped(
    rig: &mut Rig,
    users: &mut [User; 2],
    kernel: &User,
    message: &Descriptor,
    (set, error): (u64, u8),
) {
    let before = rig.counter(1, "dropped");
    users[0].inject(&mut rig.bed, 0, message);
    rig.settle();

    assert_eq!(rig.counter(1, "dropped"), before + 1, "{error}");
    assert_eq!(kernel.control(&mut rig.bed, set), 1 << error);
    kernel.set_control(&mut rig.bed, set, u64::MAX);

    // The way is free again.
    users[0].inject(&mut rig.bed, 0, &WAY.fifo(0, PAYLOAD, 8));
    rig.until(|rig| users[1].take(&mut rig.bed, 0).len() == 1);
}

fn put_with(change: impl FnOnce(&mut Descriptor)) -> Descriptor {
    let mut put = WAY.put(0, 0, 0, PAYLOAD, 8);
    change(&mut put);
    put
}

#[test]
fn ids_that_do_not_exist_or_are_not_set_up_are_errors() {
    let (mut rig, mut users) = Rig::pair();
    let kernel = rig.kernel(1);
    users[1].set(&mut rig.bed, reg::RECEPTION_ENABLE, 0b0111);
    users[1].set(&mut rig.bed, reg::DISABLE, 1 << 6);
    users[1].set(&mut rig.bed, reg::BASE_ADDRESS + 8 * 7, DATA);

    let put = |entry: u16, counter: u16| {
        put_with(|put| {
            put.packet_header.unit.set_payload_base_address(entry);
            put.packet_header.unit.set_counter_base_address(counter);
        })
    };
    for (message, error) in [
        (WAY.fifo(3, PAYLOAD, 8), (errors::RCSRAM, error::RCSRAM_DISABLED)),
        (WAY.fifo(272, PAYLOAD, 8), (errors::RCSRAM, error::RCSRAM_INDEX)),
        (WAY.fifo(511, PAYLOAD, 8), (errors::RCSRAM, error::RCSRAM_INDEX)),
        (put(2, 1), (errors::RPUTSRAM, error::RPUTSRAM_SYSTEM_PAYLOAD)),
        (put(1023, 1), (errors::RPUTSRAM, error::RPUTSRAM_SYSTEM_PAYLOAD)),
        (put(0, 2), (errors::RPUTSRAM, error::RPUTSRAM_SYSTEM_COUNTER)),
        (put(0, 1023), (errors::RPUTSRAM, error::RPUTSRAM_SYSTEM_COUNTER)),
        (put(0, 7), (errors::RPUTSRAM, error::RPUTSRAM_COUNTER)),
        (WAY.get(5, PAYLOAD, 64), (errors::MISC, error::ICSRAM_SELECT_NO_GET)),
        (WAY.get(6, PAYLOAD, 64), (errors::MISC, error::ICSRAM_SELECT_DISABLED)),
        (WAY.get(1023, PAYLOAD, 64), (errors::MISC, error::ICSRAM_SELECT_SYSTEM)),
    ] {
        check_dropped(&mut rig, &mut users, &kernel, &message, error);
    }
    assert_eq!(users[1].read64(COUNTERS), 0);
}

#[test]
fn a_remote_get_that_is_longer_than_its_fifo_is_an_error() {
    let (mut rig, mut users) = Rig::pair();
    let kernel = rig.kernel(1);
    users[1].set(&mut rig.bed, reg::DISABLE, 1 << 6);
    users[1].set_injection(&mut rig.bed, 6, DATA, 4 * DESCRIPTOR);
    users[1].set(&mut rig.bed, reg::ENABLE, 1 << 6);

    for descriptors in [4, 5, 8] {
        let get = WAY.get(6, PAYLOAD, descriptors * DESCRIPTOR as usize);
        check_dropped(&mut rig, &mut users, &kernel, &get, (errors::ICSRAM, error::ICSRAM_GET_FULL));
    }
}

#[test]
fn addresses_behind_the_end_are_errors() {
    let (mut rig, mut users) = Rig::pair();
    let kernel = rig.kernel(1);
    users[1].set(&mut rig.bed, reg::BASE_ADDRESS + 8 * 2, (1 << 36) - 4);
    users[1].set(&mut rig.bed, reg::BASE_ADDRESS + 8 * 3, atomic::INDICATOR | DATA | atomic::store::ADD);
    users[1].set(&mut rig.bed, reg::BASE_ADDRESS + 8 * 4, atomic::INDICATOR | 0xf_ffff_fff8);

    let entry = |entry: u16| put_with(|put| put.packet_header.unit.set_payload_base_address(entry));
    let long = {
        let mut put = WAY.put(0, 0, 0, PAYLOAD, 9);
        put.packet_header.unit.set_payload_base_address(3);
        put
    };
    let overflow = put_with(|put| put.packet_header.unit.set_counter_offset(u64::MAX));
    let carry = put_with(|put| {
        put.packet_header.unit.set_payload_base_address(4);
        put.packet_header.unit.set_put_offset(16);
    });
    for (message, error) in [
        (entry(2), (errors::RPUTSRAM, error::RPUTSRAM_CROSSING)),
        (long, (errors::RPUTSRAM, error::RPUTSRAM_ATOMIC_LENGTH)),
        (overflow, (errors::RPUTSRAM, error::RPUTSRAM_OVERFLOW)),
        (carry, (errors::RPUTSRAM, error::RPUTSRAM_OVERFLOW)),
    ] {
        check_dropped(&mut rig, &mut users, &kernel, &message, error);
    }
}

#[test]
fn puts_to_memory_that_is_not_there_change_no_counter() {
    let (mut rig, mut users) = Rig::pair();
    let kernel = rig.kernel(1);
    users[1].client.map_remote(&mut rig.bed, 0x8000_0000, 0x1_0000);
    users[1].write64(COUNTERS, 8);

    for (base, is_range) in [(0x1000, false), (0x8000_0000, true)] {
        users[1].set(&mut rig.bed, reg::BASE_ADDRESS, base);
        users[0].inject(&mut rig.bed, 0, &WAY.put(0, 0, 0, PAYLOAD, 8));
        rig.settle();
        let state = kernel.control(&mut rig.bed, errors::MASTER_PORT0);
        assert_eq!(state != 0, is_range);
    }
    assert_eq!((users[1].read64(COUNTERS), users[1].shown(reg::DROPPED)), (8, 2));
}

#[test]
fn an_entry_can_be_taken_back() {
    let (mut rig, mut users) = Rig::pair();
    users[1].write64(COUNTERS, 8);
    users[1].set(&mut rig.bed, reg::BASE_ADDRESS, NO_BASE_ADDRESS);
    assert_eq!(users[1].get(&mut rig.bed, reg::BASE_ADDRESS), NO_BASE_ADDRESS);
    users[0].inject(&mut rig.bed, 0, &WAY.put(0, 0, 0, PAYLOAD, 8));
    rig.settle();
    assert_eq!((users[1].read64(COUNTERS), users[1].shown(reg::DROPPED)), (8, 1));
}

//! The system's FIFOs and channels beside those of users, ranges, and the kernel's registers.

use nicforge_hwi::{
    mu::{PAGE, fault, interrupt, reg, vector},
    mu_dcr::{
        IME_ENABLE, IMFIFO_RGET, IMFIFO_SYSTEM, IMFIFO_THOLD_INT_EN, MAX_USR_ADDR_RANGE, MIN_USR_ADDR_RANGE,
        RME_ENABLE, RMFIFO_EN, RMFIFO_PACKET_INT_EN, RMFIFO_SYSTEM, RMFIFO_THOLD_INT_EN, RPUTBASE_SYSTEM0,
        RPUTBASE_SYSTEM1, UPC_MU_COUNTER, USR_INJ_RANGE, counter, error, errors, severity,
    },
    mu_packet::{Descriptor, channel, fifo_map},
};
use nicforge_mu::Options;

use crate::common::{COUNTERS, DATA, MEMORY, PAYLOAD, Rig, Way, pattern};

const WAY: Way = Way { from: 0, to: 1 };

/// Returns a message of the system.
fn system(of: Descriptor) -> Descriptor {
    let mut descriptor = of;
    descriptor.packet_header.set_channel(channel::SYSTEM);
    descriptor.torus_fifo_map = fifo_map::SYSTEM;
    descriptor
}

#[test]
fn the_kernel_sends_messages_of_the_system() {
    let mut rig = Rig::new(&[2], Options::default());
    let mut kernels = [0, 1].map(|node| rig.kernel(node));
    let data = pattern(5, 2000);
    kernels[0].write(PAYLOAD, &data);
    kernels[1].write64(COUNTERS, 2000);
    kernels[0].inject(&mut rig.bed, 0, &system(WAY.put(64, 0, 0, PAYLOAD, 2000)));
    kernels[0].inject(&mut rig.bed, 1, &system(WAY.fifo(256 + 1, PAYLOAD, 100)));

    rig.until(|_| kernels[1].read64(COUNTERS) == 0 && kernels[1].packets(1).0.len() == 1);
    assert!(kernels[1].read(DATA, 2000) == data);
    assert_eq!(kernels[1].packets(1).0[0].1[..100], data[..100]);
}

#[test]
fn the_system_reaches_users_and_users_do_not_reach_the_system() {
    let mut rig = Rig::new(&[2], Options::default());
    let mut kernels = [0, 1].map(|node| rig.kernel(node));
    let mut users = [0, 1].map(|node| rig.user(node, 2));
    kernels[0].inject(&mut rig.bed, 0, &system(WAY.fifo(2 * 4 + 3, PAYLOAD, 8)));
    rig.until(|_| users[1].packets(3).0.len() == 1);

    kernels[1].write64(COUNTERS, 8);
    for (fifo, message) in [
        (0, WAY.fifo(256, PAYLOAD, 8)),
        (1, WAY.put(64, 0, 0, PAYLOAD, 8)),
        (2, WAY.get(64 * 8 + 6, PAYLOAD, 64)),
    ] {
        users[0].inject(&mut rig.bed, fifo, &message);
    }
    // The payload's entry is the user's, and the counter's is the system's.
    let mut mixed = WAY.put(2, 0, 0, PAYLOAD, 8);
    mixed.packet_header.unit.set_counter_base_address(64 * 8 + 1);
    users[0].inject(&mut rig.bed, 3, &mixed);
    rig.settle();

    assert_eq!(rig.counter(1, "dropped"), 4);
    assert!(kernels[1].packets(0).0.is_empty());
    assert_eq!((kernels[1].read64(COUNTERS), kernels[1].done(6)), (8, 0));
    for (set, bits) in [
        (errors::RCSRAM, 1 << error::RCSRAM_SYSTEM),
        (errors::RPUTSRAM, 1 << error::RPUTSRAM_SYSTEM_PAYLOAD | 1 << error::RPUTSRAM_SYSTEM_COUNTER),
        (errors::MISC, 1 << error::ICSRAM_SELECT_SYSTEM),
    ] {
        assert_eq!(kernels[1].control(&mut rig.bed, set), bits);
    }
}

#[test]
fn ranges_of_users_stop_injection_and_reception() {
    let (mut rig, mut users) = Rig::pair();
    let kernels = [0, 1].map(|node| rig.kernel(node));
    // Up to the end of the FIFOs, and without payload and data.
    for kernel in &kernels {
        kernel.set_control(&mut rig.bed, MIN_USR_ADDR_RANGE, MEMORY);
        kernel.set_control(&mut rig.bed, MAX_USR_ADDR_RANGE, MEMORY);
    }
    users[0].inject(&mut rig.bed, 0, &WAY.fifo(0, PAYLOAD, 8));
    rig.settle();
    assert_eq!(users[0].fault(0), fault::RANGE);
    let state = kernels[0].control(&mut rig.bed, errors::MASTER_PORT0);
    assert_eq!(state, 1 << error::XM_READ_RANGE);

    // The FIFOs lie in the range, so a message of their memory arrives; a put does not.
    users[1].write64(COUNTERS, 8);
    users[0].inject(&mut rig.bed, 1, &WAY.put(0, 0, 0, MEMORY, 8));
    users[0].inject(&mut rig.bed, 1, &WAY.fifo(0, MEMORY, 8));
    rig.until(|_| users[1].packets(0).0.len() == 1);
    rig.settle();
    assert_eq!((users[1].read64(COUNTERS), users[1].shown(reg::DROPPED)), (8, 1));
    let state = kernels[1].control(&mut rig.bed, errors::MASTER_PORT0);
    assert_eq!(state, 1 << error::XM_WRITE_RANGE);

    // A range for injection alone takes nothing.
    kernels[1].set_control(&mut rig.bed, USR_INJ_RANGE, 1);
    users[0].inject(&mut rig.bed, 1, &WAY.fifo(0, MEMORY, 8));
    rig.settle();
    assert_eq!(users[1].shown_reception(0, reg::FAULT), fault::RANGE);
}

#[test]
fn errors_interrupt_the_kernel_by_their_severity() {
    let (mut rig, mut users) = Rig::pair();
    let kernel = rig.kernel(0);
    for (severity, vector, error) in [
        (severity::NONCRITICAL, vector::NON_CRITICAL, error::MCSRAM_NO_PAYLOAD),
        (severity::CRITICAL, vector::CRITICAL, error::MCSRAM_GET_LENGTH),
        (severity::MACHINE_CHECK, vector::MACHINE_CHECK, error::MCSRAM_ATOMIC_LENGTH),
    ] {
        let before = kernel.control(&mut rig.bed, errors::MCSRAM + errors::CONTROL_LOW);
        let control = before | severity << (2 * error);
        kernel.set_control(&mut rig.bed, errors::MCSRAM + errors::CONTROL_LOW, control);
        let message = match error {
            error::MCSRAM_NO_PAYLOAD => WAY.put(0, 0, 0, PAYLOAD, 0),
            error::MCSRAM_GET_LENGTH => WAY.get(6, PAYLOAD, 65),
            _ => WAY.fifo(0, nicforge_hwi::mu::atomic::INDICATOR, 1),
        };
        users[0].inject(&mut rig.bed, usize::from(vector) - 4, &message);
        rig.until(|_| kernel.interrupts[usize::from(vector)].get() == 1);
    }
    // A masked error raises nothing.
    users[0].inject(&mut rig.bed, 4, &WAY.fifo(0, 1 << 40, 8));
    rig.settle();
    assert_eq!(kernel.interrupts.iter().map(|count| count.get()).sum::<u64>(), 3);
}

#[test]
fn the_kernel_sees_and_sets_the_enables_of_subgroups() {
    let mut rig = Rig::new(&[2], Options::default());
    let kernel = rig.kernel(0);
    let users = [0, 2].map(|subgroup| rig.user(0, subgroup));

    assert_eq!(kernel.control(&mut rig.bed, RMFIFO_EN), 0x0f0f);
    assert_eq!(kernel.control(&mut rig.bed, RMFIFO_EN + 16 * 8), 0x000f);
    assert_eq!(kernel.control(&mut rig.bed, IMFIFO_RGET), 0x0040_0040);

    kernel.set_control(&mut rig.bed, RMFIFO_EN, 0xf2f1);
    assert_eq!(users.each_ref().map(|user| user.get(&mut rig.bed, reg::RECEPTION_ENABLE)), [1, 2]);
    kernel.set_control(&mut rig.bed, IMFIFO_RGET, 0xff03_ff81);
    assert_eq!(users.each_ref().map(|user| user.get(&mut rig.bed, reg::REMOTE_GET)), [0x81, 3]);

    kernel.set_control(&mut rig.bed, IMFIFO_THOLD_INT_EN, 0x0001_0080);
    kernel.set_control(&mut rig.bed, RMFIFO_THOLD_INT_EN, 0x0102);
    kernel.set_control(&mut rig.bed, RMFIFO_PACKET_INT_EN, 0x0804);
    let enabled = users.each_ref().map(|user| user.get(&mut rig.bed, reg::INTERRUPT_ENABLE));
    assert_eq!(enabled, [0x80 | 0x200 | 0x4000, 1 | 0x100 | 0x8000]);
    assert_eq!(kernel.control(&mut rig.bed, IMFIFO_THOLD_INT_EN), 0x0001_0080);
    assert_eq!(enabled[0] & !interrupt::ALL, 0);

    let fixed = [IMFIFO_SYSTEM, RMFIFO_SYSTEM, RPUTBASE_SYSTEM0, RPUTBASE_SYSTEM1];
    assert_eq!(fixed.map(|register| kernel.control(&mut rig.bed, register)), [0, 0, 0, 0xf]);
    assert_eq!(kernel.control(&mut rig.bed, IMFIFO_SYSTEM + 16 * 8), 0xffff_ffff);
}

#[test]
fn a_reception_fifo_that_the_kernel_has_disabled_stays_so() {
    let (mut rig, mut users) = Rig::pair();
    let kernel = rig.kernel(1);
    // Of the enabled FIFOs 0 to 3, the kernel disables FIFO 2.
    kernel.set_control(&mut rig.bed, RMFIFO_EN, 0xb);
    users[1].set(&mut rig.bed, reg::RECEPTION_ENABLE, 0xf);
    assert_eq!(users[1].get(&mut rig.bed, reg::RECEPTION_ENABLE), 0xb);
    users[0].inject(&mut rig.bed, 0, &WAY.fifo(2, PAYLOAD, 8));
    rig.until(|_| users[1].shown(reg::DROPPED) == 1);

    // The next client can't enable it either, and neither does a write of the kernel for others.
    users[1].client.detach(&mut rig.bed);
    users[1] = rig.user(1, 0);
    assert_eq!(users[1].get(&mut rig.bed, reg::RECEPTION_ENABLE), 0xb);
    kernel.set_control(&mut rig.bed, RMFIFO_EN, 0xa);
    users[1].set(&mut rig.bed, reg::RECEPTION_ENABLE, 0xf);
    assert_eq!(users[1].get(&mut rig.bed, reg::RECEPTION_ENABLE), 0xa);

    // After the kernel has enabled a FIFO again, the user may disable and enable it.
    kernel.set_control(&mut rig.bed, RMFIFO_EN, 0xe);
    for bits in [0, 0xf] {
        users[1].set(&mut rig.bed, reg::RECEPTION_ENABLE, bits);
    }
    assert_eq!(users[1].get(&mut rig.bed, reg::RECEPTION_ENABLE), 0xe);

    rig.bed.reset_function(rig.functions[1]).unwrap();
    users[1].client.enable_bus_master(&mut rig.bed);
    users[1].restart_ring();
    users[1].set_up(&mut rig.bed);
    assert_eq!(users[1].get(&mut rig.bed, reg::RECEPTION_ENABLE), 0xf);
}

#[test]
fn the_kernel_can_permit_a_fifo_of_a_subgroup_without_client() {
    let (mut rig, [_, receiver]) = Rig::pair();
    let kernel = rig.kernel(1);
    kernel.set_control(&mut rig.bed, RMFIFO_EN, 0);
    receiver.client.detach(&mut rig.bed);
    kernel.set_control(&mut rig.bed, RMFIFO_EN, 0x3);
    let next = rig.user(1, 0);
    assert_eq!(next.get(&mut rig.bed, reg::RECEPTION_ENABLE), 0x3);
}

#[test]
fn engines_that_the_kernel_has_stopped_go_on_later() {
    let (mut rig, mut users) = Rig::pair();
    let kernels = [0, 1].map(|node| rig.kernel(node));
    kernels[0].set_control(&mut rig.bed, IME_ENABLE, 0);
    kernels[1].set_control(&mut rig.bed, RME_ENABLE, 0);

    users[0].inject(&mut rig.bed, 0, &WAY.fifo(0, PAYLOAD, 8));
    rig.settle();
    assert_eq!(users[0].done(0), 0);

    kernels[0].set_control(&mut rig.bed, IME_ENABLE, 0xffff);
    rig.until(|_| users[0].done(0) == 1);
    rig.settle();
    assert!(users[1].packets(0).0.is_empty());
    kernels[1].set_control(&mut rig.bed, RME_ENABLE, 0xffff);
    rig.until(|_| users[1].packets(0).0.len() == 1);
}

#[test]
fn performance_counters_can_be_read_and_set() {
    let (mut rig, mut users) = Rig::pair();
    let kernel = rig.kernel(0);
    users[0].inject(&mut rig.bed, 0, &WAY.fifo(0, PAYLOAD, 1000));
    rig.until(|_| users[1].packets(0).0.len() == 2);

    let counters = [counter::DESCRIPTORS, counter::PACKETS_SENT, counter::BYTES_SENT];
    let of = |counter: usize| UPC_MU_COUNTER + 8 * counter as u64;
    assert_eq!(counters.map(|counter| kernel.control(&mut rig.bed, of(counter))), [1, 2, 1000]);
    kernel.set_control(&mut rig.bed, of(counter::BYTES_SENT), 0);
    assert_eq!(kernel.control(&mut rig.bed, of(counter::BYTES_SENT)), 0);
}

#[test]
fn the_kernel_has_four_subgroups_on_four_pages() {
    let mut rig = Rig::new(&[2], Options::default());
    let kernel = rig.kernel(0);
    for page in 0..4 {
        kernel.client.write64(&mut rig.bed, 0, page * PAGE + reg::INJECTION_THRESHOLD, 100 + page);
    }
    for page in 0..4 {
        let value = kernel.client.read64(&mut rig.bed, 0, page * PAGE + reg::INJECTION_THRESHOLD);
        assert_eq!(value, 100 + page);
    }
}

#[test]
fn messages_of_the_system_go_before_those_of_users() {
    const BYTES: u64 = 2 << 20;
    let mut rig = Rig::new(&[2], Options::default());
    let (mut kernel, mut user) = (rig.kernel(0), rig.user(0, 0));
    user.set(&mut rig.bed, reg::HIGH_PRIORITY, 1);
    kernel.set_control(&mut rig.bed, IME_ENABLE, 0);

    // Prefetches take any engine. The user's is there first.
    let mut prefetch = WAY.fifo(0, PAYLOAD, BYTES as usize);
    prefetch.prefetch_only = 1;
    user.inject(&mut rig.bed, 0, &prefetch);
    rig.settle();
    kernel.inject(&mut rig.bed, 0, &prefetch);
    rig.settle();
    assert_eq!(rig.counter(0, "prefetched"), 0);

    // In each step the user has one of many packets.
    kernel.set_control(&mut rig.bed, IME_ENABLE, u16::MAX.into());
    rig.until(|_| kernel.done(0) == 1);
    let of_user = rig.counter(0, "prefetched") - BYTES;
    assert!(user.done(0) == 0 && of_user <= BYTES / 16, "{of_user} bytes of the user's went before");
    rig.until(|_| user.done(0) == 1);
}

//! Interrupts and watermarks.

use nicforge_hwi::{
    torus::{mirror, reg, vector},
    torus_dcr as dcr,
};

use crate::common::{Rig, payload};

#[test]
fn a_packet_above_the_watermark_interrupts_once() {
    let mut rig = Rig::torus([2, 1, 1]);
    let mut clients = rig.all_cores();
    let counts = clients[1].id.bind_msix(&mut rig.machine);
    let received = &counts[usize::from(vector::RECEPTION)];
    let header = rig.to(1).deterministic();

    rig.send(&mut clients[0], header, &payload(1, 1));
    assert_eq!(received.get(), 0, "the interrupt is not enabled");
    clients[1].id.write32(&mut rig.machine, 0, reg::INTERRUPT_ENABLE, 1 << vector::RECEPTION);
    assert_eq!(received.get(), 1, "enabling raises what holds already");

    clients[1].receive().unwrap();
    rig.send(&mut clients[0], header, &payload(2, 1));
    rig.send(&mut clients[0], header, &payload(3, 1));
    assert_eq!(received.get(), 2, "the condition has begun to hold once");
}

#[test]
fn watermarks_are_the_kernels() {
    let mut rig = Rig::torus([2, 1, 1]);
    let mut clients = rig.all_cores();
    let kernel = rig.kernel(1);
    let offset = reg::DCR + 4 * u64::from(dcr::CTRL_WM_G0);
    let four_chunks = 4 << dcr::watermark::RECEPTION;

    clients[1].id.write32(&mut rig.machine, 0, offset, four_chunks);
    assert_eq!(kernel.read32(&mut rig.machine, 0, offset), 0, "a core can't write it");
    kernel.write32(&mut rig.machine, 0, offset, four_chunks);
    assert_eq!(clients[1].id.read32(&mut rig.machine, 0, offset), four_chunks);

    let header = rig.to(1).deterministic();
    rig.send(&mut clients[0], header, &payload(1, 4));
    let id = clients[1].id;
    let status = |rig: &mut Rig| id.read32(&mut rig.machine, 0, reg::INTERRUPT_STATUS);
    assert_eq!(status(&mut rig), 0);
    rig.send(&mut clients[0], header, &payload(1, 1));
    assert_eq!(status(&mut rig), 1 << vector::RECEPTION);

    // Fewer than 2 chunks in injection FIFO 1.
    kernel.write32(&mut rig.machine, 0, offset, 2 << (dcr::watermark::INJECTION - 5) | 0x1f << 27);
    assert_eq!(status(&mut rig), 1 << vector::INJECTION);
}

#[test]
fn errors_interrupt() {
    let mut rig = Rig::torus([2, 1, 1]);
    let mut client = rig.core(0, 0);
    let counts = client.id.bind_msix(&mut rig.machine);
    client.id.write32(&mut rig.machine, 0, reg::INTERRUPT_ENABLE, u32::MAX);
    assert_eq!(client.id.read32(&mut rig.machine, 0, reg::INTERRUPT_ENABLE), 0b111);

    for errors in 1..=3 {
        let nowhere = nicforge_hwi::torus::PacketHeader::to([9, 0, 0], 0);
        rig.send(&mut client, nowhere, &payload(1, 1));
        assert_eq!(counts[usize::from(vector::ERROR)].get(), errors);
    }
}

#[test]
fn errors_that_follow_each_other_at_once_interrupt_each() {
    let mut rig = Rig::torus([2, 1, 1]);
    let client = rig.core(0, 0);
    let counts = client.id.bind_msix(&mut rig.machine);
    let errors = &counts[usize::from(vector::ERROR)];
    client.id.write32(&mut rig.machine, 0, reg::INTERRUPT_ENABLE, 1 << vector::ERROR);

    // Nothing but the reads' own end examines the conditions between them.
    for _ in 0..2 {
        assert_eq!(client.id.read::<16>(&mut rig.machine, 0, reg::R0), [0xff; 16]);
    }
    assert_eq!(errors.get(), 2);
    rig.run();
    client.id.write32(&mut rig.machine, 0, reg::INJECTION_TAIL, 33);
    rig.run();
    assert_eq!((errors.get(), client.mirrored(mirror::ERRORS)), (3, 3));
}

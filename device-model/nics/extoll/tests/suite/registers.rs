//! Declared registers.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::Ordering;

use nicforge_core::{ids::AttachmentId, register::show};
use nicforge_hwi::extoll::{error, mirror, reg};
use nicforge_test_kit::Client;

use crate::common::Rig;

#[test]
fn declared_registers_show_what_software_reads() {
    let mut rig = Rig::pair();
    let user = rig.receiver(0, 1, 64);
    let admin = Client::attach(&mut rig.machine, user.function, AttachmentId(rig.vpids));

    let user = Client::new(user.function, user.attachment);
    let compared = user.compare_peeks(&mut rig.machine);
    for name in
        ["IDENTITY", "VELO_RING_BASE", "VELO_TAKEN", "RMA_QUEUE_ENABLE", "INTERRUPT_ENABLE", "ATU_STATUS"]
    {
        assert!(compared.contains(&name), "{name} is not in {compared:?}");
    }
    assert!(!compared.contains(&"WATCHDOG"), "only the admin has it: {compared:?}");

    let compared = admin.compare_peeks(&mut rig.machine);
    for name in ["WATCHDOG", "SELECTED_ERRORS", "LINK_STATE", "LINK_RETRIES", "ROUTE"] {
        assert!(compared.contains(&name), "{name} is not in {compared:?}");
    }
}

#[test]
fn a_peek_that_a_read_would_refuse_counts_no_error() {
    let mut rig = Rig::pair();
    let user = rig.attach(0, 1);
    let client = Client::new(user.function, user.attachment);
    let errors = client.memory(&rig.machine, 2).u64(mirror::ERRORS).unwrap();

    client.compare_peeks(&mut rig.machine);
    assert_eq!(errors.load(Ordering::Relaxed), 0);

    client.read64(&mut rig.machine, 0, reg::WATCHDOG);
    assert_eq!(errors.load(Ordering::Relaxed), 1);
    let last = client.read64(&mut rig.machine, 2, mirror::LAST_ERROR);
    let last_bytes = last.to_le_bytes();
    let shown = show(rig.machine.registers(client.function), 2, mirror::LAST_ERROR, &last_bytes);
    assert_eq!(last & 0xff, u64::from(error::NOT_PERMITTED));
    assert!(shown.to_string().ends_with(" CODE=not permitted AT=0x2000"), "{shown}");
}

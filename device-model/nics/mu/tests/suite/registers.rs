//! Accesses to registers: widths, rights, and what they change.

use nicforge_core::register::show;
use nicforge_hwi::{
    mu::{DEVICE_CONTROL, NO_BASE_ADDRESS, PAGE, SUBGROUPS, atomic, interrupt, reg},
    mu_dcr::{XS_ERR_INFO, error, errors},
};
use nicforge_mu::Options;
use nicforge_test_kit::LogLines;

use crate::common::{DATA, Rig};

#[test]
fn accesses_of_other_widths_are_rejected() {
    let (mut rig, [user, _]) = Rig::pair();
    let kernel = rig.kernel(0);
    let before = user.get(&mut rig.bed, reg::BASE_ADDRESS);

    user.client.write32(&mut rig.bed, 0, reg::BASE_ADDRESS, 7);
    user.client.write16(&mut rig.bed, 0, reg::BASE_ADDRESS, 7);
    user.client.write8(&mut rig.bed, 0, reg::BASE_ADDRESS, 7);
    user.client.write(&mut rig.bed, 0, reg::BASE_ADDRESS, &[7; 16]);
    user.client.write(&mut rig.bed, 0, reg::BASE_ADDRESS + 4, &[7; 8]);
    assert_eq!(user.client.read32(&mut rig.bed, 0, reg::BASE_ADDRESS), u32::MAX);

    assert_eq!(user.get(&mut rig.bed, reg::BASE_ADDRESS), before);
    assert_eq!(kernel.control(&mut rig.bed, errors::SLAVE_PORT), 1 << error::XS_SIZE);
    assert_eq!(kernel.control(&mut rig.bed, XS_ERR_INFO), reg::BASE_ADDRESS);
    assert_eq!(rig.counter(0, "refused"), 6);
}

#[test]
fn a_user_reaches_no_other_page() {
    let (mut rig, [user, _]) = Rig::pair();
    let kernel = rig.kernel(0);
    for offset in [PAGE, 2 * PAGE + reg::INJECTION_THRESHOLD, DEVICE_CONTROL, DEVICE_CONTROL + PAGE] {
        user.client.write64(&mut rig.bed, 0, offset, 1);
        assert_eq!(user.client.read64(&mut rig.bed, 0, offset), u64::MAX, "{offset:#x}");
    }
    assert_eq!(kernel.control(&mut rig.bed, errors::SLAVE_PORT), 1 << error::XS_ADDRESS);
    assert_eq!(kernel.client.read64(&mut rig.bed, 0, 2 * PAGE + reg::INJECTION_THRESHOLD), 0);
}

#[test]
fn registers_that_are_only_read_or_only_written_say_so() {
    let (mut rig, [user, _]) = Rig::pair();
    let kernel = rig.kernel(0);
    let state = |rig: &mut Rig| {
        let state = kernel.control(&mut rig.bed, errors::MMREGS);
        kernel.set_control(&mut rig.bed, errors::MMREGS, u64::MAX);
        state
    };

    for register in
        [reg::IS_ENABLED, reg::INTERRUPT_STATUS, reg::BARRIER_STATUS, reg::FAULT, reg::DESCRIPTOR_COUNT]
    {
        user.set(&mut rig.bed, register, 1);
        assert_eq!(state(&mut rig), 1 << error::MMREGS_WRITE, "{register:#x}");
    }
    for register in [reg::ENABLE, reg::DISABLE, reg::CLEAR_INTERRUPT] {
        assert_eq!(user.get(&mut rig.bed, register), u64::MAX);
        assert_eq!(state(&mut rig), 1 << error::MMREGS_READ, "{register:#x}");
    }
    for (register, value) in [
        (reg::ENABLE, 0x100),
        (reg::RECEPTION_ENABLE, 0x10),
        (reg::INTERRUPT_ENABLE, interrupt::ALL + 1),
        (reg::BASE_ADDRESS, atomic::INDICATOR << 1),
        (reg::BARRIER_CONTROL, 2),
    ] {
        user.set(&mut rig.bed, register, value);
        assert_eq!(state(&mut rig), 1 << error::MMREGS_RANGE, "{register:#x}");
    }
}

#[test]
fn an_enabled_fifo_takes_a_new_tail_or_head_alone() {
    let (mut rig, [user, _]) = Rig::pair();
    let kernel = rig.kernel(0);
    for register in [reg::START, reg::SIZE_1, reg::HEAD] {
        let before = user.get(&mut rig.bed, reg::INJECTION + register);
        user.set(&mut rig.bed, reg::INJECTION + register, DATA);
        assert_eq!(user.get(&mut rig.bed, reg::INJECTION + register), before);
    }
    for register in [reg::START, reg::SIZE_1, reg::TAIL] {
        let before = user.get(&mut rig.bed, reg::RECEPTION + register);
        user.set(&mut rig.bed, reg::RECEPTION + register, DATA);
        assert_eq!(user.get(&mut rig.bed, reg::RECEPTION + register), before);
    }
    // There is nothing in the reception FIFO, so its head can't move.
    let head = user.get(&mut rig.bed, reg::RECEPTION + reg::HEAD);
    user.set(&mut rig.bed, reg::RECEPTION + reg::HEAD, head + 32);
    assert_eq!(user.get(&mut rig.bed, reg::RECEPTION + reg::HEAD), head);

    assert_eq!(kernel.control(&mut rig.bed, errors::ICSRAM), 1 << error::ICSRAM_RANGE);
    assert_eq!(kernel.control(&mut rig.bed, errors::RCSRAM), 1 << error::RCSRAM_POINTER);
    user.set(&mut rig.bed, reg::INJECTION + reg::FREE_SPACE, 1);
    let both = 1 << error::ICSRAM_RANGE | 1 << error::ICSRAM_FREE_SPACE;
    assert_eq!(kernel.control(&mut rig.bed, errors::ICSRAM), both);
}

#[test]
fn the_mirror_names_the_node_and_counts_starts() {
    let mut rig = Rig::new(&[2, 3], Options::default());
    let user = rig.user(4, 1);
    assert_eq!(user.shown(reg::NODE), 4 | 6 << 32);
    assert_eq!(user.shown(reg::COORDINATES), 2 << 18);
    assert_eq!(user.shown(reg::LAST_COORDINATES), 1 << 24 | 2 << 18);
    assert_eq!(user.shown(reg::STARTS), 1);

    rig.bed.reset_attachment(user.client.function, user.client.attachment).unwrap();
    assert_eq!(user.shown(reg::STARTS), 2);
    assert_eq!(user.get(&mut rig.bed, reg::IS_ENABLED), 0);
    assert_eq!(user.get(&mut rig.bed, reg::BASE_ADDRESS), NO_BASE_ADDRESS);
}

#[test]
fn a_node_has_as_many_attachments_as_the_options_say() {
    let rig = Rig::new(&[2], Options { subgroups: 64, ..Options::default() });
    let spec = rig.bed.spec(rig.functions[0]).unwrap();
    let names: Vec<_> = spec.attachments.iter().map(|attachment| attachment.name.as_str()).collect();
    assert_eq!((names[0], names[1], names[64], names.len()), ("kernel", "s0", "s63", 65));
    assert_eq!(SUBGROUPS, 68);
}

#[test]
fn declared_registers_show_what_software_reads() {
    let (mut rig, [user, _]) = Rig::pair();
    let kernel = rig.kernel(0);
    // An access that is refused, which leaves its error behind.
    user.client.read32(&mut rig.bed, 0, reg::BASE_ADDRESS);

    let compared = user.client.compare_peeks(&mut rig.bed);
    for name in ["INJ_START", "REC_FREE_SPACE", "IS_ENABLED", "BASE_ADDRESS", "BARRIER_STATUS", "NODE"] {
        assert!(compared.contains(&name), "{name} is not in {compared:?}");
    }
    assert!(!compared.contains(&"SYS_BARRIER"), "only the kernel has it: {compared:?}");

    let compared = kernel.client.compare_peeks(&mut rig.bed);
    for name in
        ["RMFIFO_EN", "MAX_USR_ADDR_RANGE", "SLAVE_PORT_STATE", "XS_ERR_INFO", "ND_COORDS", "ND_SE_TOKENS"]
    {
        assert!(compared.contains(&name), "{name} is not in {compared:?}");
    }
    let state = kernel.control(&mut rig.bed, errors::SLAVE_PORT).to_le_bytes();
    let shown = show(rig.bed.registers(user.client.function), 0, DEVICE_CONTROL + errors::SLAVE_PORT, &state);
    assert_eq!(shown.to_string(), "SLAVE_PORT_STATE 0x0000000000400000 SIZE");
}

#[test]
fn refused_access_logs_its_node_attachment_register_value_and_rule() {
    let (mut rig, [user, _]) = Rig::pair();

    let lines = LogLines::of(|| {
        user.set(&mut rig.bed, reg::IS_ENABLED, 3);
        user.client.write32(&mut rig.bed, 0, reg::BASE_ADDRESS, 7);
        rig.settle();
    });

    let line = |offset: u64, value: u64, rule: &str| {
        format!("refused node=bgq0 attachment=s0 register=BAR0+{offset:#x} value={value:#x} rule={rule}")
    };
    let expected = [
        line(reg::IS_ENABLED, 3, "the register can only be read"),
        line(reg::BASE_ADDRESS, 7, "a register is accessed by 8 aligned bytes"),
    ];
    assert_eq!(lines, expected);
}

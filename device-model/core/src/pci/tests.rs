//! Tests of configuration space and the MSI-X table, from a client's view.

use nicforge_hwi::pci::{AttachmentCapability, CAP_ID_VENDOR};
use proptest::prelude::*;
use zerocopy::FromBytes;

use super::*;
use crate::spec::{
    AttachmentSpec, BarKind, BarSpec, BarWindow, FunctionSpec, Identity, NicSizes, VendorCapability,
};

const VECTORS: u16 = 5;

// Offsets in the header.
const COMMAND: u64 = 0x04;
const STATUS: u64 = 0x06;
const BAR0: u64 = 0x10;

// Capability IDs.
const POWER: u8 = 0x01;
const EXPRESS: u8 = 0x10;
const MSIX: u8 = 0x11;

// Offsets in the PCI Express capability.
const DEVICE_CONTROL: u64 = 0x08;
const DEVICE_STATUS: u64 = 0x0a;
const LINK_CONTROL: u64 = 0x10;

/// Bytes of an MSI-X table entry.
const ENTRY: u64 = 16;

/// Returns a NIC with BARs 0 to 2, a 64-bit BAR 3 of 8 GiB, and I/O ports in BAR 5.
fn nic() -> FunctionSpec {
    let identity = Identity {
        vendor: 0x1efc,
        device: 0xb601,
        subsystem_vendor: 0x1efc,
        subsystem: 0x0042,
        class: 0x02_80_01,
        revision: 7,
    };

    let attachments = vec![AttachmentSpec { name: "only".into(), group: 0 }];
    let mut spec = FunctionSpec::nic(
        identity,
        attachments,
        NicSizes { register_bytes: 0x1000, vectors: VECTORS, ring_cells: 64, ..NicSizes::default() },
    );
    let wide = BarKind::Memory64 { prefetchable: true };
    spec.bars[3] = Some(BarSpec { size: 8 << 30, kind: wide, ..BarSpec::trapped(0) });
    spec.bars[5] = Some(BarSpec::io(32));
    spec.validate().unwrap();

    spec
}

/// Returns the smallest function: one BAR, no interrupts, no rings.
fn plain() -> FunctionSpec {
    let mut bars: [Option<BarSpec>; 6] = Default::default();
    bars[0] = Some(BarSpec::trapped(16));
    FunctionSpec { bars, msix: None, intx: false, rings: None, ..nic() }
}

/// Reads `N` bytes of configuration space.
fn get<const N: usize>(config: &ConfigSpace, at: u64) -> [u8; N] {
    let mut out = [0; N];
    config.read(at, &mut out);
    out
}

fn get16(config: &ConfigSpace, at: u64) -> u16 {
    u16::from_le_bytes(get(config, at))
}

fn get32(config: &ConfigSpace, at: u64) -> u32 {
    u32::from_le_bytes(get(config, at))
}

/// Returns the ids and offsets of the capability list, read as software walks it. At most 48 fit.
fn capabilities(config: &ConfigSpace) -> Vec<(u8, u64)> {
    let mut found = Vec::new();
    let mut at = get::<1>(config, 0x34)[0];
    while at != 0 && found.len() < 48 {
        let [id, next] = get(config, at.into());
        found.push((id, u64::from(at)));
        at = next;
    }

    found
}

/// Returns the offset of the first capability with this ID.
fn capability(config: &ConfigSpace, id: u8) -> u64 {
    capabilities(config).iter().find(|&&(other, _)| other == id).unwrap().1
}

/// Writes ones to a BAR register and reads it back, as software does to learn the BAR's size.
fn size_bar(config: &mut ConfigSpace, index: u64) -> u32 {
    config.write(BAR0 + 4 * index, &[0xff; 4]);
    get32(config, BAR0 + 4 * index)
}

#[test]
fn header_shows_the_identity_of_the_spec() {
    let config = ConfigSpace::new(&nic());

    assert_eq!(get32(&config, 0x00), 0xb601_1efc);
    assert_eq!(get32(&config, 0x08), 0x0280_0107);
    assert_eq!(get32(&config, 0x2c), 0x0042_1efc);
    assert_eq!(get::<1>(&config, 0x0e), [0], "header type 0, one function");
    assert_eq!(get::<1>(&config, 0x3d), [1], "INTA");
    assert_eq!(get32(&config, 0x30), 0, "no expansion ROM");
}

#[test]
fn capability_list_is_terminated_aligned_and_disjoint() {
    let config = ConfigSpace::new(&nic());

    let list = capabilities(&config);

    let ids: Vec<u8> = list.iter().map(|&(id, _)| id).collect();

    assert_eq!(ids, [POWER, EXPRESS, MSIX, CAP_ID_VENDOR]);

    let length = |id| match id {
        POWER => 8,
        EXPRESS => 0x3c,
        MSIX => 12,
        _ => 28,
    };

    let mut free = 0x40;
    for (id, at) in list {
        assert_eq!(at % 4, 0);
        assert!(at >= free, "capability {id:#x} at {at:#x} overlaps the one before");
        free = at + length(id);
    }

    assert!(free <= 0x100);
}

#[test]
fn vendor_capabilities_fill_the_space_behind_those_of_the_core() {
    // Without rings, the core has no vendor capability of its own, which takes 28 bytes.
    for (rings, space) in [(nic().rings, 84), (None, 112)] {
        let vendor = |length: usize| VendorCapability { content: vec![0xab; length - 3], window: None };
        let capabilities = vec![vendor(56), vendor(space - 56)];
        let spec = FunctionSpec { rings, capabilities, ..nic() };
        spec.validate().unwrap();

        let config = ConfigSpace::new(&spec);
        let list = super::tests::capabilities(&config);
        let [.., (_, first), (id, second)] = list[..] else { panic!("too few capabilities") };

        assert_eq!((id, second), (CAP_ID_VENDOR, 0x100 - (space as u64 - 56)));
        assert_eq!(get(&config, first + 2), [56, 0xab]);
        assert_eq!(get(&config, 0xfe), [0xab; 2]);
        assert_eq!(get16(&config, 0x100), 0x0003, "the extended capabilities stay");
    }
}

#[test]
fn window_names_an_access_by_its_registers() {
    let window = BarWindow { bar: 4, offset: 8, length: 12, data: 16 };
    let capability = VendorCapability { content: vec![0; 17], window: Some(window) };
    let spec = FunctionSpec { capabilities: vec![capability], ..nic() };
    spec.validate().unwrap();
    let mut config = ConfigSpace::new(&spec);
    let at = capabilities(&config).last().unwrap().1;
    let set_window = |config: &mut ConfigSpace, bar: u8, offset: u32, length: u32| {
        config.write(at + 4, &[bar]);
        config.write(at + 8, &offset.to_le_bytes());
        config.write(at + 12, &length.to_le_bytes());
        config.window_access(at + 16, 4).map(|access| (access.bar, access.offset, access.length))
    };

    assert_eq!(set_window(&mut config, 2, 0x1234, 4), Some((2, 0x1234, 4)));
    assert_eq!(set_window(&mut config, 5, 0xffff_ffff, 1), Some((5, 0xffff_ffff, 1)));
    for (bar, offset, length) in [(6, 0, 4), (0, 2, 4), (0, 1, 2), (0, 0, 0), (0, 0, 3), (0, 0, 8)] {
        assert_eq!(set_window(&mut config, bar, offset, length), None);
    }

    set_window(&mut config, 0, 0, 2);
    let is_access = |offset: u64, length| config.window_access(offset, length).is_some();
    assert!(is_access(at + 16, 4) && is_access(at + 18, 2) && is_access(at + 19, 1));
    assert!(!is_access(at + 12, 5) && !is_access(at + 19, 2) && !is_access(at, 64));
    assert!(!is_access(at + 12, 4) && !is_access(at + 20, 4) && !is_access(at + 16, 0));
    assert!(!is_access(u64::MAX, usize::MAX));

    config.set_window_data([1, 2, 3, 4]);
    assert_eq!(get(&config, at + 16), config.window_data());
}

#[test]
fn capability_list_of_a_plain_function_has_power_and_express_only() {
    let config = ConfigSpace::new(&plain());

    let ids: Vec<u8> = capabilities(&config).iter().map(|&(id, _)| id).collect();

    assert_eq!(ids, [POWER, EXPRESS]);
    assert!(!config.msix_enabled());
}

#[test]
fn extended_capability_list_is_the_serial_number_alone() {
    let config = ConfigSpace::new(&nic());

    let header = get32(&config, 0x100);

    assert_eq!(header & 0xffff, 0x0003);
    assert_eq!(header >> 16 & 0xf, 1, "version");
    assert_eq!(header >> 20, 0, "no next one");
    assert_eq!(get32(&config, 0x108) >> 24 & 0x03, 0x02, "locally administered, one device");
}

#[test]
fn attachment_capability_matches_the_spec() {
    let spec = nic();
    let rings = spec.rings.unwrap();
    let config = ConfigSpace::new(&spec);

    let bytes = get::<28>(&config, capability(&config, CAP_ID_VENDOR));
    let capability = AttachmentCapability::read_from_bytes(&bytes).unwrap();

    assert_eq!((capability.len, capability.kind, capability.version), (28, 1, 1));
    assert_eq!(
        (capability.control_bar, capability.control_offset),
        (rings.control_bar, rings.control_offset)
    );
    assert_eq!((capability.mirror_bar, capability.mirror_offset), (rings.mirror_bar, 0));
    assert_eq!((capability.ring_bar, capability.ring_offset), (rings.bar, rings.offset));
    assert_eq!((capability.ring_cells, capability.ring_count), (rings.cells, rings.count));
    assert_eq!(1 << capability.max_data_log2, nicforge_hwi::posted::MAX_DATA);
    assert_eq!(capability.memory_bars, 0b110, "windows and mirror");
    assert_eq!(capability.mirrored_bars, 0b100);
}

#[test]
fn msix_capability_says_where_the_table_is() {
    let spec = nic();
    let msix = spec.msix.unwrap();
    let config = ConfigSpace::new(&spec);

    let at = capability(&config, MSIX);

    assert_eq!(get16(&config, at + 2), VECTORS - 1);
    assert_eq!(get32(&config, at + 4), msix.table);
    assert_eq!(get32(&config, at + 8), msix.pba);
}

#[test]
fn express_capability_is_a_version_2_endpoint_that_can_be_reset() {
    let config = ConfigSpace::new(&nic());

    let at = capability(&config, EXPRESS);

    assert_eq!(get16(&config, at + 2) & 0xf, 2);

    let device = get32(&config, at + 4);
    assert_ne!(device & 1 << 28, 0, "function-level reset");
    assert_ne!(device & 1 << 15, 0, "role-based error reporting");

    let (link, state) = (get32(&config, at + 0x0c), u32::from(get16(&config, at + 0x12)));
    assert_eq!(link & 0x3ff, state & 0x3ff, "the link runs at its best speed and width");

    let speeds = get32(&config, at + 0x2c);
    assert_ne!(speeds & 1 << (link & 0xf), 0, "the best speed is among those supported");
}

#[test]
fn only_a_function_with_io_ports_is_a_legacy_endpoint() {
    let kind = |spec| {
        let config = ConfigSpace::new(&spec);
        get16(&config, capability(&config, EXPRESS) + 2) >> 4
    };

    assert_eq!((kind(plain()), kind(nic())), (0, 1));
}

#[test]
fn bar_sizing_gives_size_and_kind_of_each_bar() {
    let spec = nic();
    let mut config = ConfigSpace::new(&spec);

    let sized: Vec<u32> = (0..6).map(|index| size_bar(&mut config, index)).collect();

    let mask = |index: usize| !(spec.bars[index].as_ref().unwrap().size as u32 - 1);

    assert_eq!(sized[0], mask(0));
    assert_eq!(sized[1], mask(1), "32 bits, not prefetchable");
    assert_eq!(sized[3], 0xc, "64 bits, prefetchable");
    assert_eq!(sized[4], 0xffff_fffe, "the upper half of 8 GiB");
    assert_eq!(sized[5], 0xffff_ffe1, "32 I/O ports");
}

#[test]
fn missing_bar_reads_as_zero_after_any_write() {
    let mut config = ConfigSpace::new(&plain());

    let sized: Vec<u32> = (0..6).map(|index| size_bar(&mut config, index)).collect();

    assert_eq!(sized, [0xffff_fff0, 0, 0, 0, 0, 0]);
    assert_eq!(config.bar_address(1), None);
    assert_eq!(config.bar_address(6), None);
}

#[test]
fn bar_address_joins_the_halves_of_a_64_bit_bar() {
    let mut config = ConfigSpace::new(&nic());

    config.write(BAR0 + 12, &0x38_0000_0000_u64.to_le_bytes());
    config.write(BAR0 + 20, &0xe020_u32.to_le_bytes());

    assert_eq!(config.bar_address(3), Some(0x38_0000_0000));
    assert_eq!(config.bar_address(4), None);
    assert_eq!(config.bar_address(5), Some(0xe020));
}

#[test]
fn command_bits_are_seen_only_in_d0() {
    let mut config = ConfigSpace::new(&nic());
    let power = capability(&config, POWER) + 4;

    config.write(COMMAND, &0x0007_u16.to_le_bytes());
    let on = (config.io_enabled(), config.memory_enabled(), config.bus_master(), config.power_state());
    config.write(power, &[3]);
    let asleep = (config.io_enabled(), config.memory_enabled(), config.bus_master(), config.power_state());
    config.write(power, &[0]);

    assert_eq!(on, (true, true, true, PowerState::D0));
    assert_eq!(asleep, (false, false, false, PowerState::D3Hot));
    assert!(config.bus_master(), "no soft reset: the command register kept its value");
}

#[test]
fn power_state_that_does_not_exist_is_not_entered() {
    let mut config = ConfigSpace::new(&nic());
    let power = capability(&config, POWER) + 4;

    config.write(power, &[3]);
    let effect = config.write(power, &[1]);

    assert_eq!(config.power_state(), PowerState::D3Hot);
    assert!(!effect.changed);
}

#[test]
fn io_enable_of_a_function_without_ports_stays_clear() {
    let mut config = ConfigSpace::new(&plain());

    config.write(COMMAND, &[0xff, 0xff]);

    assert!(!config.io_enabled());
    assert!(config.memory_enabled());
}

#[test]
fn status_errors_are_cleared_by_writing_ones_each_byte_alone() {
    let mut config = ConfigSpace::new(&nic());
    let device_status = capability(&config, EXPRESS) + DEVICE_STATUS;

    config.set_master_abort();
    let set = (get16(&config, STATUS) & 0x2000, get16(&config, device_status));
    config.write(STATUS, &[0xff]);
    let low_byte_written = get16(&config, STATUS) & 0x2000;
    config.write(STATUS + 1, &[0x20]);
    config.write(device_status, &[0x08]);

    assert_eq!(set, (0x2000, 0x0008));
    assert_eq!(low_byte_written, 0x2000);
    assert_eq!(get16(&config, STATUS), 0x0010, "the capability list bit alone");
    assert_eq!(get16(&config, device_status), 0);
}

#[test]
fn interrupt_status_follows_the_line_and_cannot_be_written() {
    let mut config = ConfigSpace::new(&nic());

    config.set_interrupt_status(true);
    config.write(STATUS, &[0xff, 0xff]);
    let asserted = get16(&config, STATUS) & 8;
    config.set_interrupt_status(false);

    assert_eq!(asserted, 8);
    assert_eq!(get16(&config, STATUS) & 8, 0);
}

#[test]
fn function_level_reset_bit_takes_effect_and_reads_as_zero() {
    let mut config = ConfigSpace::new(&nic());
    let control = capability(&config, EXPRESS) + DEVICE_CONTROL;

    let none = config.write(control, &0x2810_u16.to_le_bytes());
    let reset = config.write(control, &0xa810_u16.to_le_bytes());

    assert_eq!(none, ConfigEffect::default());
    assert!(reset.function_level_reset);
    assert_eq!(get16(&config, control), 0x2810);
}

#[test]
fn function_level_reset_bit_in_a_byte_write_takes_effect() {
    let mut config = ConfigSpace::new(&nic());
    let control = capability(&config, EXPRESS) + DEVICE_CONTROL;

    assert!(!config.write(control, &[0x80]).function_level_reset);
    assert!(config.write(control + 1, &[0x80]).function_level_reset);
}

#[test]
fn changed_interrupt_controls_are_reported() {
    let mut config = ConfigSpace::new(&nic());
    let msix = capability(&config, MSIX);

    let enable = config.write(msix + 2, &0xc000_u16.to_le_bytes());
    let again = config.write(msix + 2, &0xc000_u16.to_le_bytes());
    let disable_intx = config.write(COMMAND, &0x0400_u16.to_le_bytes());
    let line = config.write(0x3c, &[11]);

    assert!(enable.interrupts_changed && config.msix_enabled() && config.msix_function_masked());
    assert_eq!(again, ConfigEffect::default());
    assert!(disable_intx.interrupts_changed && config.intx_disabled());
    assert!(line.changed && !line.interrupts_changed);
}

#[test]
fn reset_gives_power_on_values_but_keeps_payload_size_and_link() {
    let mut config = ConfigSpace::new(&nic());
    let express = capability(&config, EXPRESS);
    config.write(COMMAND, &[0x07, 0x04]);
    config.write(BAR0, &[0xff; 24]);
    config.write(express + DEVICE_CONTROL, &0x0020_u16.to_le_bytes());
    config.write(express + LINK_CONTROL, &0x0040_u16.to_le_bytes());

    config.reset();

    let fresh = ConfigSpace::new(&nic());

    assert_eq!(get::<64>(&config, 0), get::<64>(&fresh, 0));
    assert_eq!(get16(&config, express + DEVICE_CONTROL), 0x2810 & !0xe0 | 0x20, "payload size, bits 5-7");
    assert_eq!(get16(&config, express + LINK_CONTROL), 0x0040);
}

#[test]
fn read_past_the_end_gives_ones() {
    let config = ConfigSpace::new(&nic());
    let mut across = [0; 4];
    let mut far = [0; 4];

    config.read(4094, &mut across);
    config.read(u64::MAX - 1, &mut far);

    assert_eq!(across, [0, 0, 0xff, 0xff]);
    assert_eq!(far, [0xff; 4]);
}

#[test]
fn table_starts_masked_and_keeps_address_and_data() {
    let mut table = MsixTable::new(VECTORS);
    let masked_at_first = table.is_masked(4, false);

    table.write(4 * ENTRY, &0xfee0_1003_u64.to_le_bytes());
    table.write(4 * ENTRY + 8, &[0x41, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff]);

    assert!(masked_at_first);
    assert!(!table.is_masked(4, false));
    assert!(table.is_masked(4, true));
    assert!(table.is_masked(VECTORS, false), "no such vector");
    assert_eq!(table.address_data(4), (0xfee0_1000, 0x41), "the address is dword aligned");

    let mut control = [0xff; 4];
    table.read(4 * ENTRY + 12, &mut control);
    assert_eq!(control, [0; 4], "reserved bits of vector control stay zero");
}

#[test]
fn unmasking_write_names_the_pending_vectors_it_unmasked() {
    let mut table = MsixTable::new(VECTORS);
    table.set_pending(1);
    table.set_pending(3);
    table.set_pending(4);

    let entries_1_to_3 = [0; 3 * ENTRY as usize];
    let unmasked: Vec<u16> = table.write(ENTRY, &entries_1_to_3).collect();
    let again: Vec<u16> = table.write(ENTRY, &entries_1_to_3).collect();

    assert_eq!(unmasked, [1, 3]);
    assert_eq!(again, [0; 0], "they were not masked any more");
    assert_eq!(table.deliverable().collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn pending_bits_are_read_where_they_belong() {
    let mut table = MsixTable::new(70);
    table.set_pending(1);
    table.set_pending(69);
    table.set_pending(70);

    let mut bits = [0xff; 20];
    table.read_pba(0, &mut bits);

    let mut expected = [0; 20];
    expected[0] = 0x02;
    expected[8] = 0x20;

    assert_eq!(bits, expected);
    assert!(table.clear_pending(69));
    assert!(!table.clear_pending(69));
    assert!(!table.clear_pending(70));
}

#[test]
fn access_behind_the_table_changes_nothing_and_reads_zeros() {
    let mut table = MsixTable::new(1);
    let mut data = [0xff; 24];

    let unmasked = table.write(8, &[0x55; 600]).count() + table.write(u64::MAX, &[0; 8]).count();
    table.read(8, &mut data);
    table.read(u64::MAX - 3, &mut data[..8]);

    assert_eq!(unmasked, 0);
    assert_eq!(data[..8], [0; 8]);
    assert_eq!(data[8..], [0; 16]);
    assert_eq!(table.address_data(0), (0, 0x5555_5555));
}

#[test]
fn reset_masks_every_vector_and_clears_pending_bits() {
    let mut table = MsixTable::new(VECTORS);
    table.write(0, &[0xf4; 80]);
    table.set_pending(2);

    table.reset();

    assert!((0..VECTORS).all(|vector| table.is_masked(vector, false) && !table.is_pending(vector)));
    assert_eq!(table.address_data(2), (0, 0));
}

/// Returns the bits of configuration space that software can change: those that writes of ones and
/// of zeros to every byte change.
fn changeable(spec: &FunctionSpec) -> Vec<u8> {
    let mut config = ConfigSpace::new(spec);
    let mut bits = get::<CONFIG_SIZE>(&config, 0);
    for value in [0xff, 0x00] {
        let before = get::<CONFIG_SIZE>(&config, 0);
        for at in 0..CONFIG_SIZE as u64 {
            config.write(at, &[value]);
        }
        let after = get::<CONFIG_SIZE>(&config, 0);
        for ((bits, before), after) in bits.iter_mut().zip(before).zip(after) {
            *bits = if value == 0xff { before ^ after } else { *bits | (before ^ after) };
        }
    }

    bits.to_vec()
}

#[test]
fn writable_registers_are_the_expected_ones() {
    let spec = nic();
    let config = ConfigSpace::new(&spec);
    let (power, express, msix) =
        (capability(&config, POWER), capability(&config, EXPRESS), capability(&config, MSIX));

    let writable: Vec<u64> =
        (0..).zip(changeable(&spec)).filter(|&(_, bits)| bits != 0).map(|(at, _)| at).collect();

    let bars = [(0x11..=0x13), (0x15..=0x17), (0x19..=0x1b), (0x20..=0x27)];
    let (cache_line, interrupt_line) = (0x0c, 0x3c);
    let mut expected = vec![COMMAND, COMMAND + 1, cache_line];
    expected.extend(bars.into_iter().flatten());
    expected.extend([
        interrupt_line,
        power + 4,
        express + DEVICE_CONTROL,
        express + DEVICE_CONTROL + 1,
        express + LINK_CONTROL,
        // Device control 2 and link control 2.
        express + 0x28,
        express + 0x30,
        msix + 3,
    ]);

    assert_eq!(writable, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn random_writes_change_writable_bits_only(
        writes in prop::collection::vec((0_u64..4200, prop::collection::vec(any::<u8>(), 0..80)), 1..40),
    ) {
        let spec = nic();
        let mut config = ConfigSpace::new(&spec);
        let fixed: Vec<u8> = changeable(&spec).iter().map(|bits| !bits).collect();
        let before = get::<CONFIG_SIZE>(&config, 0);

        for (at, data) in &writes {
            config.write(*at, data);
        }

        let after = get::<CONFIG_SIZE>(&config, 0);
        for at in 0..CONFIG_SIZE {
            prop_assert_eq!(before[at] & fixed[at], after[at] & fixed[at], "byte {:#x}", at);
        }
    }

    #[test]
    fn write_is_the_same_in_one_piece_or_byte_by_byte(
        at in 0_u64..0x110,
        data in prop::collection::vec(any::<u8>(), 1..64),
    ) {
        let mut whole = ConfigSpace::new(&nic());
        let mut bytes = ConfigSpace::new(&nic());

        let effect = whole.write(at, &data);
        let effects: Vec<_> = (at..).zip(&data).map(|(at, byte)| bytes.write(at, &[*byte])).collect();

        prop_assert_eq!(get::<CONFIG_SIZE>(&whole, 0), get::<CONFIG_SIZE>(&bytes, 0));
        prop_assert_eq!(effect.changed, effects.iter().any(|effect| effect.changed));
        prop_assert_eq!(
            effect.function_level_reset,
            effects.iter().any(|effect| effect.function_level_reset)
        );
    }

    #[test]
    fn random_accesses_to_the_msix_table_are_contained(
        vectors in 1_u16..=2048,
        accesses in prop::collection::vec(
            (prop_oneof![0_u64..0x9000, any::<u64>()], prop::collection::vec(any::<u8>(), 0..600)), 1..20),
    ) {
        let mut table = MsixTable::new(vectors);
        for vector in 0..vectors {
            table.set_pending(vector);
        }

        for (at, data) in &accesses {
            let unmasked: Vec<u16> = table.write(*at, data).collect();
            prop_assert!(unmasked.iter().all(|&vector| vector < vectors && !table.is_masked(vector, false)));
            let mut out = data.clone();
            table.read(*at, &mut out);
            table.read_pba(*at, &mut out);
        }

        let deliverable = table.deliverable().count();
        let unmasked = (0..vectors).filter(|&vector| !table.is_masked(vector, false)).count();

        prop_assert_eq!(deliverable, unmasked);
    }
}

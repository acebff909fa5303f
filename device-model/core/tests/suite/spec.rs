//! Tests of descriptions that are refused.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common::spec;
use nicforge_core::spec::{
    Area, AreaKind, BarKind, BarSpec, BarWindow, FunctionSpec, MAX_CAPABILITY, NicSizes, Scope, SpecError,
    VendorCapability,
};

/// Validates the description of the tests after a change.
fn changed(change: impl FnOnce(&mut FunctionSpec)) -> Result<(), SpecError> {
    let mut spec = spec();
    change(&mut spec);
    spec.validate()
}

/// Returns a BAR that the description has.
fn bar(spec: &mut FunctionSpec, index: usize) -> &mut BarSpec {
    spec.bars[index].as_mut().unwrap()
}

#[test]
fn usual_shape_is_accepted_in_all_its_sizes() {
    assert_eq!(changed(|_| ()), Ok(()));

    for (vectors, cells, windows, mirror) in
        [(1, 64, 0, 0), (256, 65536, 0x1000, 0x1000), (8, 2048, 0x10_0000, 0)]
    {
        let usual = spec();
        let created = FunctionSpec::nic(
            usual.identity,
            usual.attachments,
            NicSizes {
                register_bytes: 0x2000,
                vectors,
                ring_cells: cells,
                window_bytes: windows,
                mirror_bytes: mirror,
            },
        );
        assert_eq!(created.validate(), Ok(()));
    }
}

#[test]
fn windows_lie_behind_a_ring_that_is_longer_than_usual() {
    let usual = spec();
    let created = FunctionSpec::nic(
        usual.identity,
        usual.attachments,
        NicSizes {
            register_bytes: 0x1000,
            vectors: 1,
            ring_cells: 65536,
            window_bytes: 0x1000,
            ..NicSizes::default()
        },
    );

    assert!(created.bars[1].as_ref().unwrap().size >= 65536 * 64 + 0x1000);
}

#[test]
fn attachments_are_65535_at_most_and_a_switch_has_none() {
    let of = |count: usize| {
        changed(|spec| {
            let one = spec.attachments[0].clone();
            spec.attachments = vec![one; count];
        })
    };

    assert_eq!(of(0), Ok(()));
    assert_eq!(of(65536), Err(SpecError::Attachments { count: 65536 }));
}

#[test]
fn attachments_with_the_same_name_are_refused() {
    let outcome = changed(|spec| spec.attachments[2].name = spec.attachments[0].name.clone());

    assert_eq!(outcome, Err(SpecError::SameName { attachment: 2 }));
}

#[test]
fn attachment_names_are_letters_digits_and_dashes() {
    for name in ["", "a/b", "..", "a b", "ä", "a\0", &"x".repeat(65)] {
        let outcome = changed(|spec| spec.attachments[1].name = name.to_owned());
        assert_eq!(outcome, Err(SpecError::Name { attachment: 1 }), "{name:?}");
    }
}

#[test]
fn bar_sizes_are_powers_of_two_in_range() {
    for size in [0, 8, 24, 1 << 32, u64::MAX] {
        let outcome = changed(|spec| spec.bars[5] = Some(BarSpec::trapped(size)));
        assert_eq!(outcome, Err(SpecError::BarSize { bar: 5, size }));
    }
    for size in [4, 256] {
        assert_eq!(changed(|spec| spec.bars[5] = Some(BarSpec::io(size))), Ok(()));
    }
    let refused = changed(|spec| spec.bars[5] = Some(BarSpec::io(512)));
    assert_eq!(refused, Err(SpecError::IoBarSize { bar: 5, size: 512 }));
    assert!(refused.unwrap_err().to_string().contains("at most 256"));
}

#[test]
fn bar_of_64_bits_occupies_the_next_index() {
    let wide = BarKind::Memory64 { prefetchable: true };

    assert_eq!(changed(|spec| bar(spec, 3).kind = wide), Err(SpecError::Bar64 { bar: 3 }));
    assert_eq!(changed(|spec| bar(spec, 4).kind = wide), Ok(()));

    let last = changed(|spec| {
        spec.bars[5] = Some(BarSpec { kind: wide, ..BarSpec::trapped(4096) });
    });

    assert_eq!(last, Err(SpecError::Bar64 { bar: 5 }));
}

#[test]
fn areas_are_aligned_ascending_inside_and_of_one_kind() {
    let area = |offset, length| Area { offset, length, kind: AreaKind::Mapped };
    let invalid = [
        vec![area(0x800, 0x1000)],
        vec![area(0, 0x800)],
        vec![area(0, 0)],
        vec![area(0x1000, 0x1000), area(0x1000, 0x1000)],
        vec![area(0x2000, 0x1000), area(0, 0x1000)],
        vec![area(0x3000, 0x2000)],
        vec![area(u64::MAX - 0xfff, 0x1000)],
        vec![area(0, 0x1000), Area { offset: 0x1000, length: 0x1000, kind: AreaKind::Mirrored }],
    ];
    for areas in invalid {
        let outcome = changed(|spec| bar(spec, 4).areas = areas.clone());
        assert!(matches!(outcome, Err(SpecError::Area { bar: 4, .. })), "{areas:?}");
    }

    let ports = changed(|spec| bar(spec, 4).kind = BarKind::Io);

    assert!(matches!(ports, Err(SpecError::Area { bar: 4, .. })));
}

#[test]
fn msix_has_vectors_in_trapped_memory() {
    let msix =
        |change: fn(&mut nicforge_core::spec::MsixSpec)| changed(|spec| change(spec.msix.as_mut().unwrap()));

    assert_eq!(msix(|msix| msix.vectors = 0), Err(SpecError::Vectors { vectors: 0 }));
    assert_eq!(msix(|msix| msix.vectors = 2049), Err(SpecError::Vectors { vectors: 2049 }));

    for invalid in [
        msix(|msix| msix.table = 0x800),
        msix(|msix| msix.table = 0x4000),
        msix(|msix| msix.pba = u32::MAX - 0xfff),
        msix(|msix| msix.bar = 1),
        msix(|msix| msix.bar = 5),
        msix(|msix| msix.bar = 200),
    ] {
        assert!(matches!(invalid, Err(SpecError::Place { .. })), "{invalid:?}");
    }
}

#[test]
fn pages_of_the_core_do_not_overlap() {
    let table_on_control = changed(|spec| spec.msix.as_mut().unwrap().table = 0x1000);
    let bits_on_table = changed(|spec| spec.msix.as_mut().unwrap().pba = 0x2000);
    let long_table = changed(|spec| spec.msix.as_mut().unwrap().vectors = 257);

    for invalid in [table_on_control, bits_on_table, long_table] {
        assert!(matches!(invalid, Err(SpecError::Place { bar: 0, .. })), "{invalid:?}");
    }
}

#[test]
fn rings_lie_in_mapped_memory_of_the_attachment() {
    let rings =
        |change: fn(&mut nicforge_core::spec::RingSpec)| changed(|spec| change(spec.rings.as_mut().unwrap()));

    for invalid in
        [rings(|rings| rings.count = 9), rings(|rings| rings.cells = 32), rings(|rings| rings.cells = 100)]
    {
        assert!(matches!(invalid, Err(SpecError::Rings { .. })), "{invalid:?}");
    }

    for invalid in [
        rings(|rings| rings.bar = 2),
        rings(|rings| rings.bar = 9),
        rings(|rings| rings.offset = 64),
        rings(|rings| rings.offset = 0x2_0000),
        rings(|rings| rings.mirror_bar = 1),
        rings(|rings| rings.mirror_bar = 6),
        rings(|rings| rings.control_bar = 1),
        rings(|rings| rings.control_offset = 0x4000),
    ] {
        assert!(matches!(invalid, Err(SpecError::Place { .. })), "{invalid:?}");
    }

    let of_the_group = changed(|spec| bar(spec, 1).scope = Scope::Group);

    assert!(matches!(of_the_group, Err(SpecError::Place { bar: 1, .. })));
}

#[test]
fn position_of_rings_is_ignored_without_rings() {
    let mut machine = nicforge_core::machine::Machine::new();
    let mut none = spec();
    let rings = none.rings.as_mut().unwrap();
    (rings.count, rings.bar) = (0, 9);

    let (function, _) = crate::common::add(&mut machine, "node0", none);

    machine.attach(function, crate::common::A).unwrap();

    assert_eq!(crate::common::read_control(&mut machine, crate::common::A, crate::common::GENERATION), 1);
}

/// Returns a capability of `length` bytes after its header.
fn capability(length: usize, window: Option<BarWindow>) -> VendorCapability {
    VendorCapability { content: vec![0; length], window }
}

#[test]
fn vendor_capabilities_have_content_and_fit_together() {
    let of = |capabilities: Vec<VendorCapability>| changed(|spec| spec.capabilities = capabilities);

    assert_eq!(of(vec![capability(1, None), capability(MAX_CAPABILITY, None)]), Ok(()));
    for invalid in [0, MAX_CAPABILITY + 1] {
        let outcome = of(vec![capability(1, None), capability(invalid, None)]);
        assert_eq!(outcome, Err(SpecError::Capability { capability: 1 }));
    }

    // A function with rings has 84 bytes for them, and one without has 112.
    assert_eq!(of(vec![capability(1, None); 21]), Ok(()));
    assert_eq!(of(vec![capability(1, None); 22]), Err(SpecError::CapabilitySpace { bytes: 88, space: 84 }));
    let outcome = changed(|spec| {
        spec.rings = None;
        spec.capabilities = vec![capability(13, None); 8];
    });
    assert_eq!(outcome, Err(SpecError::CapabilitySpace { bytes: 128, space: 112 }));
}

#[test]
fn window_lies_in_its_capability_and_is_the_only_one() {
    let window = BarWindow { bar: 4, offset: 8, length: 12, data: 16 };
    let with_windows = |windows: &[BarWindow]| {
        changed(|spec| {
            spec.capabilities = windows.iter().map(|window| capability(17, Some(*window))).collect();
        })
    };

    assert_eq!(with_windows(&[window]), Ok(()));
    for invalid in [
        BarWindow { bar: 2, ..window },
        BarWindow { bar: 20, ..window },
        BarWindow { bar: 11, ..window },
        BarWindow { offset: 6, ..window },
        BarWindow { length: 8, ..window },
        BarWindow { data: 20, ..window },
        BarWindow { data: 255, ..window },
    ] {
        assert_eq!(with_windows(&[invalid]), Err(SpecError::Capability { capability: 0 }), "{invalid:?}");
    }
    assert_eq!(with_windows(&[window, window]), Err(SpecError::Capability { capability: 1 }));
}

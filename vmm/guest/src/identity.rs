//! PCI identities, and the patterns by which kernel modules name the devices that they drive.

/// Vendor id of virtio devices, and the ranges of their device ids (Virtio 1.3, 4.1.2). In the
/// first range, the type of device is the subsystem id. In the second, it is the offset in the
/// range.
const VIRTIO_VENDOR: u16 = 0x1af4;
const VIRTIO_TRANSITIONAL: std::ops::RangeInclusive<u16> = 0x1000..=0x103f;
const VIRTIO_MODERN: std::ops::RangeInclusive<u16> = 0x1040..=0x107f;

/// The identity of a PCI function, from its configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciIdentity {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Subsystem vendor id.
    pub subsystem_vendor: u16,
    /// Subsystem id.
    pub subsystem: u16,
    /// Base class, subclass and programming interface, as in `0x02_00_00` for Ethernet.
    pub class: u32,
}

impl PciIdentity {
    /// Returns the name by which Linux looks for a driver of the function, as in
    /// `/sys/bus/pci/devices/*/modalias`.
    pub fn modalias(&self) -> String {
        let [_, base, sub, interface] = self.class.to_be_bytes();
        format!(
            "pci:v{:08X}d{:08X}sv{:08X}sd{:08X}bc{base:02X}sc{sub:02X}i{interface:02X}",
            self.vendor, self.device, self.subsystem_vendor, self.subsystem
        )
    }

    /// Returns the function's modalias, and that of the virtio device behind it, if it is one. Such
    /// a device needs two drivers: one of the PCI function, and one of the device.
    pub(crate) fn modaliases(&self) -> Vec<String> {
        let virtio_type = match self.device {
            _ if self.vendor != VIRTIO_VENDOR => None,
            device if VIRTIO_TRANSITIONAL.contains(&device) => Some(self.subsystem),
            device if VIRTIO_MODERN.contains(&device) => Some(device - VIRTIO_MODERN.start()),
            _ => None,
        };

        let virtio = virtio_type.map(|type_| format!("virtio:d{type_:08X}v{:08X}", self.subsystem_vendor));
        std::iter::once(self.modalias()).chain(virtio).collect()
    }
}

/// Returns whether a module's alias matches a modalias. In the alias, `*` stands for any text, `?`
/// for one character, and `[0-9A]` for one of a set.
///
/// The time is at most proportional to the product of the lengths.
pub(crate) fn matches(alias: &str, modalias: &str) -> bool {
    let (mut pattern, mut text) = (alias.as_bytes(), modalias.as_bytes());
    // The pattern after the last `*`, and the text from which that was tried last.
    let mut retry: Option<(&[u8], &[u8])> = None;

    loop {
        if let Some(rest) = pattern.strip_prefix(b"*") {
            pattern = rest;
            retry = Some((rest, text));
            continue;
        }

        if pattern.is_empty() && text.is_empty() {
            return true;
        }

        if let Some((first, left)) = text.split_first()
            && let Some(rest) = match_one(pattern, *first)
        {
            (pattern, text) = (rest, left);
            continue;
        }

        // The last `*` has to stand for one more character.
        match retry {
            Some((behind, [_, left @ ..])) => {
                (pattern, text) = (behind, left);
                retry = Some((behind, left));
            }
            _ => return false,
        }
    }
}

/// Returns the pattern after its first element, if that matches the character.
fn match_one(pattern: &[u8], character: u8) -> Option<&[u8]> {
    match pattern {
        [b'?', rest @ ..] => Some(rest),
        [b'[', rest @ ..] => {
            let end = rest.iter().position(|&byte| byte == b']')?;
            is_in_set(&rest[..end], character).then_some(&rest[end + 1..])
        }
        [first, rest @ ..] => (*first == character).then_some(rest),
        [] => None,
    }
}

/// Returns whether a set of characters and ranges, as in `0-9A`, has the character.
fn is_in_set(mut set: &[u8], character: u8) -> bool {
    while let Some((&first, rest)) = set.split_first() {
        let (last, rest) = match rest {
            [b'-', last, rest @ ..] => (*last, rest),
            _ => (first, rest),
        };

        if (first..=last).contains(&character) {
            return true;
        }
        set = rest;
    }

    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An RTL8139C+ of a board's maker.
    const CARD: PciIdentity = PciIdentity {
        vendor: 0x10ec,
        device: 0x8139,
        subsystem_vendor: 0x13d1,
        subsystem: 0xab06,
        class: 0x02_00_00,
    };

    #[test]
    fn modalias_has_ids_of_eight_digits_and_classes_of_two() {
        assert_eq!(CARD.modalias(), "pci:v000010ECd00008139sv000013D1sd0000AB06bc02sc00i00");
    }

    #[test]
    fn aliases_match_by_ids_by_subsystem_only_and_by_class() {
        let matching = [
            "pci:v000010ECd00008139sv*sd*bc*sc*i*",
            "pci:v*d00008139sv000013D1sd0000AB06bc*sc*i*",
            "pci:v*d*sv*sd*bc02sc00i*",
            "pci:v*d*sv*sd*bc02sc*i*",
            "pci:v000010ECd0000813[0-9]sv*sd*bc*sc*i*",
            "pci:v000010ECd0000????sv*sd*bc*sc*i00",
            "pci:*",
        ];

        for alias in matching {
            assert!(matches(alias, &CARD.modalias()), "{alias}");
        }
    }

    #[test]
    fn aliases_of_other_devices_classes_and_buses_do_not_match() {
        let others = [
            "pci:v000010ECd00008129sv*sd*bc*sc*i*",
            "pci:v*d00008139sv000013D1sd00001300bc*sc*i*",
            "pci:v*d*sv*sd*bc02sc80i*",
            "pci:v*d*sv*sd*bc01sc*i*",
            "pci:v000010ECd0000813[0-8A]sv*sd*bc*sc*i*",
            "pci:v000010ECd00008139sv*sd*bc*sc*i",
            "pci:v000010ECd00008139",
            "vfio_pci:v*d*sv*sd*bc*sc*i*",
            "pci:v000010ECd0000813[9",
            "",
        ];

        for alias in others {
            assert!(!matches(alias, &CARD.modalias()), "{alias}");
        }
    }

    #[test]
    fn pattern_of_many_stars_ends_soon() {
        assert!(!matches(&"*a".repeat(200), &"a".repeat(199)));
        assert!(matches(&"*a".repeat(200), &"a".repeat(200)));
        assert!(!matches(&"a*".repeat(200), &"b".repeat(10_000)));
    }

    #[test]
    fn virtio_function_has_a_second_modalias_by_its_type_of_device() {
        let network = PciIdentity {
            vendor: 0x1af4,
            device: 0x1041,
            subsystem_vendor: 0x1af4,
            subsystem: 0x1100,
            ..CARD
        };
        assert_eq!(network.modaliases()[1], "virtio:d00000001v00001AF4");

        let older = PciIdentity { device: 0x1000, subsystem: 1, ..network };
        assert_eq!(older.modaliases()[1], "virtio:d00000001v00001AF4");

        let shared_memory = PciIdentity { device: 0x1110, ..network };
        assert_eq!((shared_memory.modaliases().len(), CARD.modaliases().len()), (1, 1));
    }
}

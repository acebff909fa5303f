//! The textual address of a device: the path of a socket, `vfio:BDF`, or `shim:PATH`.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
    str::FromStr,
};

use crate::{Error, OpenProblem};

/// The address of a PCI function: `0000:00:03.0`, or `00:03.0` in domain 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// PCI domain (segment).
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Slot on the bus, 0 to 31.
    pub slot: u8,
    /// Function of the slot, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    /// Formats the address as sysfs does, always with its domain.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.slot, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        // The parts are split off from the end, because the domain may be missing.
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let mut parts = rest.rsplit(':');
            let slot = hex(parts.next()?, 2)?;
            let bus = hex(parts.next()?, 2)?;
            let domain = parts.next().map_or(Some(0), |domain| hex(domain, 8))?;
            let function = hex(function, 1)?;
            let is_valid = parts.next().is_none() && slot < 32 && function < 8;
            is_valid.then_some(Self { domain, bus: bus as u8, slot: slot as u8, function: function as u8 })
        };

        parse().ok_or_else(|| Error::Open { device: text.to_owned(), problem: OpenProblem::Address })
    }
}

/// Parses a hexadecimal number of at most `maximum` digits.
fn hex(digits: &str, maximum: usize) -> Option<u32> {
    let is_valid =
        !digits.is_empty() && digits.len() <= maximum && digits.bytes().all(|byte| byte.is_ascii_hexdigit());

    is_valid.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

/// The kind of a device's backing, and its address there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceAddress {
    /// A vfio-user server that listens on the socket at this path.
    VfioUser(PathBuf),
    /// A PCI function of this machine that is bound to `vfio-pci`, such as `vfio:0000:00:03.0`.
    Vfio(PciAddress),
    /// A PCI function of this machine that is bound to the kernel shim. The path is that of its
    /// character device, such as `shim:/dev/nicforge0`.
    Shim(PathBuf),
}

/// The text in front of the first colon of an address of kind [`DeviceAddress::Vfio`].
const VFIO: &[u8] = b"vfio";
/// The text in front of the first colon of an address of kind [`DeviceAddress::Shim`].
const SHIM: &[u8] = b"shim";

impl DeviceAddress {
    /// Parses one address.
    ///
    /// # Errors
    /// Returns [`Error::Open`] with [`OpenProblem::Address`] when `text` is not an address.
    pub fn parse(text: impl AsRef<OsStr>) -> Result<Self, Error> {
        let text = text.as_ref();
        let invalid =
            || Error::Open { device: text.to_string_lossy().into_owned(), problem: OpenProblem::Address };

        match split_at_colon(text.as_bytes()) {
            (b"", _) => Err(invalid()),
            (VFIO, Some(rest)) => str::from_utf8(rest).map_err(|_| invalid())?.parse().map(Self::Vfio),
            (SHIM, Some(rest)) if !rest.is_empty() => Ok(Self::Shim(path(rest))),
            (SHIM, Some(_)) => Err(invalid()),
            _ => Ok(Self::VfioUser(path(text.as_bytes()))),
        }
    }

    /// Parses a list of addresses that are separated by `:`. Empty entries are skipped.
    ///
    /// # Errors
    /// Returns the error of [`DeviceAddress::parse`] for the first entry that is not an address.
    pub fn parse_list(list: impl AsRef<OsStr>) -> Result<Vec<Self>, Error> {
        let mut found = Vec::new();
        let mut rest = Some(list.as_ref().as_bytes());

        while let Some(text) = rest {
            let (kind, after_kind) = split_at_colon(text);

            // An address contains colons of its own, which do not separate entries: one after its
            // kind, and those of a PCI address, which are all in front of its point.
            let length_to_colon = |text| split_at_colon(text).0.len();
            let length_after_kind = match (kind, after_kind) {
                (VFIO, Some(pci)) => {
                    let point = pci.iter().position(|&byte| byte == b'.').unwrap_or(pci.len());
                    1 + point + length_to_colon(&pci[point..])
                }
                (SHIM, Some(path)) => 1 + length_to_colon(path),
                _ => 0,
            };

            let (address, remaining) = text.split_at(kind.len() + length_after_kind);
            if !address.is_empty() {
                found.push(Self::parse(OsStr::from_bytes(address))?);
            }

            rest = remaining.strip_prefix(b":");
        }

        Ok(found)
    }
}

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VfioUser(path) => write!(f, "{}", path.display()),
            Self::Vfio(address) => write!(f, "vfio:{address}"),
            Self::Shim(path) => write!(f, "shim:{}", path.display()),
        }
    }
}

/// Returns the bytes before the first colon, and those after it if there is a colon.
fn split_at_colon(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    match text.iter().position(|&byte| byte == b':') {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

/// Returns the path that consists of these bytes.
fn path(bytes: &[u8]) -> PathBuf {
    OsString::from_vec(bytes.to_vec()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTION: PciAddress = PciAddress { domain: 0, bus: 0, slot: 3, function: 1 };

    #[test]
    fn pci_addresses_have_a_domain_or_none() {
        assert_eq!("0000:00:03.1".parse(), Ok(FUNCTION));
        assert_eq!("00:03.1".parse(), Ok(FUNCTION));
        assert_eq!("10000:ff:1f.7".parse::<PciAddress>().unwrap().to_string(), "10000:ff:1f.7");
        assert_eq!(FUNCTION.to_string(), "0000:00:03.1");
    }

    #[test]
    fn text_that_is_not_a_pci_address_is_an_error_that_shows_it() {
        for text in ["", ".", "03.0", "0:0:0:3.0", "00:20.0", "00:03.8", "00:03", "00:+3.0", "00:03.0 "] {
            let error = text.parse::<PciAddress>().unwrap_err();
            assert_eq!(error, Error::Open { device: text.to_owned(), problem: OpenProblem::Address });
        }
    }

    #[test]
    fn prefix_decides_the_kind_of_an_address() {
        assert_eq!(DeviceAddress::parse("vfio:00:03.1"), Ok(DeviceAddress::Vfio(FUNCTION)));
        assert_eq!(DeviceAddress::parse("shim:/dev/x"), Ok(DeviceAddress::Shim("/dev/x".into())));
        assert_eq!(DeviceAddress::parse("/run/a"), Ok(DeviceAddress::VfioUser("/run/a".into())));
        assert_eq!(DeviceAddress::parse("vfio"), Ok(DeviceAddress::VfioUser("vfio".into())));
        for invalid in ["", "shim:", "vfio:", "vfio:a"] {
            assert!(DeviceAddress::parse(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn list_of_all_kinds_is_parsed_in_order() {
        let list = "/run/a.sock:vfio:0000:00:03.1:shim:/dev/nicforge0::vfio:00:03.1:b:shim:c";

        let texts: Vec<_> =
            DeviceAddress::parse_list(list).unwrap().iter().map(ToString::to_string).collect();

        let expected =
            ["/run/a.sock", "vfio:0000:00:03.1", "shim:/dev/nicforge0", "vfio:0000:00:03.1", "b", "shim:c"];
        assert_eq!(texts, expected);
    }

    #[test]
    fn list_with_a_wrong_address_is_an_error() {
        for invalid in ["vfio:", "a:vfio:00:03", "shim:", "vfio:zz:zz.z:a"] {
            assert!(DeviceAddress::parse_list(invalid).is_err(), "{invalid}");
        }
        assert_eq!(DeviceAddress::parse_list("::"), Ok(vec![]));
    }
}

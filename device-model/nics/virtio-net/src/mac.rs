//! Ethernet addresses.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// The address of an Ethernet port (IEEE 802.3, 3.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The address of all ports.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns the address `52:54:00:..` of a number. It is locally administered, and different for
    /// each number below 2^24.
    pub fn derived(number: u32) -> Self {
        let [_, a, b, c] = number.to_be_bytes();
        Self([0x52, 0x54, 0x00, a, b, c])
    }

    /// Returns whether the address means a group of ports, or all of them.
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns whether a single port can have the address: it is no group, and not zero.
    pub fn is_valid_source(self) -> bool {
        !self.is_group() && self.0 != [0; 6]
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reason why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is no Ethernet address: write six bytes as in 52:54:00:00:00:01")]
pub struct MacError {
    /// The text.
    pub text: String,
}

impl FromStr for MacAddress {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        // The error quotes a bounded part of the text.
        let error = || MacError { text: text.chars().take(64).collect() };
        let mut address = [0; 6];
        let mut parts = text.split(':');

        for byte in &mut address {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(error)?;
            if !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(error());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| error())?;
        }

        if parts.next().is_some() { Err(error()) } else { Ok(Self(address)) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        let address = MacAddress([0x52, 0x54, 0, 0xab, 0xcd, 0x0f]);
        assert_eq!(address.to_string(), "52:54:00:ab:cd:0f");
        assert_eq!("52:54:00:AB:cd:0f".parse(), Ok(address));

        for wrong in ["", "52:54:00:ab:cd", "52:54:00:ab:cd:0f:", "52:54:0:ab:cd:0f", "+2:54:00:ab:cd:0f"] {
            assert_eq!(wrong.parse::<MacAddress>().unwrap_err().text, wrong);
        }
    }

    #[test]
    fn derived_addresses_are_those_of_single_ports_and_differ() {
        let addresses = [0, 1, 256, 0xff_ffff].map(MacAddress::derived);

        assert!(addresses.iter().all(|address| address.is_valid_source()));
        assert!((1..4).all(|index| !addresses[..index].contains(&addresses[index])));
        assert!(!MacAddress::BROADCAST.is_valid_source());
    }
}

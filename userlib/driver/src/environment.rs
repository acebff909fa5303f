//! The environment variables by which `nicforge run` describes a program's endpoint in the machine.

use std::{ffi::OsString, path::PathBuf};

use crate::{DeviceAddress, Error};

/// The attachments meant for this program, separated by `:`. The first one is the default.
///
/// Each is the path of a socket, or in a guest `vfio:0000:00:03.0` or `shim:/dev/nicforge0`.
pub const SOCKET: &str = "NICFORGE_SOCKET";
/// The name in the machine description of the node on which this program runs.
pub const NODE: &str = "NICFORGE_NODE";
/// The program's role on its node.
pub const ROLE: &str = "NICFORGE_ROLE";
/// With `--per-core`, the number of the node's attachment that is meant for this program.
pub const CORE: &str = "NICFORGE_CORE";
/// The directory of the machine's sockets and files.
pub const DIRECTORY: &str = "NICFORGE_DIR";

/// Returns the value of a variable that must be set.
fn value(name: &str) -> Result<OsString, Error> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .ok_or_else(|| Error::Environment { name: name.to_owned(), problem: "is not set" })
}

/// Returns the value of a variable that must be set, as text.
fn text(name: &str) -> Result<String, Error> {
    value(name)?
        .into_string()
        .map_err(|_| Error::Environment { name: name.to_owned(), problem: "is no text" })
}

/// Parses the devices in variable `name`.
///
/// # Errors
/// Returns [`Error::Environment`] when the variable is not set or names no device, and
/// [`Error::Open`] for a text that is not an address.
pub fn devices(name: &str) -> Result<Vec<DeviceAddress>, Error> {
    parse_devices(name, &value(name)?)
}

/// Parses a list of devices, the value of variable `name`, which must not be empty.
fn parse_devices(name: &str, list: &std::ffi::OsStr) -> Result<Vec<DeviceAddress>, Error> {
    let devices = DeviceAddress::parse_list(list)?;
    if devices.is_empty() {
        return Err(Error::Environment { name: name.to_owned(), problem: "names no device" });
    }
    Ok(devices)
}

/// Returns the value of [`NODE`].
///
/// # Errors
/// Returns [`Error::Environment`] when it is not set or is not UTF-8.
pub fn node() -> Result<String, Error> {
    text(NODE)
}

/// Returns the value of [`ROLE`].
///
/// # Errors
/// Returns [`Error::Environment`] when it is not set or is not UTF-8.
pub fn role() -> Result<String, Error> {
    text(ROLE)
}

/// Returns the value of [`CORE`], or `None` for a program that uses all attachments of its node.
///
/// # Errors
/// Returns [`Error::Environment`] when it is not a number.
pub fn core() -> Result<Option<u32>, Error> {
    if std::env::var_os(CORE).is_none() {
        return Ok(None);
    }
    let no_number = |_| Error::Environment { name: CORE.to_owned(), problem: "is no number" };
    text(CORE)?.parse().map(Some).map_err(no_number)
}

/// Returns the value of [`DIRECTORY`].
///
/// # Errors
/// Returns [`Error::Environment`] when it is not set.
pub fn directory() -> Result<PathBuf, Error> {
    Ok(value(DIRECTORY)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_two_sockets_is_parsed_in_order() {
        let devices = parse_devices(SOCKET, "/run/a.sock:/run/b.sock".as_ref()).unwrap();
        let expected = ["/run/a.sock", "/run/b.sock"].map(|path| DeviceAddress::VfioUser(path.into()));
        assert_eq!(devices, expected);
    }

    #[test]
    fn list_of_separators_is_an_error_that_names_the_variable() {
        let error = parse_devices(SOCKET, "::".as_ref()).unwrap_err();
        assert!(error.to_string().contains(SOCKET), "{error}");
    }

    /// The variables of a running process can't be changed safely, so the test runs itself again
    /// with others.
    #[test]
    fn core_is_the_number_in_its_variable_if_it_is_set() {
        const EXPECTED: &str = "NICFORGE_TEST_EXPECTED_CORE";
        const TEST: &str = "environment::tests::core_is_the_number_in_its_variable_if_it_is_set";

        if let Ok(expected) = std::env::var(EXPECTED) {
            assert_eq!(format!("{:?}", core()), expected);
            return;
        }

        let no_number = Error::Environment { name: CORE.to_owned(), problem: "is no number" };
        let cases = [(None, Ok(None)), (Some("7"), Ok(Some(7))), (Some("seven"), Err(no_number))];
        for (value, expected) in cases {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", TEST]).env_remove(CORE).env(EXPECTED, format!("{expected:?}"));
            let output = command.envs(value.map(|value| (CORE, value))).output().unwrap();
            assert!(output.status.success(), "{value:?}: {}", String::from_utf8_lossy(&output.stdout));
        }
    }

    #[test]
    fn unset_variable_is_an_error_that_names_it() {
        let error = devices("NICFORGE_UNSET_VARIABLE").unwrap_err();
        assert_eq!(
            error,
            Error::Environment { name: "NICFORGE_UNSET_VARIABLE".to_owned(), problem: "is not set" }
        );
    }
}

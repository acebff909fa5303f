//! `VFIO_USER_VERSION`: the version numbers and the JSON after them.

use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

use super::{ShortPayload, VersionPayload, parse_prefix};

/// Longest JSON text that is parsed, in bytes with its NUL. Known peers send about 200.
pub const MAX_VERSION_JSON: usize = 4096;

/// Capabilities that one side announces. `None` stands for a capability that the side did not name:
/// the other side then assumes the specification's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Maximum number of descriptors that the sender takes in one message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_msg_fds: Option<u64>,
    /// Maximum number of bytes that the sender takes in one data transfer message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_data_xfer_size: Option<u64>,
    /// Page sizes for DMA maps, or'ed together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pgsizes: Option<u64>,
    /// Maximum number of DMA maps that are valid at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_dma_maps: Option<u64>,
    /// Whether the sender understands `VFIO_USER_REGION_WRITE_MULTI`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_multiple: Option<bool>,
    /// A second socket for server-to-client commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin_socket: Option<TwinSocket>,
}

/// The `twin_socket` capability.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TwinSocket {
    /// Whether the sender supports it; in a reply, whether the server has set it up.
    #[serde(default)]
    pub supported: bool,
    /// Index of the second socket among the descriptors of the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fd_index: Option<u64>,
}

/// The JSON text of a `VFIO_USER_VERSION`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct VersionData {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capabilities: Option<Capabilities>,
}

/// A parsed `VFIO_USER_VERSION`, request or reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionMessage {
    /// Major version.
    pub major: u16,
    /// Minor version.
    pub minor: u16,
    /// Whether there was JSON, even if it named nothing.
    pub has_json: bool,
    /// The capabilities object, if there was one.
    pub capabilities: Option<Capabilities>,
}

/// Why a `VFIO_USER_VERSION` cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// The version numbers are missing.
    #[error(transparent)]
    Short(#[from] ShortPayload),
    /// The JSON is longer than [`MAX_VERSION_JSON`].
    #[error("the version data have {0} bytes, at most {MAX_VERSION_JSON} are read: name fewer capabilities")]
    TooLong(usize),
    /// The data are not JSON, or their values have the wrong types.
    #[error("the version data are not the JSON of the specification: {0}")]
    Json(#[from] serde_json::Error),
}

/// Reads a `VFIO_USER_VERSION` payload. The NUL after the JSON may be missing. Bytes after the
/// NUL and unknown members are ignored.
///
/// # Errors
/// [`VersionError`], when the version numbers are missing or the JSON is malformed.
pub fn parse_version(payload: &[u8]) -> Result<VersionMessage, VersionError> {
    let (version, json) = parse_prefix::<VersionPayload>(payload)?;
    if json.len() > MAX_VERSION_JSON {
        return Err(VersionError::TooLong(json.len()));
    }

    let text = json.split(|byte| *byte == 0).next().unwrap_or_default();
    let data: VersionData =
        if text.is_empty() { VersionData::default() } else { serde_json::from_slice(text)? };

    Ok(VersionMessage {
        major: version.major.get(),
        minor: version.minor.get(),
        has_json: !text.is_empty(),
        capabilities: data.capabilities,
    })
}

/// Builds the payload of a `VFIO_USER_VERSION`. Without `has_json` it is only the four bytes of the
/// version.
pub fn build_version(message: &VersionMessage) -> Vec<u8> {
    let version = VersionPayload { major: message.major.into(), minor: message.minor.into() };
    let mut payload = version.as_bytes().to_vec();
    if message.has_json {
        let data = VersionData { capabilities: message.capabilities.clone() };
        // The data are numbers and booleans under fixed names, which always can be serialized.
        payload.extend(serde_json::to_vec(&data).unwrap_or_default());
        payload.push(0);
    }
    payload
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the payload of version 0.0 with this JSON.
    fn with_json(json: &[u8]) -> Vec<u8> {
        [&[0, 0, 0, 0], json].concat()
    }

    #[test]
    fn version_without_json_has_no_capabilities() {
        let message = parse_version(&[0, 0, 3, 0]).unwrap();

        assert_eq!(message, VersionMessage { minor: 3, ..Default::default() });
    }

    #[test]
    fn json_without_nul_is_read() {
        let message = parse_version(&with_json(br#"{"capabilities":{"max_msg_fds":8}}"#)).unwrap();

        assert_eq!(message.capabilities.unwrap().max_msg_fds, Some(8));
    }

    #[test]
    fn unknown_members_are_skipped() {
        let json = br#"{"a":1,"capabilities":{"migration":{"pgsize":4096},"pgsizes":4096}}"#;

        let message = parse_version(&with_json(json)).unwrap();

        assert_eq!(message.capabilities.unwrap().pgsizes, Some(4096));
    }

    #[test]
    fn malformed_json_is_an_error() {
        for json in [&b"{"[..], b"[]x", b"\"", b"{\"capabilities\":{\"max_msg_fds\":-1}}", b"\xff\xfe"] {
            assert!(matches!(parse_version(&with_json(json)), Err(VersionError::Json(_))));
        }
    }

    #[test]
    fn deeply_nested_json_is_an_error() {
        let json = vec![b'['; MAX_VERSION_JSON];

        assert!(matches!(parse_version(&with_json(&json)), Err(VersionError::Json(_))));
    }

    #[test]
    fn built_messages_parse_to_their_source() {
        let message = VersionMessage {
            has_json: true,
            capabilities: Some(Capabilities {
                max_msg_fds: Some(16),
                write_multiple: Some(true),
                ..Default::default()
            }),
            ..Default::default()
        };

        assert_eq!(parse_version(&build_version(&message)).unwrap(), message);
    }
}

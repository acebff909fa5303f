//! The reply of `VFIO_USER_DEVICE_GET_REGION_INFO` with its capability chain.

use vfio_bindings::bindings::vfio;
use zerocopy::IntoBytes;

use super::{
    CapHeader, RegionInfoPayload, ShortPayload, SparseAreaPayload, SparseMmapCap, TypeCap, parse_prefix,
};
use crate::types::{REGION_FLAG_CAPS, RegionInfo, RegionType, SparseArea};

/// Size of a region info without capabilities.
const BASE: usize = size_of::<RegionInfoPayload>();
const CAP_HEADER: usize = size_of::<CapHeader>();
const CAP_SPARSE: u16 = vfio::VFIO_REGION_INFO_CAP_SPARSE_MMAP as u16;
const CAP_TYPE: u16 = vfio::VFIO_REGION_INFO_CAP_TYPE as u16;

/// A region info reply that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionInfoError {
    /// A structure is cut off.
    #[error(transparent)]
    Short(#[from] ShortPayload),
    /// The chain of capabilities leaves the reply, or does not run forward.
    #[error("a region capability is said to be at {next:#x} of a reply of {len:#x} bytes")]
    Chain {
        /// Position that the chain names.
        next: u32,
        /// Size of the reply, in bytes.
        len: usize,
    },
    /// There are more areas than the reply has room for.
    #[error("a sparse mmap capability names {areas} areas, and the reply ends before them")]
    Areas {
        /// Number of areas that the capability names.
        areas: u32,
    },
    /// An area lies outside its region.
    #[error("mappable area {offset:#x}+{size:#x} is outside of a region of {region_size:#x} bytes")]
    AreaOutside {
        /// Start of the area.
        offset: u64,
        /// Size of the area.
        size: u64,
        /// Size of the region.
        region_size: u64,
    },
}

/// Returns the size of the complete reply for a region with all its capabilities, in bytes.
pub(crate) fn region_info_size(info: &RegionInfo) -> usize {
    BASE + sparse_cap_size(info) + type_cap_size(info)
}

/// Returns the bytes of the capability that names the parts of a region that may be mapped.
fn sparse_cap_size(info: &RegionInfo) -> usize {
    match info.areas.len() {
        0 => 0,
        areas => CAP_HEADER + size_of::<SparseMmapCap>() + areas * size_of::<SparseAreaPayload>(),
    }
}

/// Returns the bytes of the capability that names the region's type.
fn type_cap_size(info: &RegionInfo) -> usize {
    if info.region_type.is_some() { CAP_HEADER + size_of::<TypeCap>() } else { 0 }
}

/// Builds the reply for region `index`. The reply is never longer than `argsz`, which must be at
/// least 32.
///
/// Capabilities that do not fit are left out together with `VFIO_REGION_INFO_FLAG_CAPS` and
/// `cap_offset`. The reply's `argsz` then exceeds the given one and names the size to ask again
/// with.
pub fn build_region_info(index: u32, info: &RegionInfo, argsz: u32) -> Vec<u8> {
    let needed = region_info_size(info);
    let has_caps = needed > BASE && needed <= argsz as usize;
    let (cap_flag, cap_offset) = if has_caps { (REGION_FLAG_CAPS, BASE as u32) } else { (0, 0) };

    let base = RegionInfoPayload {
        argsz: (needed as u32).into(),
        flags: (info.flags & !REGION_FLAG_CAPS | cap_flag).into(),
        index: index.into(),
        cap_offset: cap_offset.into(),
        size: info.size.into(),
        offset: info.offset.into(),
    };

    let mut reply = base.as_bytes().to_vec();
    if has_caps {
        push_sparse_cap(&mut reply, info);
        push_type_cap(&mut reply, info);
    }
    reply
}

/// Appends the capability that lists the mappable areas, if there are any.
fn push_sparse_cap(reply: &mut Vec<u8>, info: &RegionInfo) {
    if info.areas.is_empty() {
        return;
    }

    let type_cap_offset = (BASE + sparse_cap_size(info)) as u32;
    let next = if info.region_type.is_some() { type_cap_offset } else { 0 };
    let header = CapHeader { id: CAP_SPARSE.into(), version: 1.into(), next: next.into() };
    let cap = SparseMmapCap { nr_areas: (info.areas.len() as u32).into(), reserved: 0.into() };

    reply.extend_from_slice(header.as_bytes());
    reply.extend_from_slice(cap.as_bytes());
    for area in &info.areas {
        let area = SparseAreaPayload { offset: area.offset.into(), size: area.size.into() };
        reply.extend_from_slice(area.as_bytes());
    }
}

/// Appends the capability that names the region's type, if it has one.
fn push_type_cap(reply: &mut Vec<u8>, info: &RegionInfo) {
    let Some(region_type) = info.region_type else { return };
    let header = CapHeader { id: CAP_TYPE.into(), version: 1.into(), next: 0.into() };
    let cap = TypeCap { kind: region_type.kind.into(), subtype: region_type.subtype.into() };

    reply.extend_from_slice(header.as_bytes());
    reply.extend_from_slice(cap.as_bytes());
}

/// Reads a reply from `payload`, the bytes that arrived, and returns it with the server's `argsz`.
/// If that exceeds `payload.len()`, capabilities are missing, and the caller must repeat the
/// request with that size. The descriptor of the result is not filled in.
///
/// # Errors
/// [`RegionInfoError`]; the work is bounded by the number of bytes, whatever they contain.
pub fn parse_region_info(payload: &[u8]) -> Result<(RegionInfo, u32), RegionInfoError> {
    let (base, _) = parse_prefix::<RegionInfoPayload>(payload)?;
    let argsz = base.argsz.get();
    let mut info = RegionInfo {
        flags: base.flags.get(),
        size: base.size.get(),
        offset: base.offset.get(),
        ..Default::default()
    };

    let is_incomplete = argsz as usize > payload.len();
    if info.flags & REGION_FLAG_CAPS == 0 || is_incomplete {
        return Ok((info, argsz));
    }

    let mut next = base.cap_offset.get();
    let mut min_offset = BASE;
    while next != 0 {
        let offset = next as usize;
        // Each capability lies after the previous one, so the loop ends.
        if offset < min_offset || offset > payload.len() {
            return Err(RegionInfoError::Chain { next, len: payload.len() });
        }

        let (header, body) = parse_prefix::<CapHeader>(&payload[offset..])?;
        min_offset = offset + CAP_HEADER;
        match header.id.get() {
            CAP_SPARSE => {
                info.areas = parse_areas(body, info.size)?;
                // The next capability lies after the areas, so no byte is parsed as an area twice.
                min_offset += size_of::<SparseMmapCap>() + info.areas.len() * size_of::<SparseAreaPayload>();
            }
            CAP_TYPE => {
                let (cap, _) = parse_prefix::<TypeCap>(body)?;
                info.region_type = Some(RegionType { kind: cap.kind.get(), subtype: cap.subtype.get() });
            }
            _ => {}
        }

        next = header.next.get();
    }
    Ok((info, argsz))
}

/// Parses the body of a sparse mmap capability: the number of mappable areas, and the areas. `body`
/// begins after the capability's header, and may end with further capabilities.
///
/// # Errors
/// [`RegionInfoError`] when the areas do not fit into `body`, or one lies outside of the region,
/// which has `region_size` bytes.
fn parse_areas(body: &[u8], region_size: u64) -> Result<Vec<SparseArea>, RegionInfoError> {
    let (cap, mut rest) = parse_prefix::<SparseMmapCap>(body)?;
    let count = cap.nr_areas.get();
    if count as usize > rest.len() / size_of::<SparseAreaPayload>() {
        return Err(RegionInfoError::Areas { areas: count });
    }

    let mut areas = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (area, tail) = parse_prefix::<SparseAreaPayload>(rest)?;
        rest = tail;
        let (offset, size) = (area.offset.get(), area.size.get());
        if offset.checked_add(size).is_none_or(|end| end > region_size) {
            return Err(RegionInfoError::AreaOutside { offset, size, region_size });
        }
        areas.push(SparseArea { offset, size });
    }
    Ok(areas)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a region with two mappable areas and a type.
    fn sample() -> RegionInfo {
        RegionInfo {
            flags: 7,
            size: 0x4000,
            offset: 0x1000,
            areas: vec![SparseArea { offset: 0, size: 0x1000 }, SparseArea { offset: 0x2000, size: 0x1000 }],
            region_type: Some(RegionType { kind: 9, subtype: 4 }),
            fd: None,
        }
    }

    #[test]
    fn region_with_both_capabilities_round_trips() {
        let reply = build_region_info(2, &sample(), 4096);

        let (info, argsz) = parse_region_info(&reply).unwrap();

        assert_eq!(argsz as usize, reply.len());
        assert_eq!(info.areas, sample().areas);
        assert_eq!(info.region_type, sample().region_type);
        assert_eq!((info.size, info.offset), (0x4000, 0x1000));
    }

    #[test]
    fn argsz_too_small_for_capabilities_gives_the_base_and_the_size_needed() {
        let reply = build_region_info(2, &sample(), 32);

        let (info, argsz) = parse_region_info(&reply).unwrap();

        assert_eq!(reply.len(), 32);
        assert_eq!(argsz as usize, region_info_size(&sample()));
        assert!(info.areas.is_empty());
        // No capability is announced that is not there: neither the flag nor an offset.
        assert_eq!(info.flags, sample().flags);
        assert_eq!(reply[12..16], [0; 4]);
    }

    #[test]
    fn capability_chain_that_loops_is_an_error() {
        let mut reply = build_region_info(2, &sample(), 4096);
        // The type capability is the last 16 bytes; its `next` is made to point at the first
        // capability.
        let at = reply.len() - 12;
        reply[at..at + 4].copy_from_slice(&32u32.to_le_bytes());

        assert!(matches!(parse_region_info(&reply), Err(RegionInfoError::Chain { next: 32, .. })));
    }

    #[test]
    fn area_count_beyond_the_reply_is_an_error() {
        let mut reply = build_region_info(2, &sample(), 4096);
        // `nr_areas` follows the header of the first capability.
        let nr_areas = BASE + CAP_HEADER;
        reply[nr_areas..nr_areas + 4].copy_from_slice(&u32::MAX.to_le_bytes());

        assert_eq!(parse_region_info(&reply).unwrap_err(), RegionInfoError::Areas { areas: u32::MAX });
    }

    #[test]
    fn area_outside_of_the_region_is_an_error() {
        let mut info = sample();
        info.areas[1].offset = 0x4000;

        let reply = build_region_info(2, &info, 4096);

        assert!(matches!(parse_region_info(&reply), Err(RegionInfoError::AreaOutside { .. })));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn arbitrary_replies_never_panic(mut payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            // Half of the cases get a plausible start, so that the chain is reached.
            if payload.len() > 40 && payload[0] & 1 == 0 {
                payload[0..8].copy_from_slice(&[40, 0, 0, 0, 15, 0, 0, 0]);
                payload[12..16].copy_from_slice(&[32, 0, 0, 0]);
            }
            let _ = parse_region_info(&payload);
        }
    }
}

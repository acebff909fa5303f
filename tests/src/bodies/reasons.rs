//! The reasons why several bodies or machines do not run through a door. The attribute
//! [`body`](nicforge_test_body::body) names them; a reason of one body stands there itself.

/// The body passes code to the operator, or reads state that no counter shows.
pub const OPERATORS_CODE: &str = "passes code to the operator, or reads state that no counter shows";

/// A guest's processor splits these accesses, so that the card sees several.
pub const SPLIT_ACCESSES: &str = "makes accesses of widths that reach a card in pieces";

/// QEMU does not connect again after an eviction.
pub const EVICTION_IS_FINAL: &str = "evicts a client, and QEMU does not connect again after an eviction";

/// QEMU holds all attachments as long as the guest runs.
pub const QEMU_HOLDS_ATTACHMENTS: &str =
    "a client attaches or detaches, and QEMU holds all attachments as long as its guest runs";

/// All bodies in a guest share one machine.
pub const FRESH_MACHINE: &str = "counts from the start of a machine, or needs one that was never used";

/// Guests get no admin attachments: the host's operator has them.
pub const OPERATORS_ADMIN: &str = "uses an admin attachment, which the host's operator keeps";

/// The body depends on times that an emulated processor exceeds.
pub const REAL_PROCESSORS_TIMES: &str = "its times are not those of an emulated processor";

/// The kernel chooses DMA addresses where there is no IOMMU.
pub const CHOOSES_ADDRESSES: &str = "chooses addresses itself, and without an IOMMU the kernel does";

/// DMA outside the body's own buffers succeeds where there is no IOMMU.
pub const NO_PROTECTION: &str = "without an IOMMU a card reaches all of the guest's memory";

/// A kernel has no contiguous memory of several MiB without an IOMMU.
pub const LARGE_CONTIGUOUS_MEMORY: &str = "without an IOMMU the kernel has no such piece of memory";

/// VFIO splits trapped accesses of more than 4 bytes.
pub const VFIO_SPLITS_QUADS: &str =
    "VFIO's trapped accesses are of 4 bytes at most, those of quads are in pieces";

/// The machine's bodies need nothing of the shim that it lacks without an IOMMU.
pub const SHIM_ALONE_IS_ENOUGH: &str = "all that it needs of the shim is there without an IOMMU";

/// A nested guest is slow, so a few bodies stand for all.
pub const FEW_BODIES_NESTED: &str = "a nested guest is slow, so a few other bodies stand for all";

/// The depth of FIFOs changes nothing between a guest's programs and the card.
pub const ONE_DEPTH_IN_GUESTS: &str = "a guest runs these bodies with FIFOs of the usual depth";

/// The speed of cards and links changes nothing between a guest's programs and the card.
pub const ONE_SPEED_IN_GUESTS: &str = "a guest runs these bodies on cards that take no time";

//! The public types and constants.

use std::ffi::{c_int, c_void};

use nicforge_spi::Descriptor;

use super::subgroup::nicforge_spi_subgroup;

/// Injection FIFOs of a subgroup.
pub const BGQ_MU_NUM_INJ_FIFOS_PER_SUBGROUP: usize = 8;
/// Reception FIFOs of a subgroup.
pub const BGQ_MU_NUM_REC_FIFOS_PER_SUBGROUP: usize = 4;
/// Entries of the base address table of a subgroup.
pub const BGQ_MU_NUM_DATA_COUNTERS_PER_SUBGROUP: usize = 8;
/// Subgroups of a group.
pub const BGQ_MU_NUM_FIFO_SUBGROUPS: usize = 4;
/// Subgroups of a node. The last four are the system's.
pub const BGQ_MU_NUM_FIFO_SUBGROUPS_PER_NODE: usize = 68;
/// Class routes of a node.
pub const BGQ_COLL_CLASS_MAX_CLASSROUTES: u32 = 16;
/// Functions that receive packets.
pub const MUSPI_MAX_FUNCTION_IDS: usize = 256;
/// For Kernel_InjFifoActivate: the FIFOs work.
pub const KERNEL_INJ_FIFO_ACTIVATE: u32 = 1;
/// For Kernel_InjFifoActivate: the FIFOs make no progress.
pub const KERNEL_INJ_FIFO_DEACTIVATE: u32 = 0;
/// For Kernel_ConfigureGIInterrupts: the line wakes no wait.
pub const KERNEL_GI_INTERRUPT_FLAG_DISABLE: u32 = 0;
/// For Kernel_ConfigureGIInterrupts: the line wakes waits.
pub const KERNEL_GI_INTERRUPT_FLAG_ENABLE: u32 = 1;
/// For nicforge_spi_wait_interrupts: free space of injection FIFO 0 has risen above its threshold.
pub const NICFORGE_SPI_INTERRUPT_INJECTION: u32 = 1;
/// For nicforge_spi_wait_interrupts: free space of reception FIFO 0 has fallen below its threshold.
pub const NICFORGE_SPI_INTERRUPT_RECEPTION: u32 = 1 << 8;
/// For nicforge_spi_wait_interrupts: a packet that asks for an interrupt is in reception FIFO 0.
pub const NICFORGE_SPI_INTERRUPT_PACKET: u32 = 1 << 12;
/// Cycles of a microsecond, where a call takes a time in cycles.
pub const NICFORGE_SPI_CYCLES_PER_US: u64 = 1600;

/// A descriptor. Its fields are in nicforge/muhwi.h.
///
/// cbindgen:ignore
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct MUHWI_Descriptor_t(pub(super) Descriptor);

/// The header of a packet. Its fields are in nicforge/muhwi.h.
///
/// cbindgen:ignore
pub type MUHWI_PacketHeader_t = c_void;

/// A destination. Its fields are in nicforge/muhwi.h.
///
/// cbindgen:ignore
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MUHWI_Destination_t {
    /// Coordinates, 6 bits each, with that of E in the lowest ones.
    pub Destination: u32,
}

/// An address in the base address table, or one with an operation.
pub type MUHWI_BaseAddress_t = u64;

/// Memory that the unit reaches.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Kernel_MemoryRegion_t {
    /// Length in bytes.
    pub Bytes: usize,
    /// First byte.
    pub BaseVa: *mut c_void,
    /// Address of the first byte for the unit.
    pub BasePa: *mut c_void,
}

/// Attributes of an injection FIFO.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel_InjFifoAttributes_t {
    /// 1: remote gets may use the FIFO, and software must not inject into it.
    pub RemoteGet: u32,
    /// 1: the FIFO belongs to the system. Subgroups 64 to 67 have only such FIFOs, and the others
    /// have none.
    pub System: u32,
    /// 1: the FIFO has high priority.
    pub Priority: u32,
}

/// Attributes of a reception FIFO.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel_RecFifoAttributes_t {
    /// 1: the FIFO belongs to the system.
    pub System: u32,
}

/// Interrupts of an injection FIFO.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel_InjFifoInterrupts_t {
    /// 1: the FIFO interrupts when its free space crosses the threshold.
    pub Threshold_Crossing: u32,
}

/// Interrupts of a reception FIFO.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel_RecFifoInterrupts_t {
    /// 1: the FIFO interrupts when its free space crosses the threshold.
    pub Threshold_Crossing: u32,
    /// 1: the FIFO interrupts when a packet comes that asks for an interrupt.
    pub Packet_Arrival: u32,
}

/// Attributes of a class route of barriers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel_GlobalInterruptClassRouteAttributes_t {
    /// 1: users cannot enter the barrier.
    pub System: u32,
}

/// An injection FIFO.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MUSPI_InjFifo_t {
    /// The subgroup.
    pub owner: *const nicforge_spi_subgroup,
    /// Number in the subgroup.
    pub number: u32,
}

/// The injection FIFOs of a subgroup.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MUSPI_InjFifoSubGroup_t {
    /// The FIFOs.
    pub _injfifos: [MUSPI_InjFifo_t; BGQ_MU_NUM_INJ_FIFOS_PER_SUBGROUP],
    /// Number of the subgroup.
    pub subgroupid: u32,
}

/// A reception FIFO.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MUSPI_RecFifo_t {
    /// The subgroup.
    pub owner: *const nicforge_spi_subgroup,
    /// Number in the subgroup.
    pub number: u32,
}

/// The reception FIFOs of a subgroup.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MUSPI_RecFifoSubGroup_t {
    /// The FIFOs.
    pub _recfifos: [MUSPI_RecFifo_t; BGQ_MU_NUM_REC_FIFOS_PER_SUBGROUP],
    /// Number of the subgroup.
    pub subgroupid: u32,
}

/// The base address table of a subgroup.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MUSPI_BaseAddressTableSubGroup_t {
    /// The subgroup.
    pub owner: *const nicforge_spi_subgroup,
    /// Number of the subgroup.
    pub subgrpid: u8,
    /// Bit `0x80 >> i`: entry `i` is allocated.
    pub permissions: u8,
}

/// A function that receives packets. `packet` has `packet_bytes` bytes: the header, and the payload
/// after it. They are valid during the call.
pub type MUSPI_RecvFunction_t = Option<
    unsafe extern "C" fn(param: *mut c_void, packet: *mut MUHWI_PacketHeader_t, packet_bytes: u32) -> c_int,
>;

/// Fields that all descriptors have.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MUSPI_BaseDescriptorInfoFields_t {
    /// 1: the payload is only read from memory, and not sent.
    pub Pre_Fetch_Only: u32,
    /// Address of the payload for the unit, or one that stands for an atomic load.
    pub Payload_Address: u64,
    /// Bytes of the payload.
    pub Message_Length: u64,
    /// Network injection FIFOs: MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_...
    pub Torus_FIFO_Map: u64,
    /// The destination.
    pub Dest: MUHWI_Destination_t,
}

/// The way of a point-to-point message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MUSPI_Pt2PtDescriptorInfoFields_t {
    /// Hints in A to D: MUHWI_PACKET_HINT_...
    pub Hints_ABCD: u8,
    /// Hints in E, routing and deposit.
    pub Misc1: u8,
    /// Virtual channel, zone and MUHWI_PACKET_STAY_ON_BUBBLE.
    pub Misc2: u8,
    /// Words of 4 bytes that the injection checksum skips.
    pub Skip: u16,
}

/// The way of a collective message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MUSPI_CollectiveDescriptorInfoFields_t {
    /// MUHWI_COLLECTIVE_OP_CODE_...
    pub Op_Code: u8,
    /// Bytes of a word.
    pub Word_Length: u16,
    /// The class route.
    pub Class_Route: u8,
    /// Virtual channel and MUHWI_COLLECTIVE_TYPE_...
    pub Misc: u8,
    /// Words of 4 bytes that the injection checksum skips.
    pub Skip: u16,
}

/// Target of a memory-FIFO message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MUSPI_MemoryFIFODescriptorInfoFields_t {
    /// Number of the reception FIFO in its node.
    pub Rec_FIFO_Id: u16,
    /// Put offset of the first packet.
    pub Rec_Put_Offset: u64,
    /// 1: the last packet raises an interrupt.
    pub Interrupt: u32,
    /// A bit that each packet carries.
    pub SoftwareBit: u8,
    /// Bytes that each packet carries. The first one is the number of the receiving function.
    pub SoftwareBytes: [u8; 14],
}

/// Target of a direct put.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MUSPI_DirectPutDescriptorInfoFields_t {
    /// Number of the base address for the payload, counted over all subgroups of the node.
    pub Rec_Payload_Base_Address_Id: u16,
    /// Offset of the first byte.
    pub Rec_Payload_Offset: u64,
    /// Number of the base address for the counter, counted over all subgroups of the node.
    pub Rec_Counter_Base_Address_Id: u16,
    /// Offset of the counter, from MUSPI_GetAtomicOffsetFromBaseAddress.
    pub Rec_Counter_Offset: u64,
    /// MUHWI_PACKET_DIRECT_PUT_IS_NOT_PACED or MUHWI_PACKET_DIRECT_PUT_IS_PACED.
    pub Pacing: u8,
}

/// Target of a remote get.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MUSPI_RemoteGetDescriptorInfoFields_t {
    /// MUHWI_PACKET_TYPE_GET. The unit has no paced gets.
    pub Type: u8,
    /// Number of the injection FIFO in its node.
    pub Rget_Inj_FIFO_Id: u16,
}

/// A point-to-point memory-FIFO message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MUSPI_Pt2PtMemoryFIFODescriptorInfo_t {
    /// Fields that all descriptors have.
    pub Base: MUSPI_BaseDescriptorInfoFields_t,
    /// The way.
    pub Pt2Pt: MUSPI_Pt2PtDescriptorInfoFields_t,
    /// The target.
    pub MemFIFO: MUSPI_MemoryFIFODescriptorInfoFields_t,
}

/// A point-to-point direct put.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MUSPI_Pt2PtDirectPutDescriptorInfo_t {
    /// Fields that all descriptors have.
    pub Base: MUSPI_BaseDescriptorInfoFields_t,
    /// The way.
    pub Pt2Pt: MUSPI_Pt2PtDescriptorInfoFields_t,
    /// The target.
    pub DirectPut: MUSPI_DirectPutDescriptorInfoFields_t,
}

/// A point-to-point remote get.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MUSPI_Pt2PtRemoteGetDescriptorInfo_t {
    /// Fields that all descriptors have.
    pub Base: MUSPI_BaseDescriptorInfoFields_t,
    /// The way.
    pub Pt2Pt: MUSPI_Pt2PtDescriptorInfoFields_t,
    /// The target.
    pub RemoteGet: MUSPI_RemoteGetDescriptorInfoFields_t,
}

/// A collective memory-FIFO message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MUSPI_CollectiveMemoryFIFODescriptorInfo_t {
    /// Fields that all descriptors have.
    pub Base: MUSPI_BaseDescriptorInfoFields_t,
    /// The way.
    pub Collective: MUSPI_CollectiveDescriptorInfoFields_t,
    /// The target.
    pub MemFIFO: MUSPI_MemoryFIFODescriptorInfoFields_t,
}

/// A collective direct put.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MUSPI_CollectiveDirectPutDescriptorInfo_t {
    /// Fields that all descriptors have.
    pub Base: MUSPI_BaseDescriptorInfoFields_t,
    /// The way.
    pub Collective: MUSPI_CollectiveDescriptorInfoFields_t,
    /// The target.
    pub DirectPut: MUSPI_DirectPutDescriptorInfoFields_t,
}

/// A collective remote get.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MUSPI_CollectiveRemoteGetDescriptorInfo_t {
    /// Fields that all descriptors have.
    pub Base: MUSPI_BaseDescriptorInfoFields_t,
    /// The way.
    pub Collective: MUSPI_CollectiveDescriptorInfoFields_t,
    /// The target.
    pub RemoteGet: MUSPI_RemoteGetDescriptorInfoFields_t,
}

/// A node's part of a class route.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassRoute_t {
    /// Inputs: BGQ_CLASS_LINK_..., BGQ_CLASS_INPUT_LINK_LOCAL and BGQ_CLASS_INPUT_VC_...
    pub input: u16,
    /// Output: one of BGQ_CLASS_LINK_..., or 0 at the root.
    pub output: u16,
}

/// Number of dimensions.
pub const CR_NUM_DIMS: usize = 5;

/// Coordinates of a node.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CR_COORD_T {
    /// In A to E.
    pub coords: [u32; CR_NUM_DIMS],
}

/// A box of nodes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CR_RECT_T {
    /// Lowest corner.
    pub ll: CR_COORD_T,
    /// Highest corner.
    pub ur: CR_COORD_T,
}

/// A barrier of a class route.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MUSPI_GIBarrier_t {
    /// The class route.
    pub classRouteId: u64,
    /// The subgroup that enters for the node.
    pub owner: *const nicforge_spi_subgroup,
}

/// A line of global interrupts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MUSPI_GI_t {
    /// The class route.
    pub classRouteId: u64,
    /// The line, 0 to 2.
    pub GIId: u64,
    /// The subgroup that sets it for the node.
    pub owner: *const nicforge_spi_subgroup,
}

/// The coordinates of a node in its network.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Personality_Networks_t {
    /// Coordinate in A.
    pub Acoord: u8,
    /// Coordinate in B.
    pub Bcoord: u8,
    /// Coordinate in C.
    pub Ccoord: u8,
    /// Coordinate in D.
    pub Dcoord: u8,
    /// Coordinate in E.
    pub Ecoord: u8,
    /// Nodes in A.
    pub Anodes: u8,
    /// Nodes in B.
    pub Bnodes: u8,
    /// Nodes in C.
    pub Cnodes: u8,
    /// Nodes in D.
    pub Dnodes: u8,
    /// Nodes in E.
    pub Enodes: u8,
}

/// The coordinates of a node, and the shape of its network.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Personality_t {
    /// Its coordinates, and the numbers of nodes.
    pub Network_Config: Personality_Networks_t,
}

/*
 * The SPI of Blue Gene/Q: messages by the Message Unit of a node.
 *
 * Names and values are those of the public headers (spi/include/mu, spi/include/kernel, hwi/include/bqc
 * of bgq-driver); names with nicforge_ or NICFORGE_ are additions. Calls return 0 or a negative number of
 * errno.h, unless they say otherwise. One thread at a time uses a subgroup; a second one gets -EBUSY.
 *
 * Compile and link with the flags of `pkg-config --cflags --libs nicforge`.
 */

#ifndef NICFORGE_SPI_H
#define NICFORGE_SPI_H

/* Generated from the module `spi`: change that, then run `cargo xtask headers`. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <nicforge/muhwi.h>

/*
 Injection FIFOs of a subgroup.
 */
#define BGQ_MU_NUM_INJ_FIFOS_PER_SUBGROUP 8

/*
 Reception FIFOs of a subgroup.
 */
#define BGQ_MU_NUM_REC_FIFOS_PER_SUBGROUP 4

/*
 Entries of the base address table of a subgroup.
 */
#define BGQ_MU_NUM_DATA_COUNTERS_PER_SUBGROUP 8

/*
 Subgroups of a group.
 */
#define BGQ_MU_NUM_FIFO_SUBGROUPS 4

/*
 Subgroups of a node. The last four are the system's.
 */
#define BGQ_MU_NUM_FIFO_SUBGROUPS_PER_NODE 68

/*
 Class routes of a node.
 */
#define BGQ_COLL_CLASS_MAX_CLASSROUTES 16

/*
 Functions that receive packets.
 */
#define MUSPI_MAX_FUNCTION_IDS 256

/*
 For Kernel_InjFifoActivate: the FIFOs work.
 */
#define KERNEL_INJ_FIFO_ACTIVATE 1

/*
 For Kernel_InjFifoActivate: the FIFOs make no progress.
 */
#define KERNEL_INJ_FIFO_DEACTIVATE 0

/*
 For Kernel_ConfigureGIInterrupts: the line wakes no wait.
 */
#define KERNEL_GI_INTERRUPT_FLAG_DISABLE 0

/*
 For Kernel_ConfigureGIInterrupts: the line wakes waits.
 */
#define KERNEL_GI_INTERRUPT_FLAG_ENABLE 1

/*
 For nicforge_spi_wait_interrupts: free space of injection FIFO 0 has risen above its threshold.
 */
#define NICFORGE_SPI_INTERRUPT_INJECTION 1

/*
 For nicforge_spi_wait_interrupts: free space of reception FIFO 0 has fallen below its threshold.
 */
#define NICFORGE_SPI_INTERRUPT_RECEPTION (1 << 8)

/*
 For nicforge_spi_wait_interrupts: a packet that asks for an interrupt is in reception FIFO 0.
 */
#define NICFORGE_SPI_INTERRUPT_PACKET (1 << 12)

/*
 Cycles of a microsecond, where a call takes a time in cycles.
 */
#define NICFORGE_SPI_CYCLES_PER_US 1600

/*
 Number of dimensions.
 */
#define CR_NUM_DIMS 5

/*
 A subgroup of the node. One thread at a time uses it.
 */
typedef struct nicforge_spi_subgroup nicforge_spi_subgroup;

/*
 A barrier of a class route.
 */
typedef struct MUSPI_GIBarrier_t {
  /*
   The class route.
   */
  uint64_t classRouteId;
  /*
   The subgroup that enters for the node.
   */
  const struct nicforge_spi_subgroup *owner;
} MUSPI_GIBarrier_t;

/*
 A node's part of a class route.
 */
typedef struct ClassRoute_t {
  /*
   Inputs: BGQ_CLASS_LINK_..., BGQ_CLASS_INPUT_LINK_LOCAL and BGQ_CLASS_INPUT_VC_...
   */
  uint16_t input;
  /*
   Output: one of BGQ_CLASS_LINK_..., or 0 at the root.
   */
  uint16_t output;
} ClassRoute_t;

/*
 Attributes of a class route of barriers.
 */
typedef struct Kernel_GlobalInterruptClassRouteAttributes_t {
  /*
   1: users cannot enter the barrier.
   */
  uint32_t System;
} Kernel_GlobalInterruptClassRouteAttributes_t;

/*
 Coordinates of a node.
 */
typedef struct CR_COORD_T {
  /*
   In A to E.
   */
  uint32_t coords[CR_NUM_DIMS];
} CR_COORD_T;

/*
 A box of nodes.
 */
typedef struct CR_RECT_T {
  /*
   Lowest corner.
   */
  struct CR_COORD_T ll;
  /*
   Highest corner.
   */
  struct CR_COORD_T ur;
} CR_RECT_T;

/*
 An injection FIFO.
 */
typedef struct MUSPI_InjFifo_t {
  /*
   The subgroup.
   */
  const struct nicforge_spi_subgroup *owner;
  /*
   Number in the subgroup.
   */
  uint32_t number;
} MUSPI_InjFifo_t;

/*
 The injection FIFOs of a subgroup.
 */
typedef struct MUSPI_InjFifoSubGroup_t {
  /*
   The FIFOs.
   */
  struct MUSPI_InjFifo_t _injfifos[BGQ_MU_NUM_INJ_FIFOS_PER_SUBGROUP];
  /*
   Number of the subgroup.
   */
  uint32_t subgroupid;
} MUSPI_InjFifoSubGroup_t;

/*
 Memory that the unit reaches.
 */
typedef struct Kernel_MemoryRegion_t {
  /*
   Length in bytes.
   */
  size_t Bytes;
  /*
   First byte.
   */
  void *BaseVa;
  /*
   Address of the first byte for the unit.
   */
  void *BasePa;
} Kernel_MemoryRegion_t;

/*
 A reception FIFO.
 */
typedef struct MUSPI_RecFifo_t {
  /*
   The subgroup.
   */
  const struct nicforge_spi_subgroup *owner;
  /*
   Number in the subgroup.
   */
  uint32_t number;
} MUSPI_RecFifo_t;

/*
 The reception FIFOs of a subgroup.
 */
typedef struct MUSPI_RecFifoSubGroup_t {
  /*
   The FIFOs.
   */
  struct MUSPI_RecFifo_t _recfifos[BGQ_MU_NUM_REC_FIFOS_PER_SUBGROUP];
  /*
   Number of the subgroup.
   */
  uint32_t subgroupid;
} MUSPI_RecFifoSubGroup_t;

/*
 The base address table of a subgroup.
 */
typedef struct MUSPI_BaseAddressTableSubGroup_t {
  /*
   The subgroup.
   */
  const struct nicforge_spi_subgroup *owner;
  /*
   Number of the subgroup.
   */
  uint8_t subgrpid;
  /*
   Bit `0x80 >> i`: entry `i` is allocated.
   */
  uint8_t permissions;
} MUSPI_BaseAddressTableSubGroup_t;

/*
 An address in the base address table, or one with an operation.
 */
typedef uint64_t MUHWI_BaseAddress_t;

/*
 A line of global interrupts.
 */
typedef struct MUSPI_GI_t {
  /*
   The class route.
   */
  uint64_t classRouteId;
  /*
   The line, 0 to 2.
   */
  uint64_t GIId;
  /*
   The subgroup that sets it for the node.
   */
  const struct nicforge_spi_subgroup *owner;
} MUSPI_GI_t;

/*
 Interrupts of an injection FIFO.
 */
typedef struct Kernel_InjFifoInterrupts_t {
  /*
   1: the FIFO interrupts when its free space crosses the threshold.
   */
  uint32_t Threshold_Crossing;
} Kernel_InjFifoInterrupts_t;

/*
 Interrupts of a reception FIFO.
 */
typedef struct Kernel_RecFifoInterrupts_t {
  /*
   1: the FIFO interrupts when its free space crosses the threshold.
   */
  uint32_t Threshold_Crossing;
  /*
   1: the FIFO interrupts when a packet comes that asks for an interrupt.
   */
  uint32_t Packet_Arrival;
} Kernel_RecFifoInterrupts_t;

/*
 The coordinates of a node in its network.
 */
typedef struct Personality_Networks_t {
  /*
   Coordinate in A.
   */
  uint8_t Acoord;
  /*
   Coordinate in B.
   */
  uint8_t Bcoord;
  /*
   Coordinate in C.
   */
  uint8_t Ccoord;
  /*
   Coordinate in D.
   */
  uint8_t Dcoord;
  /*
   Coordinate in E.
   */
  uint8_t Ecoord;
  /*
   Nodes in A.
   */
  uint8_t Anodes;
  /*
   Nodes in B.
   */
  uint8_t Bnodes;
  /*
   Nodes in C.
   */
  uint8_t Cnodes;
  /*
   Nodes in D.
   */
  uint8_t Dnodes;
  /*
   Nodes in E.
   */
  uint8_t Enodes;
} Personality_Networks_t;

/*
 The coordinates of a node, and the shape of its network.
 */
typedef struct Personality_t {
  /*
   Its coordinates, and the numbers of nodes.
   */
  struct Personality_Networks_t Network_Config;
} Personality_t;

/*
 Attributes of an injection FIFO.
 */
typedef struct Kernel_InjFifoAttributes_t {
  /*
   1: remote gets may use the FIFO, and software must not inject into it.
   */
  uint32_t RemoteGet;
  /*
   1: the FIFO belongs to the system. Subgroups 64 to 67 have only such FIFOs, and the others
   have none.
   */
  uint32_t System;
  /*
   1: the FIFO has high priority.
   */
  uint32_t Priority;
} Kernel_InjFifoAttributes_t;

/*
 Attributes of a reception FIFO.
 */
typedef struct Kernel_RecFifoAttributes_t {
  /*
   1: the FIFO belongs to the system.
   */
  uint32_t System;
} Kernel_RecFifoAttributes_t;

/*
 Fields that all descriptors have.
 */
typedef struct MUSPI_BaseDescriptorInfoFields_t {
  /*
   1: the payload is only read from memory, and not sent.
   */
  uint32_t Pre_Fetch_Only;
  /*
   Address of the payload for the unit, or one that stands for an atomic load.
   */
  uint64_t Payload_Address;
  /*
   Bytes of the payload.
   */
  uint64_t Message_Length;
  /*
   Network injection FIFOs: MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_...
   */
  uint64_t Torus_FIFO_Map;
  /*
   The destination.
   */
  MUHWI_Destination_t Dest;
} MUSPI_BaseDescriptorInfoFields_t;

/*
 The way of a point-to-point message.
 */
typedef struct MUSPI_Pt2PtDescriptorInfoFields_t {
  /*
   Hints in A to D: MUHWI_PACKET_HINT_...
   */
  uint8_t Hints_ABCD;
  /*
   Hints in E, routing and deposit.
   */
  uint8_t Misc1;
  /*
   Virtual channel, zone and MUHWI_PACKET_STAY_ON_BUBBLE.
   */
  uint8_t Misc2;
  /*
   Words of 4 bytes that the injection checksum skips.
   */
  uint16_t Skip;
} MUSPI_Pt2PtDescriptorInfoFields_t;

/*
 Target of a memory-FIFO message.
 */
typedef struct MUSPI_MemoryFIFODescriptorInfoFields_t {
  /*
   Number of the reception FIFO in its node.
   */
  uint16_t Rec_FIFO_Id;
  /*
   Put offset of the first packet.
   */
  uint64_t Rec_Put_Offset;
  /*
   1: the last packet raises an interrupt.
   */
  uint32_t Interrupt;
  /*
   A bit that each packet carries.
   */
  uint8_t SoftwareBit;
  /*
   Bytes that each packet carries. The first one is the number of the receiving function.
   */
  uint8_t SoftwareBytes[14];
} MUSPI_MemoryFIFODescriptorInfoFields_t;

/*
 A point-to-point memory-FIFO message.
 */
typedef struct MUSPI_Pt2PtMemoryFIFODescriptorInfo_t {
  /*
   Fields that all descriptors have.
   */
  struct MUSPI_BaseDescriptorInfoFields_t Base;
  /*
   The way.
   */
  struct MUSPI_Pt2PtDescriptorInfoFields_t Pt2Pt;
  /*
   The target.
   */
  struct MUSPI_MemoryFIFODescriptorInfoFields_t MemFIFO;
} MUSPI_Pt2PtMemoryFIFODescriptorInfo_t;

/*
 Target of a direct put.
 */
typedef struct MUSPI_DirectPutDescriptorInfoFields_t {
  /*
   Number of the base address for the payload, counted over all subgroups of the node.
   */
  uint16_t Rec_Payload_Base_Address_Id;
  /*
   Offset of the first byte.
   */
  uint64_t Rec_Payload_Offset;
  /*
   Number of the base address for the counter, counted over all subgroups of the node.
   */
  uint16_t Rec_Counter_Base_Address_Id;
  /*
   Offset of the counter, from MUSPI_GetAtomicOffsetFromBaseAddress.
   */
  uint64_t Rec_Counter_Offset;
  /*
   MUHWI_PACKET_DIRECT_PUT_IS_NOT_PACED or MUHWI_PACKET_DIRECT_PUT_IS_PACED.
   */
  uint8_t Pacing;
} MUSPI_DirectPutDescriptorInfoFields_t;

/*
 A point-to-point direct put.
 */
typedef struct MUSPI_Pt2PtDirectPutDescriptorInfo_t {
  /*
   Fields that all descriptors have.
   */
  struct MUSPI_BaseDescriptorInfoFields_t Base;
  /*
   The way.
   */
  struct MUSPI_Pt2PtDescriptorInfoFields_t Pt2Pt;
  /*
   The target.
   */
  struct MUSPI_DirectPutDescriptorInfoFields_t DirectPut;
} MUSPI_Pt2PtDirectPutDescriptorInfo_t;

/*
 Target of a remote get.
 */
typedef struct MUSPI_RemoteGetDescriptorInfoFields_t {
  /*
   MUHWI_PACKET_TYPE_GET. The unit has no paced gets.
   */
  uint8_t Type;
  /*
   Number of the injection FIFO in its node.
   */
  uint16_t Rget_Inj_FIFO_Id;
} MUSPI_RemoteGetDescriptorInfoFields_t;

/*
 A point-to-point remote get.
 */
typedef struct MUSPI_Pt2PtRemoteGetDescriptorInfo_t {
  /*
   Fields that all descriptors have.
   */
  struct MUSPI_BaseDescriptorInfoFields_t Base;
  /*
   The way.
   */
  struct MUSPI_Pt2PtDescriptorInfoFields_t Pt2Pt;
  /*
   The target.
   */
  struct MUSPI_RemoteGetDescriptorInfoFields_t RemoteGet;
} MUSPI_Pt2PtRemoteGetDescriptorInfo_t;

/*
 The way of a collective message.
 */
typedef struct MUSPI_CollectiveDescriptorInfoFields_t {
  /*
   MUHWI_COLLECTIVE_OP_CODE_...
   */
  uint8_t Op_Code;
  /*
   Bytes of a word.
   */
  uint16_t Word_Length;
  /*
   The class route.
   */
  uint8_t Class_Route;
  /*
   Virtual channel and MUHWI_COLLECTIVE_TYPE_...
   */
  uint8_t Misc;
  /*
   Words of 4 bytes that the injection checksum skips.
   */
  uint16_t Skip;
} MUSPI_CollectiveDescriptorInfoFields_t;

/*
 A collective memory-FIFO message.
 */
typedef struct MUSPI_CollectiveMemoryFIFODescriptorInfo_t {
  /*
   Fields that all descriptors have.
   */
  struct MUSPI_BaseDescriptorInfoFields_t Base;
  /*
   The way.
   */
  struct MUSPI_CollectiveDescriptorInfoFields_t Collective;
  /*
   The target.
   */
  struct MUSPI_MemoryFIFODescriptorInfoFields_t MemFIFO;
} MUSPI_CollectiveMemoryFIFODescriptorInfo_t;

/*
 A collective direct put.
 */
typedef struct MUSPI_CollectiveDirectPutDescriptorInfo_t {
  /*
   Fields that all descriptors have.
   */
  struct MUSPI_BaseDescriptorInfoFields_t Base;
  /*
   The way.
   */
  struct MUSPI_CollectiveDescriptorInfoFields_t Collective;
  /*
   The target.
   */
  struct MUSPI_DirectPutDescriptorInfoFields_t DirectPut;
} MUSPI_CollectiveDirectPutDescriptorInfo_t;

/*
 A collective remote get.
 */
typedef struct MUSPI_CollectiveRemoteGetDescriptorInfo_t {
  /*
   Fields that all descriptors have.
   */
  struct MUSPI_BaseDescriptorInfoFields_t Base;
  /*
   The way.
   */
  struct MUSPI_CollectiveDescriptorInfoFields_t Collective;
  /*
   The target.
   */
  struct MUSPI_RemoteGetDescriptorInfoFields_t RemoteGet;
} MUSPI_CollectiveRemoteGetDescriptorInfo_t;

/*
 A function that receives packets. `packet` has `packet_bytes` bytes: the header, and the payload
 after it. They are valid during the call.
 */
typedef int (*MUSPI_RecvFunction_t)(void *param, MUHWI_PacketHeader_t *packet, uint32_t packet_bytes);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Prepares a barrier of a class route. Its route is set by Kernel_SetGlobalInterruptClassRoute.
 An earlier barrier of the class route is forgotten.

 # Safety
 `GIBarrier` is NULL or valid.
 */
int32_t MUSPI_GIBarrierInit(struct MUSPI_GIBarrier_t *GIBarrier, uint32_t classRouteId);

/*
 Enters a barrier for this node. It does not wait. Returns -EACCES if the class route has no part
 of this node, or is the system's.

 # Safety
 `GIBarrier` is NULL, or from MUSPI_GIBarrierInit.
 */
int32_t MUSPI_GIBarrierEnter(struct MUSPI_GIBarrier_t *GIBarrier);

/*
 Returns 0 when the barrier is complete, and -EAGAIN when it is not.

 # Safety
 `GIBarrier` is NULL, or from MUSPI_GIBarrierInit.
 */
int32_t MUSPI_GIBarrierPoll(struct MUSPI_GIBarrier_t *GIBarrier);

/*
 Waits until the barrier is complete, at most `timeoutInCycles` cycles of 1.6 GHz. Returns 0, or
 -EAGAIN when the barrier is not complete.

 # Safety
 `GIBarrier` is NULL, or from MUSPI_GIBarrierInit.
 */
int32_t MUSPI_GIBarrierPollWithTimeout(struct MUSPI_GIBarrier_t *GIBarrier, uint64_t timeoutInCycles);

/*
 Enters a barrier, and waits until it is complete. Returns -EACCES as MUSPI_GIBarrierEnter.

 # Safety
 `GIBarrier` is NULL, or from MUSPI_GIBarrierInit.
 */
int32_t MUSPI_GIBarrierEnterAndWait(struct MUSPI_GIBarrier_t *GIBarrier);

/*
 Enters a barrier, and waits until it is complete, at most `timeoutInCycles` cycles of 1.6 GHz.
 Returns 0, -EAGAIN when the barrier is not complete, or -EACCES as MUSPI_GIBarrierEnter.

 # Safety
 `GIBarrier` is NULL, or from MUSPI_GIBarrierInit.
 */
int32_t MUSPI_GIBarrierEnterAndWaitWithTimeout(struct MUSPI_GIBarrier_t *GIBarrier, uint64_t timeoutInCycles);

/*
 Allocates a class route of collectives. It opens the node's kernel.
 */
int32_t Kernel_AllocateCollectiveClassRoute(uint32_t id);

/*
 Frees a class route of collectives.
 */
int32_t Kernel_DeallocateCollectiveClassRoute(uint32_t id);

/*
 Sets this node's part of a class route of collectives.

 # Safety
 `cr` is NULL or valid.
 */
int32_t Kernel_SetCollectiveClassRoute(uint32_t id, struct ClassRoute_t *cr);

/*
 Allocates a class route of barriers. It opens the node's kernel.

 # Safety
 `attributes` is NULL or valid.
 */
int32_t Kernel_AllocateGlobalInterruptClassRoute(uint32_t id,
                                                 struct Kernel_GlobalInterruptClassRouteAttributes_t *attributes);

/*
 Frees a class route of barriers.
 */
int32_t Kernel_DeallocateGlobalInterruptClassRoute(int32_t id);

/*
 Sets this node's part of a class route of barriers.

 # Safety
 `cr` is NULL or valid.
 */
int32_t Kernel_SetGlobalInterruptClassRoute(int32_t id, struct ClassRoute_t *cr);

/*
 Stores this node's part of the class route that spans a box of nodes (`comm`): a range of
 coordinates in each dimension. The route's tree follows the dimensions in the order A to E, so
 that `dims` must be NULL and `dim0` 0. The node's own contribution is one of the inputs. The
 caller adds the bits of the virtual channel. `world` is not used, and may be NULL.

 # Safety
 `world` is not used; `worldroot`, `me`, `comm` and `cr` are NULL or valid.
 */
int32_t MUSPI_BuildNodeClassroute(struct CR_RECT_T *world,
                                  struct CR_COORD_T *worldroot,
                                  struct CR_COORD_T *me,
                                  struct CR_RECT_T *comm,
                                  int32_t *dims,
                                  int32_t dim0,
                                  struct ClassRoute_t *cr);

/*
 Assigns an injection FIFO `size_1 + 1` bytes at an offset of a memory region, both multiples of
 64. The FIFO makes no progress then, and is empty.

 # Safety
 `sg_ptr` is NULL, or from Kernel_AllocateInjFifos; `memregion` is NULL or valid.
 */
int32_t Kernel_InjFifoInit(struct MUSPI_InjFifoSubGroup_t *sg_ptr,
                           uint32_t fifoid,
                           struct Kernel_MemoryRegion_t *memregion,
                           uint64_t startoffset,
                           uint64_t size_1);

/*
 Assigns a reception FIFO `size_1 + 1` bytes at an offset of a memory region, both multiples of
 32. The FIFO takes no packets then, and is empty.

 # Safety
 `sg_ptr` is NULL, or from Kernel_AllocateRecFifos; `memregion` is NULL or valid.
 */
int32_t Kernel_RecFifoInit(struct MUSPI_RecFifoSubGroup_t *sg_ptr,
                           uint32_t fifoid,
                           struct Kernel_MemoryRegion_t *memregion,
                           uint64_t startoffset,
                           uint64_t size_1);

/*
 Activates injection FIFOs (KERNEL_INJ_FIFO_ACTIVATE) or stops them
 (KERNEL_INJ_FIFO_DEACTIVATE).

 # Safety
 `sg_ptr` is NULL, or from Kernel_AllocateInjFifos; `fifoids` is NULL or has `nfifos` numbers.
 */
int32_t Kernel_InjFifoActivate(struct MUSPI_InjFifoSubGroup_t *sg_ptr,
                               uint32_t nfifos,
                               uint32_t *fifoids,
                               uint32_t activate);

/*
 Enables reception FIFOs of a group of four subgroups. Bit 15 of `enableBits` is FIFO 0 of the
 group's first subgroup, and bit 0 is FIFO 3 of its last one.
 */
int32_t Kernel_RecFifoEnable(uint32_t groupid, uint64_t enableBits);

/*
 Disables reception FIFOs of a group of four subgroups. The bits are those of
 Kernel_RecFifoEnable.
 */
int32_t Kernel_RecFifoDisable(uint32_t groupid, uint64_t disableBits);

/*
 Sets an entry of a base address table.

 # Safety
 `bat` is NULL, or from Kernel_AllocateBaseAddressTable.
 */
int32_t MUSPI_SetBaseAddress(struct MUSPI_BaseAddressTableSubGroup_t *bat,
                             uint8_t entryid,
                             MUHWI_BaseAddress_t baseAddress);

/*
 Returns an entry of a base address table, or all ones for one that is not set or not allocated.

 # Safety
 `bat` is NULL, or from Kernel_AllocateBaseAddressTable.
 */
MUHWI_BaseAddress_t MUSPI_GetBaseAddress(struct MUSPI_BaseAddressTableSubGroup_t *bat, uint8_t entryid);

/*
 Returns the offset of an address from an entry of a base address table; all ones after an error.

 # Safety
 `bat` is NULL, or from Kernel_AllocateBaseAddressTable.
 */
uint64_t MUSPI_GetOffsetFromBaseAddress(struct MUSPI_BaseAddressTableSubGroup_t *bat,
                                        uint8_t entryid,
                                        uint64_t pa);

/*
 Returns the offset by which a put applies the atomic operation `op`, one of
 MUHWI_ATOMIC_OPCODE_STORE_..., to the 8 aligned bytes at an address. The entry of the base
 address table must be an address without an operation. Returns all ones after an error.

 # Safety
 `bat` is NULL, or from Kernel_AllocateBaseAddressTable.
 */
uint64_t MUSPI_GetAtomicOffsetFromBaseAddress(struct MUSPI_BaseAddressTableSubGroup_t *bat,
                                              uint8_t entryid,
                                              uint64_t pa,
                                              uint64_t op);

/*
 Prepares a line of a class route, GIId 0 to 2. The route is set by
 Kernel_SetGlobalInterruptClassRoute, and its lines are clear then.

 # Safety
 `GI` is NULL or valid.
 */
int32_t MUSPI_GIInit(struct MUSPI_GI_t *GI, uint32_t classRouteId, uint32_t GIId);

/*
 Sets a line for this node. All nodes of the class route see it, until MUSPI_GISendClear.

 # Safety
 `GI` is NULL, or from MUSPI_GIInit.
 */
int32_t MUSPI_GISend(struct MUSPI_GI_t *GI);

/*
 Clears a line for this node. It stays set as long as another node sets it.

 # Safety
 `GI` is NULL, or from MUSPI_GIInit.
 */
int32_t MUSPI_GISendClear(struct MUSPI_GI_t *GI);

/*
 Returns 0 when a line is set, and -EAGAIN when it is not.

 # Safety
 `GI` is NULL, or from MUSPI_GIInit.
 */
int32_t MUSPI_GIPollForArrival(struct MUSPI_GI_t *GI);

/*
 Waits until a line is set, at most `timeoutInCycles` cycles of 1.6 GHz. Returns 0, or -EAGAIN
 when the line is not set.

 # Safety
 `GI` is NULL, or from MUSPI_GIInit.
 */
int32_t MUSPI_GIPollForArrivalWithTimeout(struct MUSPI_GI_t *GI, uint64_t timeoutInCycles);

/*
 Returns 0 when a line is clear, and -EAGAIN when it is not.

 # Safety
 `GI` is NULL, or from MUSPI_GIInit.
 */
int32_t MUSPI_GIPollForClear(struct MUSPI_GI_t *GI);

/*
 Waits until a line is clear, at most `timeoutInCycles` cycles of 1.6 GHz. Returns 0, or -EAGAIN
 when the line is not clear.

 # Safety
 `GI` is NULL, or from MUSPI_GIInit.
 */
int32_t MUSPI_GIPollForClearWithTimeout(struct MUSPI_GI_t *GI, uint64_t timeoutInCycles);

/*
 Enables (KERNEL_GI_INTERRUPT_FLAG_ENABLE) or disables the interrupt by which a line wakes waits.
 It opens the node's kernel. Without the interrupt, waits see the line a little later.
 */
int32_t Kernel_ConfigureGIInterrupts(uint32_t id, uint32_t giId, uint32_t interruptFlag);

/*
 Returns an injection FIFO of a subgroup, or NULL if none has this number.

 # Safety
 `fg_ptr` is NULL or valid.
 */
struct MUSPI_InjFifo_t *MUSPI_IdToInjFifo(int32_t fifoid, struct MUSPI_InjFifoSubGroup_t *fg_ptr);

/*
 Injects a descriptor. Returns its sequence number, with which MUSPI_CheckDescComplete asks for
 its end. Returns all ones when the FIFO has no room, or after an error. An error sets the text
 of nicforge_spi_last_error.

 # Safety
 `injfifo` is NULL, or from MUSPI_IdToInjFifo; `desc` is NULL or valid.
 */
uint64_t MUSPI_InjFifoInject(struct MUSPI_InjFifo_t *injfifo, void *desc);

/*
 Injects `ndesc` descriptors, all or none. Returns the sequence number of the last one, as
 MUSPI_InjFifoInject.

 # Safety
 `injfifo` is NULL, or from MUSPI_IdToInjFifo; `desc` is NULL or has `ndesc` descriptors, at a
 multiple of 8.
 */
uint64_t MUSPI_InjFifoInjectMultiple(struct MUSPI_InjFifo_t *injfifo, void *desc, uint32_t ndesc);

/*
 Returns 1 when the descriptor with this sequence number is done, and 0 when it is not. Returns a
 negative error number when the unit has stopped the FIFO, and -ECANCELED when
 nicforge_spi_restart has withdrawn the descriptor: it will never be done.

 # Safety
 `injfifo` is NULL, or from MUSPI_IdToInjFifo.
 */
int32_t MUSPI_CheckDescComplete(struct MUSPI_InjFifo_t *injfifo, uint64_t desc_count);

/*
 Returns the number of descriptors that fit into a FIFO now; 0 after an error.

 # Safety
 `injfifo` is NULL, or from MUSPI_IdToInjFifo.
 */
uint64_t MUSPI_getHwFreeSpace(struct MUSPI_InjFifo_t *injfifo);

/*
 Restarts an injection FIFO, empty and active, after the unit has stopped it. The sequence
 numbers of later descriptors go on behind those of the withdrawn ones.

 # Safety
 `injfifo` is NULL, or from MUSPI_IdToInjFifo.
 */
int32_t nicforge_spi_restart(struct MUSPI_InjFifo_t *injfifo);

/*
 Chooses the injection FIFOs whose thresholds wake nicforge_spi_wait_interrupts.

 # Safety
 `sg_ptr` is NULL, or from Kernel_AllocateInjFifos; `fifoids` and `fifoInterrupts` are NULL or
 have `nfifos` elements.
 */
int32_t Kernel_ConfigureInjFifoInterrupts(struct MUSPI_InjFifoSubGroup_t *sg_ptr,
                                          uint32_t nfifos,
                                          uint32_t *fifoids,
                                          struct Kernel_InjFifoInterrupts_t *fifoInterrupts);

/*
 Chooses the reception FIFOs whose thresholds wake nicforge_spi_wait_interrupts, and those whose
 packets do if they ask for an interrupt.

 # Safety
 `sg_ptr` is NULL, or from Kernel_AllocateRecFifos; `fifoids` and `fifoInterrupts` are NULL or
 have `nfifos` elements.
 */
int32_t Kernel_ConfigureRecFifoInterrupts(struct MUSPI_RecFifoSubGroup_t *sg_ptr,
                                          uint32_t nfifos,
                                          uint32_t *fifoids,
                                          struct Kernel_RecFifoInterrupts_t *fifoInterrupts);

/*
 Sets the thresholds of the injection FIFOs of all subgroups, in descriptors of free space. A
 FIFO interrupts above `*normalThreshold`; one for remote gets interrupts below
 `*remoteGetThreshold`. NULL leaves a threshold as it is. It opens the node's kernel.

 # Safety
 `normalThreshold` and `remoteGetThreshold` are NULL or valid.
 */
int32_t Kernel_ConfigureInjFifoThresholds(uint64_t *normalThreshold, uint64_t *remoteGetThreshold);

/*
 Sets the threshold of the reception FIFOs of all subgroups: the free space in chunks of 32 bytes
 below which a FIFO interrupts. It opens the node's kernel.
 */
int32_t Kernel_ConfigureRecFifoThreshold(uint64_t threshold);

/*
 Waits until one of the `wanted` interrupts of a subgroup is pending, for at most
 `timeoutInCycles` cycles of 1.6 GHz. Stores the pending ones in `*come`, and clears them.
 Returns 0, or -EAGAIN when none is pending.

 The bits are NICFORGE_SPI_INTERRUPT_INJECTION, NICFORGE_SPI_INTERRUPT_RECEPTION and
 NICFORGE_SPI_INTERRUPT_PACKET, each shifted by the number of a FIFO.

 # Safety
 `come` is NULL or valid.
 */
int32_t nicforge_spi_wait_interrupts(uint32_t subgrpid,
                                     uint32_t wanted,
                                     uint64_t timeoutInCycles,
                                     uint32_t *come);

/*
 Returns the text of the calling thread's last error in any call of libnicforge; an empty text
 without one. It is valid until the thread's next error.
 */
const char *nicforge_spi_last_error(void);

/*
 Closes all subgroups and the kernel that this process has opened. Their memory and structures
 are not valid any more. Calls of other threads must have ended. A function that receives packets
 must not call it.
 */
void nicforge_spi_close(void);

/*
 Allocates memory that the unit reaches, for a subgroup, rounded up to whole pages. It stays
 valid until nicforge_spi_close. Returns NULL after an error.
 */
void *nicforge_spi_allocate(uint32_t subgrpid, size_t bytes);

/*
 Returns the node's coordinates in the network. `size` is the size of the structure.

 # Safety
 `personality` is NULL or valid.
 */
int32_t Kernel_GetPersonality(struct Personality_t *personality, size_t size);

/*
 Describes memory from nicforge_spi_allocate to the unit. Other memory gives -EFAULT: the unit
 reaches shared memory only.

 # Safety
 `memregion` is NULL or valid.
 */
int32_t Kernel_CreateMemoryRegion(struct Kernel_MemoryRegion_t *memregion,
                                  void *base_virtualaddress,
                                  size_t requested_size);

/*
 Forgets a description of memory. The memory stays.

 # Safety
 `memregion` is NULL or valid.
 */
int32_t Kernel_DestroyMemoryRegion(struct Kernel_MemoryRegion_t *memregion);

/*
 Returns the injection FIFOs of a subgroup that are not allocated: at most 8.

 # Safety
 `nfifos` is NULL or valid; `fifoids` is NULL or has 8 writable numbers.
 */
int32_t Kernel_QueryInjFifos(uint32_t subgrpid, uint32_t *nfifos, uint32_t *fifoids);

/*
 Returns the reception FIFOs of a subgroup that are not allocated: at most 4.

 # Safety
 `nfifos` is NULL or valid; `fifoids` is NULL or has 4 writable numbers.
 */
int32_t Kernel_QueryRecFifos(uint32_t subgrpid, uint32_t *nfifos, uint32_t *fifoids);

/*
 Returns the entries of a subgroup's base address table that are not allocated: at most 8.

 # Safety
 `nbatids` is NULL or valid; `batids` is NULL or has 8 writable numbers.
 */
int32_t Kernel_QueryBaseAddressTable(uint32_t subgrpid, uint32_t *nbatids, uint32_t *batids);

/*
 Allocates injection FIFOs of a subgroup, all or none, with an attribute structure for each, and
 opens the subgroup. Fills in `*sg_ptr`, which MUSPI_IdToInjFifo takes.

 # Safety
 `sg_ptr` is NULL or valid; `fifoids` and `fifoAttrs` are NULL or have `nfifos` elements.
 */
int32_t Kernel_AllocateInjFifos(uint32_t subgrpid,
                                struct MUSPI_InjFifoSubGroup_t *sg_ptr,
                                uint32_t nfifos,
                                uint32_t *fifoids,
                                struct Kernel_InjFifoAttributes_t *fifoAttrs);

/*
 Allocates reception FIFOs of a subgroup, all or none, with an attribute structure for each, and
 opens the subgroup if it is not open. Fills in `*sg_ptr`, which MUSPI_IdToRecFifo takes.

 # Safety
 `sg_ptr` is NULL or valid; `fifoids` and `fifoAttrs` are NULL or have `nfifos` elements.
 */
int32_t Kernel_AllocateRecFifos(uint32_t subgrpid,
                                struct MUSPI_RecFifoSubGroup_t *sg_ptr,
                                uint32_t nfifos,
                                uint32_t *fifoids,
                                struct Kernel_RecFifoAttributes_t *fifoAttrs);

/*
 Allocates entries of a subgroup's base address table, all or none, and opens the subgroup. Fills
 in `*sg_ptr`, which MUSPI_SetBaseAddress takes.

 # Safety
 `sg_ptr` is NULL or valid; `batids` is NULL or has `nbatids` numbers.
 */
int32_t Kernel_AllocateBaseAddressTable(uint32_t subgrpid,
                                        struct MUSPI_BaseAddressTableSubGroup_t *sg_ptr,
                                        uint32_t nbatids,
                                        uint32_t *batids,
                                        uint32_t system);

/*
 Stops and frees injection FIFOs, all or none.

 # Safety
 `sg_ptr` is NULL, or from Kernel_AllocateInjFifos; `fifoids` is NULL or has `nfifos` numbers.
 */
int32_t Kernel_DeallocateInjFifos(struct MUSPI_InjFifoSubGroup_t *sg_ptr, uint32_t nfifos, uint32_t *fifoids);

/*
 Stops and frees reception FIFOs, all or none.

 # Safety
 `sg_ptr` is NULL, or from Kernel_AllocateRecFifos; `fifoids` is NULL or has `nfifos` numbers.
 */
int32_t Kernel_DeallocateRecFifos(struct MUSPI_RecFifoSubGroup_t *sg_ptr, uint32_t nfifos, uint32_t *fifoids);

/*
 Clears and frees entries of a base address table, all or none.

 # Safety
 `sg_ptr` is NULL, or from Kernel_AllocateBaseAddressTable; `batids` is NULL or has `nbatids`
 numbers.
 */
int32_t Kernel_DeallocateBaseAddressTable(struct MUSPI_BaseAddressTableSubGroup_t *sg_ptr,
                                          uint32_t nbatids,
                                          uint32_t *batids);

/*
 Makes the descriptor of a point-to-point memory-FIFO message. A field without a meaning gives
 -EINVAL.

 # Safety
 `desc` and `info` are NULL or valid.
 */
int32_t MUSPI_CreatePt2PtMemoryFIFODescriptor(MUHWI_Descriptor_t *desc,
                                              struct MUSPI_Pt2PtMemoryFIFODescriptorInfo_t *info);

/*
 Makes the descriptor of a point-to-point direct put of 1 byte or more. A field without a
 meaning gives -EINVAL.

 # Safety
 `desc` and `info` are NULL or valid.
 */
int32_t MUSPI_CreatePt2PtDirectPutDescriptor(MUHWI_Descriptor_t *desc,
                                             struct MUSPI_Pt2PtDirectPutDescriptorInfo_t *info);

/*
 Makes the descriptor of a point-to-point remote get, whose payload is descriptors. A field
 without a meaning gives -EINVAL.

 # Safety
 `desc` and `info` are NULL or valid.
 */
int32_t MUSPI_CreatePt2PtRemoteGetDescriptor(MUHWI_Descriptor_t *desc,
                                             struct MUSPI_Pt2PtRemoteGetDescriptorInfo_t *info);

/*
 Makes the descriptor of a collective memory-FIFO message. A field without a meaning gives
 -EINVAL.

 # Safety
 `desc` and `info` are NULL or valid.
 */
int32_t MUSPI_CreateCollectiveMemoryFIFODescriptor(MUHWI_Descriptor_t *desc,
                                                   struct MUSPI_CollectiveMemoryFIFODescriptorInfo_t *info);

/*
 Makes the descriptor of a collective direct put of 1 byte or more. Returns -EINVAL if a field
 has no valid value.

 # Safety
 `desc` and `info` are NULL or valid.
 */
int32_t MUSPI_CreateCollectiveDirectPutDescriptor(MUHWI_Descriptor_t *desc,
                                                  struct MUSPI_CollectiveDirectPutDescriptorInfo_t *info);

/*
 Makes the descriptor of a collective remote get, whose payload is descriptors. A field without
 a meaning gives -EINVAL.

 # Safety
 `desc` and `info` are NULL or valid.
 */
int32_t MUSPI_CreateCollectiveRemoteGetDescriptor(MUHWI_Descriptor_t *desc,
                                                  struct MUSPI_CollectiveRemoteGetDescriptorInfo_t *info);

/*
 Sets the function for packets whose first software byte is `id`, in place of an earlier one.
 Returns 0, or a negative error number; the public function returns nothing.

 # Safety
 `fn_` may be called with `param` and a packet until it is replaced.
 */
int32_t MUSPI_RegisterRecvFunction(MUSPI_RecvFunction_t fn_, void *param, uint32_t id);

/*
 Sets the function of the lowest free id. Returns the id, or a negative error number.

 # Safety
 As MUSPI_RegisterRecvFunction.
 */
int32_t MUSPI_RegisterReceiveFunction(MUSPI_RecvFunction_t fn_, void *param);

/*
 Removes the function of an id.
 */
int32_t MUSPI_DeRegisterReceiveFunction(uint32_t id);

/*
 Returns a reception FIFO of a subgroup, or NULL if none has this number.

 # Safety
 `fg_ptr` is NULL or valid.
 */
struct MUSPI_RecFifo_t *MUSPI_IdToRecFifo(int32_t fifoid, struct MUSPI_RecFifoSubGroup_t *fg_ptr);

/*
 Removes at most `npackets` packets from a FIFO, and passes each to the function registered for
 its first software byte. A packet without a function is dropped. It does not wait for packets.

 Returns the number of packets removed, dropped ones included. Returns 0 when the FIFO is empty,
 and also after an error, which sets the text of nicforge_spi_last_error.

 A registered function may call all functions of this header except nicforge_spi_close, also for
 this FIFO. MUSPI_RecFifoPoll removes up to 8 packets before it passes on the first of them. So
 when a registered function calls it, later packets are passed on before the rest of those 8.

 # Safety
 `rec_fifo` is NULL, or from MUSPI_IdToRecFifo. The contract of MUSPI_RegisterRecvFunction holds
 for all registered functions.
 */
uint32_t MUSPI_RecFifoPoll(struct MUSPI_RecFifo_t *rec_fifo, uint32_t npackets);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NICFORGE_SPI_H */

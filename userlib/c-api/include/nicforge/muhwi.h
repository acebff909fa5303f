/*
 * Descriptors, packets and addresses of the Message Unit of Blue Gene/Q, by the names of the public
 * headers. <nicforge/spi.h> includes this file.
 *
 * Words are little-endian here: a bit field begins at the lowest bit. Field names and values are the
 * public ones.
 */

#ifndef NICFORGE_MUHWI_H
#define NICFORGE_MUHWI_H

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sizes in bytes. */
#define BGQ_MU_DESCRIPTOR_SIZE_IN_BYTES 64
#define BGQ_MU_DESCRIPTOR_SIZE_IN_POWER_OF_2 6
#define BGQ_MU_MIN_INJFIFO_SIZE_IN_BYTES (2 * BGQ_MU_DESCRIPTOR_SIZE_IN_BYTES)
#define BGQ_MU_MIN_RECFIFO_SIZE_IN_BYTES (544 + 32)
#define MUHWI_PACKET_HEADER_SIZE_IN_BYTES 32
#define MUHWI_PACKET_MAX_PAYLOAD_SIZE_IN_BYTES 512

/* Kinds of packets: Data_Packet_Type. */
#define MUHWI_PT2PT_DATA_PACKET_TYPE 0x55
#define MUHWI_COLLECTIVE_DATA_PACKET_TYPE 0x5a

/* MUHWI_Descriptor_t: Half_Word0 and Half_Word1. */
#define MUHWI_DESCRIPTOR_PRE_FETCH_ONLY_YES 1
#define MUHWI_DESCRIPTOR_PRE_FETCH_ONLY_NO 0
#define MUHWI_DESCRIPTOR_INTERRUPT_ON_PACKET_ARRIVAL 1
#define MUHWI_DESCRIPTOR_DO_NOT_INTERRUPT_ON_PACKET_ARRIVAL 0

/* Network injection FIFOs: Torus_FIFO_Map. */
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_AM 0x8000ULL
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_AP 0x4000ULL
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_BM 0x2000ULL
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_BP 0x1000ULL
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_CM 0x0800ULL
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_CP 0x0400ULL
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_DM 0x0200ULL
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_DP 0x0100ULL
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_EM 0x0080ULL
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_EP 0x0040ULL
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_LOCAL0 0x0020ULL
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_LOCAL1 0x0010ULL
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_PRIORITY 0x0008ULL
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_SYSTEM 0x0004ULL
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_CUSER 0x0002ULL
#define MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_CSYSTEM 0x0001ULL

/* Hints in A to D: Hints_ABCD. */
#define MUHWI_PACKET_HINT_A_NONE 0x00
#define MUHWI_PACKET_HINT_AM 0x80
#define MUHWI_PACKET_HINT_AP 0x40
#define MUHWI_PACKET_HINT_B_NONE 0x00
#define MUHWI_PACKET_HINT_BM 0x20
#define MUHWI_PACKET_HINT_BP 0x10
#define MUHWI_PACKET_HINT_C_NONE 0x00
#define MUHWI_PACKET_HINT_CM 0x08
#define MUHWI_PACKET_HINT_CP 0x04
#define MUHWI_PACKET_HINT_D_NONE 0x00
#define MUHWI_PACKET_HINT_DM 0x02
#define MUHWI_PACKET_HINT_DP 0x01

/* Hints in E, routing, deposit and interrupt: Misc1. */
#define MUHWI_PACKET_HINT_E_NONE 0x00
#define MUHWI_PACKET_HINT_EM 0x80
#define MUHWI_PACKET_HINT_EP 0x40
#define MUHWI_PACKET_ROUTE_TO_IO_NODE 0x20
#define MUHWI_PACKET_DO_NOT_ROUTE_TO_IO_NODE 0x00
#define MUHWI_PACKET_RETURN_FROM_IO_NODE_USING_TORUS_PORT_6 0x08
#define MUHWI_PACKET_RETURN_FROM_IO_NODE_USING_TORUS_PORT_7 0x10
#define MUHWI_PACKET_RETURN_FROM_IO_NODE_USING_IO_PORT 0x18
#define MUHWI_PACKET_USE_DYNAMIC_ROUTING 0x04
#define MUHWI_PACKET_USE_DETERMINISTIC_ROUTING 0x00
#define MUHWI_PACKET_DEPOSIT 0x02
#define MUHWI_PACKET_DO_NOT_DEPOSIT 0x00
#define MUHWI_PACKET_INTERRUPT_ON_PACKET_ARRIVAL 0x01
#define MUHWI_PACKET_DO_NOT_INTERRUPT_ON_PACKET_ARRIVAL 0x00

/* Virtual channels: Misc2, or Misc of a collective message. */
#define MUHWI_PACKET_VIRTUAL_CHANNEL_DYNAMIC 0x00
#define MUHWI_PACKET_VIRTUAL_CHANNEL_DETERMINISTIC 0x20
#define MUHWI_PACKET_VIRTUAL_CHANNEL_HIGH_PRIORITY 0x40
#define MUHWI_PACKET_VIRTUAL_CHANNEL_SYSTEM 0x60
#define MUHWI_PACKET_VIRTUAL_CHANNEL_USER_COMM_WORLD 0x80
#define MUHWI_PACKET_VIRTUAL_CHANNEL_USER_SUB_COMM 0xa0
#define MUHWI_PACKET_VIRTUAL_CHANNEL_SYSTEM_COLLECTIVE 0xc0

/* Zones and the bubble: Misc2. */
#define MUHWI_PACKET_ZONE_ROUTING_0 0x00
#define MUHWI_PACKET_ZONE_ROUTING_1 0x08
#define MUHWI_PACKET_ZONE_ROUTING_2 0x10
#define MUHWI_PACKET_ZONE_ROUTING_3 0x18
#define MUHWI_PACKET_STAY_ON_BUBBLE 0x04
#define MUHWI_PACKET_DO_NOT_STAY_ON_BUBBLE 0x00

/* What the receiving unit does: Packet_Type. */
#define MUHWI_PACKET_TYPE_FIFO 0x00
#define MUHWI_PACKET_TYPE_PUT 0x40
#define MUHWI_PACKET_TYPE_GET 0x80
#define MUHWI_PACKET_TYPE_PACED_GET 0xc0
#define MUHWI_PACKET_DIRECT_PUT_IS_NOT_PACED 0
#define MUHWI_PACKET_DIRECT_PUT_IS_PACED 1

/* Operations and types of collective messages: Op_Code and Misc. */
#define MUHWI_COLLECTIVE_OP_CODE_AND 0x00
#define MUHWI_COLLECTIVE_OP_CODE_OR 0x10
#define MUHWI_COLLECTIVE_OP_CODE_XOR 0x20
#define MUHWI_COLLECTIVE_OP_CODE_UNSIGNED_ADD 0x40
#define MUHWI_COLLECTIVE_OP_CODE_UNSIGNED_MIN 0x50
#define MUHWI_COLLECTIVE_OP_CODE_UNSIGNED_MAX 0x60
#define MUHWI_COLLECTIVE_OP_CODE_SIGNED_ADD 0x80
#define MUHWI_COLLECTIVE_OP_CODE_SIGNED_MIN 0x90
#define MUHWI_COLLECTIVE_OP_CODE_SIGNED_MAX 0xa0
#define MUHWI_COLLECTIVE_OP_CODE_FLOATING_POINT_ADD 0xc0
#define MUHWI_COLLECTIVE_OP_CODE_FLOATING_POINT_MIN 0xd0
#define MUHWI_COLLECTIVE_OP_CODE_FLOATING_POINT_MAX 0xe0
#define MUHWI_COLLECTIVE_TYPE_BROADCAST 0x00
#define MUHWI_COLLECTIVE_TYPE_ALLREDUCE 0x10
#define MUHWI_COLLECTIVE_TYPE_REDUCE 0x18

/* Atomic addresses. */
#define MUHWI_ATOMIC_ADDRESS_INDICATOR 0x0000001000000000ULL
#define MUHWI_ATOMIC_OPCODE_LOAD 0ULL
#define MUHWI_ATOMIC_OPCODE_LOAD_CLEAR 1ULL
#define MUHWI_ATOMIC_OPCODE_LOAD_INCREMENT 2ULL
#define MUHWI_ATOMIC_OPCODE_LOAD_DECREMENT 3ULL
#define MUHWI_ATOMIC_OPCODE_LOAD_INCREMENT_BOUNDED 4ULL
#define MUHWI_ATOMIC_OPCODE_LOAD_DECREMENT_BOUNDED 5ULL
#define MUHWI_ATOMIC_OPCODE_LOAD_INCREMENT_IF_EQUAL 6ULL
#define MUHWI_ATOMIC_OPCODE_STORE 0ULL
#define MUHWI_ATOMIC_OPCODE_STORE_TWIN 1ULL
#define MUHWI_ATOMIC_OPCODE_STORE_ADD 2ULL
#define MUHWI_ATOMIC_OPCODE_STORE_ADD_COHERENCE_ON_ZERO 3ULL
#define MUHWI_ATOMIC_OPCODE_STORE_OR 4ULL
#define MUHWI_ATOMIC_OPCODE_STORE_XOR 5ULL
#define MUHWI_ATOMIC_OPCODE_STORE_MAX_UNSIGNED 6ULL
#define MUHWI_ATOMIC_OPCODE_STORE_MAX_SIGNED 7ULL

/* Links and channels of class routes. */
#define BGQ_CLASS_LINK_AM (1 << 11)
#define BGQ_CLASS_LINK_AP (1 << 10)
#define BGQ_CLASS_LINK_BM (1 << 9)
#define BGQ_CLASS_LINK_BP (1 << 8)
#define BGQ_CLASS_LINK_CM (1 << 7)
#define BGQ_CLASS_LINK_CP (1 << 6)
#define BGQ_CLASS_LINK_DM (1 << 5)
#define BGQ_CLASS_LINK_DP (1 << 4)
#define BGQ_CLASS_LINK_EM (1 << 3)
#define BGQ_CLASS_LINK_EP (1 << 2)
#define BGQ_CLASS_LINK_IO (1 << 1)
#define BGQ_CLASS_INPUT_LINK_LOCAL (1 << 0)
#define BGQ_CLASS_INPUT_VC_USER (0 << 12)
#define BGQ_CLASS_INPUT_VC_SYSTEM (1 << 12)
#define BGQ_CLASS_INPUT_VC_SUBCOMM (2 << 12)

/* A node by its coordinates. */
__extension__ typedef struct MUHWI_Destination {
    union {
        uint32_t Destination;
        struct {
            uint32_t E_Destination : 6;
            uint32_t D_Destination : 6;
            uint32_t C_Destination : 6;
            uint32_t B_Destination : 6;
            uint32_t A_Destination : 6;
            uint32_t Reserved2 : 2;
        };
    } Destination;
} MUHWI_Destination_t;

/* The network's part of a point-to-point header. */
__extension__ typedef struct MUHWI_Pt2PtNetworkHeader {
    uint8_t Data_Packet_Type;
    uint8_t Hints;
    union {
        uint8_t Byte2;
        struct {
            uint8_t Interrupt : 1;
            uint8_t Deposit : 1;
            uint8_t Dynamic : 1;
            uint8_t Return_From_IO_Node : 2;
            uint8_t Route_To_IO_Node : 1;
            uint8_t Hint_E_plus : 1;
            uint8_t Hint_E_minus : 1;
        };
    } Byte2;
    union {
        uint8_t Byte3;
        struct {
            uint8_t Reserved1 : 2;
            uint8_t Stay_On_Bubble : 1;
            uint8_t Zone_Routing_Id : 2;
            uint8_t Virtual_channel : 3;
        };
    } Byte3;
    MUHWI_Destination_t Destination;
    union {
        uint8_t Byte8;
        struct {
            uint8_t Size : 5;
            uint8_t Reserved3 : 1;
            uint8_t Packet_Type : 2;
        };
    } Byte8;
    union {
        uint8_t Injection_Info[3];
        struct {
            uint8_t Reserved4[2];
            uint8_t Skip;
        };
    } Injection_Info;
} MUHWI_Pt2PtNetworkHeader_t;

/* The network's part of a collective header. */
__extension__ typedef struct MUHWI_CollectiveNetworkHeader {
    uint8_t Data_Packet_Type;
    union {
        uint8_t Byte1;
        struct {
            uint8_t Word_Length : 4;
            uint8_t OpCode : 4;
        };
    } Byte1;
    union {
        uint8_t Byte2;
        struct {
            uint8_t Interrupt : 1;
            uint8_t Reserved1 : 3;
            uint8_t Class_Route : 4;
        };
    } Byte2;
    union {
        uint8_t Byte3;
        struct {
            uint8_t Reserved2 : 3;
            uint8_t Collective_Type : 2;
            uint8_t Virtual_channel : 3;
        };
    } Byte3;
    MUHWI_Destination_t Destination;
    union {
        uint8_t Byte8;
        struct {
            uint8_t Size : 5;
            uint8_t Reserved3 : 1;
            uint8_t Packet_Type : 2;
        };
    } Byte8;
    union {
        uint8_t Injection_Info[3];
        struct {
            uint8_t Reserved4[2];
            uint8_t Skip;
        };
    } Injection_Info;
} MUHWI_CollectiveNetworkHeader_t;

/* The Message Unit's part of a header. */
__extension__ typedef struct MUHWI_MessageUnitHeader {
    union {
        struct __attribute__((__packed__)) {
            uint16_t Put_Offset_MSB : 5;
            uint16_t Unused1 : 1;
            uint16_t Rec_FIFO_Id : 9;
            uint16_t Reserved1 : 1;
            uint32_t Put_Offset_LSB;
            uint8_t Unused2[14];
        } Memory_FIFO;
        struct __attribute__((__packed__)) {
            uint16_t Put_Offset_MSB : 5;
            uint16_t Pacing : 1;
            uint16_t Rec_Payload_Base_Address_Id : 10;
            uint32_t Put_Offset_LSB;
            uint16_t Rec_Counter_Base_Address_Id : 10;
            uint16_t Unused1 : 6;
            uint16_t Valid_Bytes_In_Payload;
            uint16_t Unused2;
            uint64_t Counter_Offset;
        } Direct_Put;
        struct __attribute__((__packed__)) {
            uint16_t Unused1 : 6;
            uint16_t Rget_Inj_FIFO_Id : 10;
            uint8_t Unused2[18];
        } Remote_Get;
    } Packet_Types;
} MUHWI_MessageUnitHeader_t;

/* The header of a packet. */
__extension__ typedef struct MUHWI_PacketHeader {
    union {
        MUHWI_Pt2PtNetworkHeader_t pt2pt;
        MUHWI_CollectiveNetworkHeader_t collective;
    } NetworkHeader;
    MUHWI_MessageUnitHeader_t messageUnitHeader;
} MUHWI_PacketHeader_t;

/* A descriptor. */
__extension__ typedef struct MUHWI_Descriptor {
    union {
        uint32_t Half_Word0;
        struct {
            uint32_t Prefetch_Only : 1;
            uint32_t Unused1 : 31;
        };
    } Half_Word0;
    union {
        uint32_t Half_Word1;
        struct {
            uint32_t Interrupt : 1;
            uint32_t Unused2 : 31;
        };
    } Half_Word1;
    uint64_t Pa_Payload;
    uint64_t Message_Length;
    uint64_t Torus_FIFO_Map;
    MUHWI_PacketHeader_t PacketHeader;
} __attribute__((__aligned__(32))) MUHWI_Descriptor_t;

/* The compiler refuses a negative size. */
typedef char nicforge_muhwi_descriptor_size[sizeof(MUHWI_Descriptor_t) == 64 ? 1 : -1];
typedef char nicforge_muhwi_header_size[sizeof(MUHWI_PacketHeader_t) == 32 ? 1 : -1];

/* Sets a destination by its coordinates, 0 to 63 each. */
static inline void MUSPI_SetUpDestination(MUHWI_Destination_t *dest, uint32_t A, uint32_t B, uint32_t C,
                                          uint32_t D, uint32_t E)
{
    const uint32_t coordinates[] = { A, B, C, D, E };
    uint32_t word = 0;
    unsigned int dimension;

    for (dimension = 0; dimension < 5; ++dimension)
        word = word << 6 | (coordinates[dimension] & 0x3f);
    dest->Destination.Destination = word;
}

/* Sets the address and the length of a descriptor's payload. */
static inline void MUSPI_SetPayload(MUHWI_Descriptor_t *desc, uint64_t payloadAddress, uint64_t messageLength)
{
    desc->Message_Length = messageLength;
    desc->Pa_Payload = payloadAddress;
}

/* Sets the destination of a descriptor. */
static inline void MUSPI_SetDestination(MUHWI_Descriptor_t *desc, MUHWI_Destination_t dest)
{
    desc->PacketHeader.NetworkHeader.pt2pt.Destination = dest;
}

/* Sets the network injection FIFOs of a descriptor. */
static inline void MUSPI_SetTorusInjectionFIFOMap(MUHWI_Descriptor_t *desc, uint64_t torusFIFOMap)
{
    desc->Torus_FIFO_Map = torusFIFOMap;
}

/* Sets a software byte of a memory-FIFO descriptor, 0 to 13. */
static inline void MUSPI_SetSoftwareByte(MUHWI_Descriptor_t *desc, uint8_t byteNumber, uint8_t byteValue)
{
    if (byteNumber < 14)
        desc->PacketHeader.messageUnitHeader.Packet_Types.Memory_FIFO.Unused2[byteNumber] = byteValue;
}

/* Sets the target of a direct put's payload. */
static inline void MUSPI_SetRecPayloadBaseAddressInfo(MUHWI_Descriptor_t *desc, uint16_t id, uint64_t offset)
{
    desc->PacketHeader.messageUnitHeader.Packet_Types.Direct_Put.Rec_Payload_Base_Address_Id = id & 0x3ff;
    desc->PacketHeader.messageUnitHeader.Packet_Types.Direct_Put.Put_Offset_MSB = (offset >> 32) & 0x1f;
    desc->PacketHeader.messageUnitHeader.Packet_Types.Direct_Put.Put_Offset_LSB = (uint32_t)offset;
}

/* Sets the counter of a direct put. */
static inline void MUSPI_SetRecCounterBaseAddressInfo(MUHWI_Descriptor_t *desc, uint16_t id, uint64_t offset)
{
    desc->PacketHeader.messageUnitHeader.Packet_Types.Direct_Put.Rec_Counter_Base_Address_Id = id & 0x3ff;
    desc->PacketHeader.messageUnitHeader.Packet_Types.Direct_Put.Counter_Offset = offset;
}

/* Sets the injection FIFO of a remote get. */
static inline void MUSPI_SetRemoteGetInjFIFOId(MUHWI_Descriptor_t *desc, uint16_t id)
{
    desc->PacketHeader.messageUnitHeader.Packet_Types.Remote_Get.Rget_Inj_FIFO_Id = id & 0x3ff;
}

/* Returns the atomic address of 8 aligned bytes, for an operation of 0 to 7. */
static inline uint64_t MUSPI_GetAtomicAddress(uint64_t pa, uint64_t op)
{
    return MUHWI_ATOMIC_ADDRESS_INDICATOR | (pa & ~7ULL) | (op & 7);
}

#ifdef __cplusplus
}
#endif

#endif

/*
 * Each node puts a block to the next one, fetches it back by a remote get, sends a message through its
 * reception FIFO, whose last packet interrupts, and receives a broadcast of the first node. A global
 * interrupt of the last node ends the run.
 *
 *   cc -O2 userlib/c-api/examples/mu_ring.c -o mu_ring $(pkg-config --cflags --libs nicforge) \
 *      -Wl,-rpath,$(pkg-config --variable=libdir nicforge)
 *   nicforge run machines/bgq.toml -- ./mu_ring
 *
 * All nodes lay their memory out in the same way, so that a node knows the offsets at the other nodes. A
 * remote get also needs the address of the other node's memory, which the nodes send each other.
 */
#define _POSIX_C_SOURCE 200809L

#include <nicforge/spi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Bytes of the block that is put, of the broadcast, and of the message. */
enum { BYTES = 65536, SHARED = 4096, MESSAGE = 3000 };

/* Numbers of the class route, of its global interrupt, and of the subgroup. */
enum { CLASS = 0, LINE = 2, SUBGROUP = 0 };

/* Numbers of the FIFOs: for sending, for remote gets of other nodes, and for reception. */
enum { SEND, GETS, INJECTION_FIFOS };
enum { RECEIVE };

/* Numbers of the functions that receive packets: of notices, and of the message. */
enum { READY = 5, START = 6, MESSAGE_PACKET = 7 };

/* Maximum number of nodes; time between two messages READY of a node, and their maximum number. */
enum { MAX_NODES = 4096, RETRY_NS = 5000000, RETRIES = 12000 };

/* The longest wait. */
#define WAIT_SECONDS 60ULL
#define WAIT_CYCLES (WAIT_SECONDS * 1000 * 1000 * NICFORGE_SPI_CYCLES_PER_US)

/* A node's memory: the same offsets at all nodes. */
struct area {
    unsigned char own[BYTES];                     /* the block that the node puts */
    unsigned char taken[BYTES];                   /* the block that the previous node has put */
    unsigned char back[BYTES];                    /* the own block, fetched from the next node */
    unsigned char shared[SHARED];                 /* the broadcast */
    /* Counters of the bytes that have not arrived. */
    volatile uint64_t put_left, get_left, broadcast_left, address_left;
    uint64_t own_address, next_address;           /* addresses of the area for the unit */
    MUHWI_Descriptor_t reply __attribute__((aligned(64)));
    unsigned char injection[INJECTION_FIFOS][4096] __attribute__((aligned(64)));
    unsigned char reception[65536] __attribute__((aligned(64)));
};

#define OFFSET(field) offsetof(struct area, field)

static struct area *area;
static Kernel_MemoryRegion_t region;
static MUSPI_InjFifoSubGroup_t injection;
static MUSPI_RecFifoSubGroup_t reception;
static MUSPI_BaseAddressTableSubGroup_t table;
static MUSPI_GIBarrier_t barrier;
static MUSPI_GI_t line;
static MUHWI_Destination_t previous, next;
static uint32_t own_rank, previous_rank;
static unsigned char message[MESSAGE];
static size_t received;
static unsigned char is_ready[MAX_NODES];
static uint32_t ready_nodes;
static int is_started;

/* Prints the last error of the library, and ends the program. */
static void fail(const char *what)
{
    fprintf(stderr, "node %u: %s: %s\n", own_rank, what, nicforge_spi_last_error());
    exit(1);
}

/* Returns the present time in seconds. */
static uint64_t seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec;
}

/*
 * Returns whether a polling loop may go on to this turn. The first turn sets the time at which the loop ends.
 * The loop yields its processor from time to time, because many nodes share the processors of the host.
 */
static int may_poll_again(uint64_t turn, uint64_t *end)
{
    if (turn == 0)
        *end = seconds() + WAIT_SECONDS;
    if (turn % 16 == 15)
        sched_yield();
    return turn % 1024 != 1023 || seconds() < *end;
}

/* Ends the program if a call of the library has failed. */
static void check(int32_t result, const char *what)
{
    if (result != 0)
        fail(what);
}

/* Returns the address by which the unit reaches a field of the area. */
static uint64_t physical(size_t offset)
{
    return (uint64_t)(uintptr_t)region.BasePa + offset;
}

/* Returns the offset by which a put adds to a counter. */
static uint64_t counter_offset(size_t offset)
{
    return MUSPI_GetAtomicOffsetFromBaseAddress(&table, 0, physical(offset), MUHWI_ATOMIC_OPCODE_STORE_ADD);
}

/* Returns the byte at an offset of the block of a node. */
static unsigned char expected(uint32_t rank, size_t at)
{
    return (unsigned char)(rank * 7 + at * 3);
}

/* Checks that the bytes are the beginning of a node's block. */
static void verify(const unsigned char *bytes, size_t length, uint32_t rank, const char *what)
{
    size_t at;

    for (at = 0; at < length; ++at) {
        if (bytes[at] != expected(rank, at)) {
            fprintf(stderr, "node %u: byte %zu of %s is wrong\n", own_rank, at, what);
            exit(1);
        }
    }
}

/* Sets the destination of the node with a rank. Dimension A varies fastest in the order of the ranks. */
static void destination(MUHWI_Destination_t *dest, const Personality_Networks_t *network, uint32_t rank)
{
    uint32_t a, b, c, d;

    a = rank % network->Anodes;
    rank /= network->Anodes;
    b = rank % network->Bnodes;
    rank /= network->Bnodes;
    c = rank % network->Cnodes;
    rank /= network->Cnodes;
    d = rank % network->Dnodes;
    MUSPI_SetUpDestination(dest, a, b, c, d, rank / network->Dnodes);
}

/* Sets class route 0 of collectives and of barriers: all nodes, with the first one as the root. */
static void set_class_routes(const Personality_Networks_t *network)
{
    Kernel_GlobalInterruptClassRouteAttributes_t attributes = { 0 };
    CR_COORD_T root = { { 0 } }, own;
    CR_RECT_T all = { { { 0 } }, { { 0 } } };
    ClassRoute_t route;

    own.coords[0] = network->Acoord;
    own.coords[1] = network->Bcoord;
    own.coords[2] = network->Ccoord;
    own.coords[3] = network->Dcoord;
    own.coords[4] = network->Ecoord;
    all.ur.coords[0] = network->Anodes - 1;
    all.ur.coords[1] = network->Bnodes - 1;
    all.ur.coords[2] = network->Cnodes - 1;
    all.ur.coords[3] = network->Dnodes - 1;
    all.ur.coords[4] = network->Enodes - 1;

    check(MUSPI_BuildNodeClassroute(&all, &root, &own, &all, NULL, 0, &route), "the class route");
    check(Kernel_AllocateGlobalInterruptClassRoute(CLASS, &attributes), "a class route of barriers");
    check(Kernel_SetGlobalInterruptClassRoute(CLASS, &route), "Kernel_SetGlobalInterruptClassRoute");
    route.input |= BGQ_CLASS_INPUT_VC_SUBCOMM;
    check(Kernel_AllocateCollectiveClassRoute(CLASS), "a class route of collectives");
    check(Kernel_SetCollectiveClassRoute(CLASS, &route), "Kernel_SetCollectiveClassRoute");
}

/* Opens the FIFOs and the base address, all in the area. */
static void open_subgroup(void)
{
    Kernel_InjFifoAttributes_t injection_attributes[INJECTION_FIFOS] = { { 0, 0, 0 }, { 0, 0, 0 } };
    Kernel_RecFifoAttributes_t reception_attributes = { 0 };
    Kernel_RecFifoInterrupts_t reception_interrupts = { .Packet_Arrival = 1 };
    uint32_t injection_fifos[INJECTION_FIFOS] = { SEND, GETS };
    uint32_t reception_fifo = RECEIVE, entry = 0;
    int fifo;

    area = nicforge_spi_allocate(SUBGROUP, sizeof *area);
    if (area == NULL)
        fail("nicforge_spi_allocate");
    check((int32_t)Kernel_CreateMemoryRegion(&region, area, sizeof *area), "Kernel_CreateMemoryRegion");

    injection_attributes[GETS].RemoteGet = 1;
    check(Kernel_AllocateInjFifos(SUBGROUP, &injection, INJECTION_FIFOS, injection_fifos, injection_attributes),
          "Kernel_AllocateInjFifos");
    for (fifo = 0; fifo < INJECTION_FIFOS; ++fifo)
        check(Kernel_InjFifoInit(&injection, fifo, &region, OFFSET(injection) + fifo * sizeof area->injection[0],
                                 sizeof area->injection[0] - 1),
              "Kernel_InjFifoInit");
    check(Kernel_InjFifoActivate(&injection, INJECTION_FIFOS, injection_fifos, KERNEL_INJ_FIFO_ACTIVATE),
          "Kernel_InjFifoActivate");

    check(Kernel_AllocateRecFifos(SUBGROUP, &reception, 1, &reception_fifo, &reception_attributes),
          "Kernel_AllocateRecFifos");
    check(Kernel_RecFifoInit(&reception, RECEIVE, &region, OFFSET(reception), sizeof area->reception - 1),
          "Kernel_RecFifoInit");
    check(Kernel_RecFifoEnable(SUBGROUP / BGQ_MU_NUM_FIFO_SUBGROUPS, 1ULL << (15 - RECEIVE)),
          "Kernel_RecFifoEnable");
    check(Kernel_ConfigureRecFifoInterrupts(&reception, 1, &reception_fifo, &reception_interrupts),
          "Kernel_ConfigureRecFifoInterrupts");

    check(Kernel_AllocateBaseAddressTable(SUBGROUP, &table, 1, &entry, 0), "Kernel_AllocateBaseAddressTable");
    check(MUSPI_SetBaseAddress(&table, 0, physical(0)), "MUSPI_SetBaseAddress");
}

/* Fills in what all point-to-point messages have: deterministic routing through one FIFO. */
static void fill_point_to_point(MUSPI_BaseDescriptorInfoFields_t *base, MUSPI_Pt2PtDescriptorInfoFields_t *way,
                                MUHWI_Destination_t dest, uint64_t address, uint64_t length)
{
    base->Pre_Fetch_Only = MUHWI_DESCRIPTOR_PRE_FETCH_ONLY_NO;
    base->Payload_Address = address;
    base->Message_Length = length;
    base->Torus_FIFO_Map = MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_AP;
    base->Dest = dest;
    way->Misc1 = MUHWI_PACKET_USE_DETERMINISTIC_ROUTING | MUHWI_PACKET_DO_NOT_DEPOSIT;
    way->Misc2 = MUHWI_PACKET_VIRTUAL_CHANNEL_DETERMINISTIC;
}

/* Makes the descriptor of a put to the offsets `to` and `counter` of another node's area. */
static void make_put(MUHWI_Descriptor_t *descriptor, MUHWI_Destination_t dest, uint64_t address, size_t length,
                     size_t to, size_t counter)
{
    MUSPI_Pt2PtDirectPutDescriptorInfo_t info;

    memset(&info, 0, sizeof info);
    fill_point_to_point(&info.Base, &info.Pt2Pt, dest, address, length);
    info.DirectPut.Rec_Payload_Offset = to;
    info.DirectPut.Rec_Counter_Offset = counter_offset(counter);
    check(MUSPI_CreatePt2PtDirectPutDescriptor(descriptor, &info), "MUSPI_CreatePt2PtDirectPutDescriptor");
}

/* Injects a descriptor, and waits until the unit has read its payload. */
static void inject(MUHWI_Descriptor_t *descriptor)
{
    MUSPI_InjFifo_t *fifo = MUSPI_IdToInjFifo(SEND, &injection);
    uint64_t number = UINT64_MAX, end, turns;
    int32_t is_done = 0;

    /* A full FIFO, or a full ring of posted writes, has room again soon. */
    for (turns = 0; number == UINT64_MAX && may_poll_again(turns, &end); ++turns)
        number = MUSPI_InjFifoInject(fifo, descriptor);
    if (number == UINT64_MAX)
        fail("MUSPI_InjFifoInject");

    for (turns = 0; is_done == 0 && may_poll_again(turns, &end); ++turns)
        is_done = MUSPI_CheckDescComplete(fifo, number);
    if (is_done != 1)
        fail("MUSPI_CheckDescComplete");
}

/* Waits until all bytes that a counter counts have arrived. */
static void await_zero(volatile uint64_t *counter, const char *what)
{
    uint64_t end, turns;

    for (turns = 0; *counter != 0; ++turns) {
        if (!may_poll_again(turns, &end)) {
            fprintf(stderr, "node %u: %s has not come\n", own_rank, what);
            exit(1);
        }
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
}

/* Sends a message without payload, whose software bytes carry this node's number. */
static void send_notice(MUHWI_Destination_t dest, uint8_t function)
{
    MUSPI_Pt2PtMemoryFIFODescriptorInfo_t info;
    MUHWI_Descriptor_t descriptor;

    memset(&info, 0, sizeof info);
    fill_point_to_point(&info.Base, &info.Pt2Pt, dest, 0, 0);
    info.MemFIFO.Rec_FIFO_Id = SUBGROUP * BGQ_MU_NUM_REC_FIFOS_PER_SUBGROUP + RECEIVE;
    info.MemFIFO.SoftwareBytes[0] = function;
    memcpy(&info.MemFIFO.SoftwareBytes[1], &own_rank, sizeof own_rank);
    check(MUSPI_CreatePt2PtMemoryFIFODescriptor(&descriptor, &info), "MUSPI_CreatePt2PtMemoryFIFODescriptor");
    inject(&descriptor);
}

/* Receives a message READY, and records that its sender is ready. */
static int note_ready(void *param, MUHWI_PacketHeader_t *packet, uint32_t bytes)
{
    uint32_t rank;

    (void)param, (void)bytes;
    memcpy(&rank, &packet->messageUnitHeader.Packet_Types.Memory_FIFO.Unused2[1], sizeof rank);
    if (rank < MAX_NODES && !is_ready[rank]) {
        is_ready[rank] = 1;
        ++ready_nodes;
    }
    return 0;
}

/* Receives a message START, which the first node sends when all nodes are ready. */
static int note_start(void *param, MUHWI_PacketHeader_t *packet, uint32_t bytes)
{
    (void)param, (void)packet, (void)bytes;
    is_started = 1;
    return 0;
}

/* Waits until all nodes have opened their FIFOs and set their class routes. The first node drops messages
 * until it is ready itself, so the other nodes repeat theirs. */
static void start(const Personality_Networks_t *network, uint32_t nodes)
{
    const struct timespec pause = { 0, RETRY_NS };
    MUSPI_RecFifo_t *fifo = MUSPI_IdToRecFifo(RECEIVE, &reception);
    MUHWI_Destination_t node;
    uint32_t rank;
    int tries;

    MUSPI_RegisterRecvFunction(note_ready, NULL, READY);
    MUSPI_RegisterRecvFunction(note_start, NULL, START);
    for (tries = 0; tries < RETRIES && (own_rank == 0 ? ready_nodes < nodes - 1 : !is_started); ++tries) {
        if (own_rank != 0) {
            destination(&node, network, 0);
            send_notice(node, READY);
        }
        nanosleep(&pause, NULL);
        MUSPI_RecFifoPoll(fifo, MAX_NODES);
    }
    if (tries == RETRIES)
        fail("not all nodes have come");

    for (rank = 1; own_rank == 0 && rank < nodes; ++rank) {
        destination(&node, network, rank);
        send_notice(node, START);
    }
}

/* Waits until all nodes are here. */
static void wait_for_all(void)
{
    check(MUSPI_GIBarrierEnterAndWaitWithTimeout(&barrier, WAIT_CYCLES), "a barrier");
}

/* Receives a packet of a message. The packet's put offset is the position of its payload in the message. */
static int receive_packet(void *param, MUHWI_PacketHeader_t *packet, uint32_t bytes)
{
    const unsigned char *payload = (const unsigned char *)packet + MUHWI_PACKET_HEADER_SIZE_IN_BYTES;
    size_t at = packet->messageUnitHeader.Packet_Types.Memory_FIFO.Put_Offset_LSB;
    size_t length = bytes - MUHWI_PACKET_HEADER_SIZE_IN_BYTES;

    (void)param;
    if (at > MESSAGE)
        return 1;
    if (length > MESSAGE - at)
        length = MESSAGE - at;
    memcpy(message + at, payload, length);
    received += length;
    return 0;
}

/* Sends the previous node the address of this node's area, and puts the own block to the next node. */
static void put_round(void)
{
    MUHWI_Descriptor_t descriptor;

    area->own_address = physical(0);
    make_put(&descriptor, previous, physical(OFFSET(own_address)), sizeof area->own_address,
             OFFSET(next_address), OFFSET(address_left));
    inject(&descriptor);

    make_put(&descriptor, next, physical(OFFSET(own)), BYTES, OFFSET(taken), OFFSET(put_left));
    inject(&descriptor);
    await_zero(&area->put_left, "the put");
    await_zero(&area->address_left, "the address");
    verify(area->taken, BYTES, previous_rank, "the put");
}

/* Sends the next node a descriptor by which its unit puts the block back. */
static void get_back(MUHWI_Destination_t own)
{
    MUSPI_Pt2PtRemoteGetDescriptorInfo_t info;
    MUHWI_Descriptor_t descriptor;

    make_put(&area->reply, own, area->next_address + OFFSET(taken), BYTES, OFFSET(back), OFFSET(get_left));
    memset(&info, 0, sizeof info);
    fill_point_to_point(&info.Base, &info.Pt2Pt, next, physical(OFFSET(reply)), sizeof area->reply);
    info.RemoteGet.Type = MUHWI_PACKET_TYPE_GET;
    info.RemoteGet.Rget_Inj_FIFO_Id = SUBGROUP * BGQ_MU_NUM_INJ_FIFOS_PER_SUBGROUP + GETS;
    check(MUSPI_CreatePt2PtRemoteGetDescriptor(&descriptor, &info), "MUSPI_CreatePt2PtRemoteGetDescriptor");
    inject(&descriptor);
    await_zero(&area->get_left, "the get");
    verify(area->back, BYTES, own_rank, "the get");
}

/* Sends the next node a message, and receives that of the previous node. */
static void send_round(void)
{
    MUSPI_Pt2PtMemoryFIFODescriptorInfo_t info;
    MUHWI_Descriptor_t descriptor;
    uint32_t pending;

    MUSPI_RegisterRecvFunction(receive_packet, NULL, MESSAGE_PACKET);
    memset(&info, 0, sizeof info);
    fill_point_to_point(&info.Base, &info.Pt2Pt, next, physical(OFFSET(own)), MESSAGE);
    info.MemFIFO.Rec_FIFO_Id = SUBGROUP * BGQ_MU_NUM_REC_FIFOS_PER_SUBGROUP + RECEIVE;
    info.MemFIFO.SoftwareBytes[0] = MESSAGE_PACKET;
    info.MemFIFO.Interrupt = 1;
    check(MUSPI_CreatePt2PtMemoryFIFODescriptor(&descriptor, &info), "MUSPI_CreatePt2PtMemoryFIFODescriptor");
    inject(&descriptor);

    /* The packets stay in order, so the last one arrives after all others. */
    check(nicforge_spi_wait_interrupts(SUBGROUP, NICFORGE_SPI_INTERRUPT_PACKET << RECEIVE, WAIT_CYCLES,
                                       &pending),
          "nicforge_spi_wait_interrupts");
    /* Repeated messages READY may be in front of the message. */
    while (received < MESSAGE && MUSPI_RecFifoPoll(MUSPI_IdToRecFifo(RECEIVE, &reception), MAX_NODES) != 0)
        ;
    if (received != MESSAGE)
        fail("the message has not come");
    verify(message, MESSAGE, previous_rank, "the message");
}

/* Broadcasts a block of the first node. */
static void broadcast(void)
{
    MUSPI_CollectiveDirectPutDescriptorInfo_t info;
    MUHWI_Descriptor_t descriptor;

    if (own_rank == 0) {
        memset(&info, 0, sizeof info);
        info.Base.Payload_Address = physical(OFFSET(own));
        info.Base.Message_Length = SHARED;
        info.Base.Torus_FIFO_Map = MUHWI_DESCRIPTOR_TORUS_FIFO_MAP_CUSER;
        info.Collective.Word_Length = 8;
        info.Collective.Class_Route = CLASS;
        info.Collective.Misc = MUHWI_PACKET_VIRTUAL_CHANNEL_USER_SUB_COMM | MUHWI_COLLECTIVE_TYPE_BROADCAST;
        info.DirectPut.Rec_Payload_Offset = OFFSET(shared);
        info.DirectPut.Rec_Counter_Offset = counter_offset(OFFSET(broadcast_left));
        check(MUSPI_CreateCollectiveDirectPutDescriptor(&descriptor, &info),
              "MUSPI_CreateCollectiveDirectPutDescriptor");
        inject(&descriptor);
    }
    await_zero(&area->broadcast_left, "the broadcast");
    verify(area->shared, SHARED, 0, "the broadcast");
}

/* The last node interrupts all nodes, and clears the line when all have seen it. */
static void interrupt_all(uint32_t nodes)
{
    check(MUSPI_GIInit(&line, CLASS, LINE), "MUSPI_GIInit");
    if (own_rank == nodes - 1)
        check(MUSPI_GISend(&line), "MUSPI_GISend");
    check(MUSPI_GIPollForArrivalWithTimeout(&line, WAIT_CYCLES), "a global interrupt");

    wait_for_all();
    if (own_rank == nodes - 1)
        check(MUSPI_GISendClear(&line), "MUSPI_GISendClear");
    check(MUSPI_GIPollForClearWithTimeout(&line, WAIT_CYCLES), "the end of a global interrupt");
}

int main(void)
{
    Personality_t personality;
    MUHWI_Destination_t own;
    uint32_t nodes;
    size_t at;

    check(Kernel_GetPersonality(&personality, sizeof personality), "Kernel_GetPersonality");
    const Personality_Networks_t *network = &personality.Network_Config;
    nodes = network->Anodes * network->Bnodes * network->Cnodes * network->Dnodes * network->Enodes;
    own_rank = network->Ecoord;
    own_rank = own_rank * network->Dnodes + network->Dcoord;
    own_rank = own_rank * network->Cnodes + network->Ccoord;
    own_rank = own_rank * network->Bnodes + network->Bcoord;
    own_rank = own_rank * network->Anodes + network->Acoord;
    previous_rank = (own_rank + nodes - 1) % nodes;
    destination(&own, network, own_rank);
    destination(&previous, network, previous_rank);
    destination(&next, network, (own_rank + 1) % nodes);

    open_subgroup();
    for (at = 0; at < BYTES; ++at)
        area->own[at] = expected(own_rank, at);
    area->put_left = area->get_left = BYTES;
    area->broadcast_left = SHARED;
    area->address_left = sizeof area->own_address;

    set_class_routes(network);
    check(MUSPI_GIBarrierInit(&barrier, CLASS), "MUSPI_GIBarrierInit");
    start(network, nodes);
    wait_for_all();
    put_round();
    wait_for_all();
    get_back(own);
    send_round();
    broadcast();
    wait_for_all();
    interrupt_all(nodes);
    wait_for_all();

    printf("node %u: %d bytes went to node %u and back, and %d came from all\n", own_rank, BYTES,
           (own_rank + 1) % nodes, SHARED);
    nicforge_spi_close();
    return 0;
}

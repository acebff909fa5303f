/*
 * Forks in every way between transfers of a library. Its first argument is the library; the others are what
 * that needs. It ends with 0 if the children's calls were refused, and the parent's were not disturbed.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <nicforge/bgl.h>
#include <nicforge/extoll.h>
#include <nicforge/fcnp.h>
#include <nicforge/matching.h>
#include <nicforge/portals3.h>
#include <nicforge/spi.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Limits of a call, of a child, and of the program; children beside a thread that transfers. */
enum { TIMEOUT_MS = 20000, CHILD_SECONDS = 60, PROGRAM_SECONDS = 240, CHILDREN = 10 };

static const char *const *words;

/* A byte of a program's memory that children read, which no transfer changes. */
enum { MARKED = 2048, MARK = 42 };

/* Ends the program with the last error of the library, unless `good`. */
static void check(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s: %s\n", what, nicforge_extoll_last_error());
        exit(1);
    }
}

/* Checks that a call in a child is refused. */
static void refused(long long result, const char *what)
{
    if (result != -EPERM) {
        fprintf(stderr, "%s returns %lld in a child\n", what, result);
        _exit(3);
    }
}

#define REFUSED(call) refused((long long)(call), #call)

/* One library: how a process opens it, transfers once, and closes it; the calls of a child. */
struct library {
    const char *name;
    void (*open)(void);
    void (*transfer)(void);
    void (*refuse)(void);
    void (*close)(void);
    int opens_once;
};

/* ---- VELO: from one port to another ---- */

static struct velo_port *velo[2];
static int velo_connection;
static unsigned velo_round;

static void velo_begin(void)
{
    struct velo_options options = { .timeout_ms = TIMEOUT_MS };

    for (int at = 0; at < 2; ++at)
        check(velo_open(words[at], &options, &velo[at]) == 0, "velo_open");
    velo_connection = velo_connect(velo[0], (uint32_t)velo_node(velo[1]), (uint16_t)velo_vpid(velo[1]));
    check(velo_connection >= 0, "velo_connect");
}

static void velo_transfer(void)
{
    uint64_t out[2] = { ++velo_round, 7 }, in[VELO_MAX_MESSAGE / 8];
    int sent;

    /* The receiver gives credit in its own calls, and the sender takes it in its own. */
    while ((sent = velo_send_nb(velo[0], velo_connection, 3, out, sizeof out)) == -EAGAIN) {
        check(velo_progress(velo[0]) == 0 && velo_progress(velo[1]) == 0, "velo_progress");
        sched_yield();
    }
    check(sent == 0, "velo_send_nb");
    check(velo_recv(velo[1], 3, in, NULL) == sizeof out, "velo_recv");
    check(in[0] == out[0], "the message of VELO");
    check(velo_progress(velo[0]) == 0, "velo_progress");
}

static void velo_refuse(void)
{
    uint64_t data[VELO_MAX_MESSAGE / 8] = { 0 };

    REFUSED(velo_node(velo[0]));
    REFUSED(velo_vpid(velo[0]));
    REFUSED(velo_connect(velo[0], 0, 0));
    REFUSED(velo_disconnect(velo[0], velo_connection));
    REFUSED(velo_send(velo[0], velo_connection, 3, data, 8));
    REFUSED(velo_send_nb(velo[0], velo_connection, 3, data, 8));
    REFUSED(velo_recv(velo[1], VELO_ANY_TAG, data, NULL));
    REFUSED(velo_poll(velo[1], VELO_ANY_TAG, data, NULL));
    REFUSED(velo_progress(velo[1]));
    REFUSED(velo_cancel(velo[1], true));
}

static void velo_end(void)
{
    velo_close(velo[0]);
    velo_close(velo[1]);
}

/* ---- RMA: a put to the own memory ---- */

static struct rma_port *rma;
static struct rma_buffer *rma_memory;
static struct rma_region *rma_memory_region;
static struct rma_target rma_self;

static void rma_prepare(void)
{
    check(rma_allocate(rma, 8192, &rma_memory) == 0, "rma_allocate");
    ((unsigned char *)rma_buffer_memory(rma_memory))[MARKED] = MARK;
    check(rma_register(rma, rma_memory, 0, 8192, RMA_READ | RMA_WRITE, &rma_memory_region) == 0, "rma_register");
    check(rma_connect(rma, (uint32_t)rma_node(rma), (uint16_t)rma_vpid(rma), &rma_self) == 0, "rma_connect");
}

static void rma_begin(void)
{
    check(rma_open(words[0], NULL, &rma) == 0, "rma_open");
    rma_prepare();
}

static void rma_transfer(void)
{
    struct rma_notification notification;
    volatile unsigned char *bytes = rma_buffer_memory(rma_memory);
    uint64_t address = rma_address(rma_memory_region);

    ++bytes[0];
    check(rma_put(rma, rma_self, address, address + 4096, 64, RMA_NOTIFY_REQUESTER) == 1, "rma_put");
    check(rma_next(rma, TIMEOUT_MS, &notification) == 0 && notification.status == RMA_DONE, "rma_next");
    check(bytes[4096] == bytes[0], "the put");
}

static void rma_refuse(void)
{
    struct rma_notification notification;
    struct rma_target target;
    struct rma_buffer *buffer;
    struct rma_region *region;
    const volatile unsigned char *bytes = rma_buffer_memory(rma_memory);

    /* The program's memory remains readable. */
    if (bytes[MARKED] != MARK)
        _exit(4);

    REFUSED(rma_node(rma));
    REFUSED(rma_vpid(rma));
    REFUSED(rma_connect(rma, 0, 0, &target));
    REFUSED(rma_put(rma, rma_self, 0, 0, 64, RMA_NOTIFY_NONE));
    REFUSED(rma_get(rma, rma_self, 0, 0, 64, RMA_NOTIFY_NONE));
    REFUSED(rma_put_immediate(rma, rma_self, "x", 1, 0, RMA_NOTIFY_NONE));
    REFUSED(rma_in_flight(rma));
    REFUSED(rma_drain(rma, 1));
    REFUSED(rma_probe(rma, &notification));
    REFUSED(rma_wait(rma, 1, &notification));
    REFUSED(rma_free(rma));
    REFUSED(rma_next(rma, 1, &notification));
    REFUSED(rma_cancel(rma, true));
    REFUSED(rma_allocate(rma, 4096, &buffer));
    REFUSED(rma_register(rma, rma_memory, 0, 4096, RMA_READ, &region));
    REFUSED(rma_deregister(rma_memory_region));
}

static void rma_end(void)
{
    rma_deregister(rma_memory_region);
    rma_release(rma_memory);
    rma_close(rma);
}

/* ---- VELO and RMA on one VPID ---- */

static struct nicforge_extoll *extoll;

static void extoll_begin(void)
{
    struct velo_options options = { .timeout_ms = TIMEOUT_MS };

    check(nicforge_extoll_open(words[0], &extoll) == 0, "nicforge_extoll_open");
    check(velo_open_on(extoll, &options, &velo[0]) == 0, "velo_open_on");
    check(rma_open_on(extoll, NULL, &rma) == 0, "rma_open_on");
    check(velo_open(words[1], &options, &velo[1]) == 0, "velo_open");
    velo_connection = velo_connect(velo[0], (uint32_t)velo_node(velo[1]), (uint16_t)velo_vpid(velo[1]));
    check(velo_connection >= 0, "velo_connect");
    rma_prepare();
}

static void extoll_transfer(void)
{
    velo_transfer();
    rma_transfer();
}

static void extoll_refuse(void)
{
    struct velo_port *port;
    struct rma_port *other;

    REFUSED(velo_open_on(extoll, NULL, &port));
    REFUSED(rma_open_on(extoll, NULL, &other));
    velo_refuse();
    rma_refuse();
}

static void extoll_end(void)
{
    rma_end();
    velo_end();
    nicforge_extoll_close(extoll);
}

/* ---- FCNP: a thread on the I/O node sends messages back ---- */

static struct nicforge_fcnp_io *io;
static struct nicforge_fcnp_compute *compute;
static unsigned char fcnp_out[4096], fcnp_in[4096], fcnp_echo[4096];

static void fcnp_begin(void)
{
    struct nicforge_fcnp_options options = { .use_interrupts = true, .timeout_ms = TIMEOUT_MS };

    check(nicforge_fcnp_open_io(words[0], &options, &io) == 0, "nicforge_fcnp_open_io");
    check(nicforge_fcnp_open_compute(words[1], &options, &compute) == 0, "nicforge_fcnp_open_compute");
}

static void *echo(void *unused)
{
    check(nicforge_fcnp_io_read(io, fcnp_echo, sizeof fcnp_echo, 0) == sizeof fcnp_echo, "fcnp_io_read");
    check(nicforge_fcnp_io_write(io, fcnp_echo, sizeof fcnp_echo, 0) == sizeof fcnp_echo, "fcnp_io_write");
    return unused;
}

static void fcnp_transfer(void)
{
    pthread_t thread;

    fcnp_out[0]++;
    check(pthread_create(&thread, NULL, echo, NULL) == 0, "pthread_create");
    check(nicforge_fcnp_compute_write(compute, fcnp_out, sizeof fcnp_out) == sizeof fcnp_out, "fcnp_write");
    check(nicforge_fcnp_compute_read(compute, fcnp_in, sizeof fcnp_in) == sizeof fcnp_in, "fcnp_read");
    pthread_join(thread, NULL);
    check(memcmp(fcnp_out, fcnp_in, sizeof fcnp_in) == 0, "the message of FCNP");
}

static void fcnp_refuse(void)
{
    REFUSED(nicforge_fcnp_compute_write(compute, fcnp_out, 8));
    REFUSED(nicforge_fcnp_compute_read(compute, fcnp_in, 8));
    REFUSED(nicforge_fcnp_compute_rank(compute));
    REFUSED(nicforge_fcnp_compute_cancel(compute, true));
    REFUSED(nicforge_fcnp_io_write(io, fcnp_out, 8, 0));
    REFUSED(nicforge_fcnp_io_read(io, fcnp_in, 8, 0));
    REFUSED(nicforge_fcnp_io_cores(io));
    REFUSED(nicforge_fcnp_io_cancel(io, true));
}

static void fcnp_end(void)
{
    nicforge_fcnp_close_compute(compute);
    nicforge_fcnp_close_io(io);
}

/* ---- FCNP with its original calls, which have no handle ---- */

static void original_begin(void)
{
    setenv("NICFORGE_SOCKET", words[0], 1);
    check(nicforge_fcnp_ion_init(true) == 0, "fcnp_init of the I/O node");
    setenv("NICFORGE_SOCKET", words[1], 1);
    check(nicforge_fcnp_cn_init(false) == 0, "fcnp_init of the compute node");
}

static void *original_echo(void *unused)
{
    check(nicforge_fcnp_ion_read(fcnp_echo, sizeof fcnp_echo, 0) == sizeof fcnp_echo, "fcnp_read of the I/O node");
    check(nicforge_fcnp_ion_write(fcnp_echo, sizeof fcnp_echo, 0) == sizeof fcnp_echo, "fcnp_write of the I/O node");
    return unused;
}

static void original_transfer(void)
{
    pthread_t thread;

    fcnp_out[0]++;
    check(pthread_create(&thread, NULL, original_echo, NULL) == 0, "pthread_create");
    check(nicforge_fcnp_cn_write(fcnp_out, sizeof fcnp_out) == sizeof fcnp_out, "fcnp_write");
    check(nicforge_fcnp_cn_read(fcnp_in, sizeof fcnp_in) == sizeof fcnp_in, "fcnp_read");
    pthread_join(thread, NULL);
    check(memcmp(fcnp_out, fcnp_in, sizeof fcnp_in) == 0, "the message of FCNP");
}

static void original_refuse(void)
{
    REFUSED(nicforge_fcnp_cn_write(fcnp_out, 8));
    REFUSED(nicforge_fcnp_cn_read(fcnp_in, 8));
    REFUSED(nicforge_fcnp_cn_init(false));
    REFUSED(nicforge_fcnp_ion_write(fcnp_out, 8, 0));
    REFUSED(nicforge_fcnp_ion_read(fcnp_in, 8, 0));
    REFUSED(nicforge_fcnp_ion_init(false));
}

static void original_end(void)
{
    nicforge_fcnp_cn_exit();
    nicforge_fcnp_ion_exit();
}

/* ---- Matching: each rank sends to the next one ---- */

static struct matching_endpoint *endpoint;
static unsigned char match_out[20000], match_in[20000];

static void matching_begin(void)
{
    struct matching_options options = { .timeout_ms = TIMEOUT_MS };

    check(matching_open(&options, &endpoint) == 0, "matching_open");
}

static void matching_transfer(void)
{
    int rank = matching_rank(endpoint), size = matching_size(endpoint);
    uint64_t receive, send;

    memset(match_out, ++match_out[0], sizeof match_out);
    check(matching_irecv(endpoint, (rank + size - 1) % size, 0, 7, 0, match_in, sizeof match_in, &receive) == 0,
          "matching_irecv");
    check(matching_isend(endpoint, (uint32_t)((rank + 1) % size), 0, 7, match_out, sizeof match_out, &send) == 0,
          "matching_isend");
    check(matching_wait(endpoint, receive, NULL) == 0, "matching_wait for the receive");
    check(matching_wait(endpoint, send, NULL) == 0, "matching_wait for the send");
    check(memcmp(match_out, match_in, sizeof match_in) == 0, "the message of matching");
}

static void matching_refuse(void)
{
    uint64_t request = 0;

    REFUSED(matching_rank(endpoint));
    REFUSED(matching_size(endpoint));
    REFUSED(matching_isend(endpoint, 0, 0, 7, match_out, 8, &request));
    REFUSED(matching_irecv(endpoint, 0, 0, 7, 0, match_in, 8, &request));
    REFUSED(matching_wait(endpoint, request, NULL));
    REFUSED(matching_test(endpoint, request, NULL));
    REFUSED(matching_cancel(endpoint, request));
    REFUSED(matching_send(endpoint, 0, 0, 7, match_out, 8));
    REFUSED(matching_recv(endpoint, 0, 0, 7, 0, match_in, 8, NULL));
    REFUSED(matching_interrupt(endpoint, true));
    REFUSED(matching_progress(endpoint));
    REFUSED(matching_barrier(endpoint));
}

static void matching_end(void)
{
    /* No rank ends before all others are done. In a child, this is refused. */
    (void)matching_barrier(endpoint);
    matching_close(endpoint);
}

/* ---- The message layer of Blue Gene/L: from one core to another ---- */

static struct bgl_layer *layers[2];
static char bgl_text[16];
static int bgl_arrived;

static void recvnew(void *user, const struct bgl_arrival *arrival, struct bgl_disposition *disposition)
{
    (void)user, (void)arrival;
    disposition->action = BGL_RECEIVE;
    disposition->memory = bgl_text;
    disposition->capacity = sizeof bgl_text;
}

static void recvdone(void *user, const struct bgl_received *received)
{
    (void)user;
    check(received->error == 0, "recvdone");
    ++bgl_arrived;
}

static void senddone(void *user, const struct bgl_sent *sent)
{
    (void)user;
    check(sent->error == 0, "senddone");
}

static void bgl_begin(void)
{
    struct bgl_callbacks callbacks = { NULL, recvnew, recvdone, senddone };

    for (int at = 0; at < 2; ++at)
        check(bgl_open(words[at], NULL, &callbacks, &layers[at]) == 0, "bgl_open");
    check(bgl_wait_for_peer(layers[0], (uint32_t)bgl_rank(layers[1]), TIMEOUT_MS) == 0, "bgl_wait_for_peer");
}

static void bgl_transfer(void)
{
    uint8_t information[BGL_INFORMATION] = { 0 };
    int before = bgl_arrived;

    check(bgl_postsend(layers[0], (uint32_t)bgl_rank(layers[1]), information, "hello", 6, 0) == 0, "bgl_postsend");
    while (bgl_arrived == before || bgl_has_sent_all(layers[0]) == 0) {
        check(bgl_advance(layers[0]) >= 0, "bgl_advance");
        check(bgl_advance(layers[1]) >= 0, "bgl_advance");
        sched_yield();
    }
    check(strcmp(bgl_text, "hello") == 0, "the message of the layer");
}

static void bgl_refuse(void)
{
    uint8_t information[BGL_INFORMATION] = { 0 };
    struct bgl_disposition disposition = { NULL, 0, BGL_DISCARD };
    struct bgl_counters counters;

    REFUSED(bgl_rank(layers[0]));
    REFUSED(bgl_ranks(layers[0]));
    REFUSED(bgl_is_up(layers[0], 0));
    REFUSED(bgl_wait_for_peer(layers[0], 0, 1));
    REFUSED(bgl_postsend(layers[0], 2, information, "hello", 6, 0));
    REFUSED(bgl_advance(layers[1]));
    REFUSED(bgl_wait(layers[1], 1));
    REFUSED(bgl_interrupt(layers[1], true));
    REFUSED(bgl_decide(layers[1], 1, &disposition));
    REFUSED(bgl_check_peers(layers[1]));
    REFUSED(bgl_has_sent_all(layers[1]));
    REFUSED(bgl_begin_drain(layers[1]));
    REFUSED(bgl_is_drained(layers[1]));
    REFUSED(bgl_end_drain(layers[1]));
    REFUSED(bgl_statistics(layers[1], &counters));
}

static void bgl_end(void)
{
    check(bgl_close(layers[0]) == 0, "bgl_close");
    check(bgl_close(layers[1]) == 0, "bgl_close");
}

/* ---- Portals: a put to the own process ---- */

static ptl_handle_ni_t network;
static ptl_handle_eq_t queue;
static ptl_handle_me_t entry;
static ptl_handle_md_t offered, source;
static ptl_process_id_t own;
static volatile unsigned char *ptl_memory;

enum { PORTAL = 4, PTL_BYTES = 4096 };

/* Checks that a call of Portals in a child has the standard's code of a failure. */
static void ptl_refused(int code, const char *what)
{
    if (code != PTL_FAIL) {
        fprintf(stderr, "%s returns %d in a child\n", what, code);
        _exit(3);
    }
}

#define PTL_REFUSED(call) ptl_refused(call, #call)

static ptl_md_t ptl_part(int number, unsigned int options)
{
    ptl_md_t md;

    memset(&md, 0, sizeof md);
    md.start = (void *)(ptl_memory + number * PTL_BYTES);
    md.length = PTL_BYTES;
    md.threshold = PTL_MD_THRESH_INF;
    md.options = options | PTL_MD_EVENT_START_DISABLE;
    md.eq_handle = queue;
    return md;
}

static void portals_begin(void)
{
    const ptl_process_id_t anyone = { PTL_NID_ANY, PTL_PID_ANY };
    int interfaces;

    check(PtlInit(&interfaces) == PTL_OK, "PtlInit");
    check(PtlNIInit(PTL_IFACE_DEFAULT, PTL_PID_ANY, NULL, NULL, &network) == PTL_OK, "PtlNIInit");
    check(PtlGetId(network, &own) == PTL_OK, "PtlGetId");
    check(PtlEQAlloc(network, 256, PTL_EQ_HANDLER_NONE, &queue) == PTL_OK, "PtlEQAlloc");
    ptl_memory = nicforge_portals_allocate(network, 2 * PTL_BYTES);
    check(ptl_memory != NULL, "nicforge_portals_allocate");
    ptl_memory[MARKED] = MARK;
    check(PtlMEAttach(network, PORTAL, anyone, 1, 0, PTL_RETAIN, PTL_INS_AFTER, &entry) == PTL_OK, "PtlMEAttach");
    check(PtlMDAttach(entry, ptl_part(1, PTL_MD_OP_PUT | PTL_MD_MANAGE_REMOTE), PTL_RETAIN, &offered) == PTL_OK, "PtlMDAttach");
    check(PtlMDBind(network, ptl_part(0, 0), PTL_RETAIN, &source) == PTL_OK, "PtlMDBind");
}

static void portals_transfer(void)
{
    ptl_event_t event;
    int which;

    ++ptl_memory[0];
    check(PtlPut(source, PTL_ACK_REQ, own, PORTAL, 0, 1, 0, 0) == PTL_OK, "PtlPut");
    do
        check(PtlEQPoll(&queue, 1, TIMEOUT_MS, &event, &which) == PTL_OK, "PtlEQPoll");
    while (event.type != PTL_EVENT_ACK);
    check(ptl_memory[PTL_BYTES] == ptl_memory[0], "the put");
}

static void portals_refuse(void)
{
    ptl_handle_ni_t other;
    ptl_handle_md_t descriptor;
    ptl_event_t event;
    ptl_sr_value_t value;
    int number;

    PTL_REFUSED(PtlInit(&number));
    PTL_REFUSED(PtlNIInit(PTL_IFACE_DEFAULT, PTL_PID_ANY, NULL, NULL, &other));
    PTL_REFUSED(PtlNIStatus(network, PTL_SR_DROP_COUNT, &value));
    PTL_REFUSED(PtlGetId(network, &own));
    PTL_REFUSED(PtlMDBind(network, ptl_part(0, 0), PTL_RETAIN, &descriptor));
    PTL_REFUSED(PtlMDUnlink(source));
    PTL_REFUSED(PtlMEUnlink(entry));
    PTL_REFUSED(PtlPut(source, PTL_ACK_REQ, own, PORTAL, 0, 1, 0, 0));
    PTL_REFUSED(PtlEQGet(queue, &event));
    PTL_REFUSED(PtlEQPoll(&queue, 1, 1, &event, &number));
    PTL_REFUSED(PtlEQFree(queue));
    PTL_REFUSED(PtlNIFini(network));
    if (nicforge_portals_allocate(network, 4096) != NULL || ptl_memory[MARKED] != MARK)
        _exit(4);
}

static void portals_end(void)
{
    /* In a child, PtlNIFini is refused, and PtlFini does nothing. */
    PtlNIFini(network);
    PtlFini();
}

/* ---- The SPI of Blue Gene/Q: registers of a subgroup ---- */

static MUSPI_BaseAddressTableSubGroup_t table;
static MUSPI_InjFifoSubGroup_t injection;
static Kernel_MemoryRegion_t region;
static uint32_t spi_first;

static void spi_begin(void)
{
    Kernel_InjFifoAttributes_t attributes;
    void *memory = nicforge_spi_allocate(0, 65536);

    memset(&attributes, 0, sizeof attributes);
    check(memory != NULL, "nicforge_spi_allocate");
    check(Kernel_CreateMemoryRegion(&region, memory, 65536) == 0, "Kernel_CreateMemoryRegion");
    check(Kernel_AllocateBaseAddressTable(0, &table, 1, &spi_first, 0) == 0, "Kernel_AllocateBaseAddressTable");
    check(Kernel_AllocateInjFifos(0, &injection, 1, &spi_first, &attributes) == 0, "Kernel_AllocateInjFifos");
}

static void spi_transfer(void)
{
    static uint64_t round;
    uint64_t address = (uint64_t)(uintptr_t)region.BasePa + 64 * (++round % 16);
    Personality_t personality;

    check(Kernel_GetPersonality(&personality, sizeof personality) == 0, "Kernel_GetPersonality");
    check(MUSPI_SetBaseAddress(&table, 0, address) == 0, "MUSPI_SetBaseAddress");
    check(MUSPI_GetBaseAddress(&table, 0) == address, "MUSPI_GetBaseAddress");
    check(Kernel_InjFifoInit(&injection, 0, &region, 4096, 4095) == 0, "Kernel_InjFifoInit");
    check(Kernel_InjFifoActivate(&injection, 1, &spi_first, KERNEL_INJ_FIFO_ACTIVATE) == 0, "activation");
    check(Kernel_InjFifoActivate(&injection, 1, &spi_first, KERNEL_INJ_FIFO_DEACTIVATE) == 0, "deactivation");
}

static void spi_refuse(void)
{
    Personality_t personality;
    Kernel_MemoryRegion_t other;
    Kernel_InjFifoAttributes_t attributes;

    memset(&attributes, 0, sizeof attributes);
    REFUSED(Kernel_GetPersonality(&personality, sizeof personality));
    REFUSED(Kernel_CreateMemoryRegion(&other, region.BaseVa, 4096));
    REFUSED(Kernel_AllocateInjFifos(1, &injection, 1, &spi_first, &attributes));
    REFUSED(MUSPI_SetBaseAddress(&table, 0, 0));
    REFUSED(Kernel_InjFifoInit(&injection, 0, &region, 4096, 4095));
    REFUSED(Kernel_InjFifoActivate(&injection, 1, &spi_first, KERNEL_INJ_FIFO_DEACTIVATE));
    REFUSED(Kernel_DeallocateInjFifos(&injection, 1, &spi_first));
    REFUSED(Kernel_DeallocateBaseAddressTable(&table, 1, &spi_first));
    if (nicforge_spi_allocate(0, 4096) != NULL)
        _exit(4);
}

/* ---- The forks ---- */

static const struct library libraries[] = {
    { "velo", velo_begin, velo_transfer, velo_refuse, velo_end, 0 },
    { "rma", rma_begin, rma_transfer, rma_refuse, rma_end, 0 },
    { "extoll", extoll_begin, extoll_transfer, extoll_refuse, extoll_end, 0 },
    { "fcnp", fcnp_begin, fcnp_transfer, fcnp_refuse, fcnp_end, 0 },
    { "fcnp-original", original_begin, original_transfer, original_refuse, original_end, 0 },
    /* A job has one life: its ranks do not come a second time. */
    { "matching", matching_begin, matching_transfer, matching_refuse, matching_end, 1 },
    { "bgl", bgl_begin, bgl_transfer, bgl_refuse, bgl_end, 0 },
    { "portals", portals_begin, portals_transfer, portals_refuse, portals_end, 0 },
    { "spi", spi_begin, spi_transfer, spi_refuse, nicforge_spi_close, 0 },
};

static const struct library *library;

/* Forks. The child ends by itself if it hangs. */
static pid_t start_child(void)
{
    pid_t child;

    fflush(NULL);
    child = fork();
    check(child >= 0, "fork");
    if (child == 0)
        alarm(CHILD_SECONDS);
    return child;
}

/* Waits until a child has ended, which must be successful. */
static void await_child(pid_t child)
{
    int status;

    check(waitpid(child, &status, 0) == child, "waitpid");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "a child ended with status %#x\n", (unsigned)status);
        _exit(2);
    }
}

/* What a child does with what it has inherited: all calls, and the close of all handles. */
static void use_inherited(void)
{
    library->refuse();
    library->close();
}

/* A child that uses what it has inherited, after a child of its own has done so if there is one. */
static void run_child(int depth)
{
    pid_t child = start_child();

    if (child == 0) {
        if (depth > 1)
            run_child(depth - 1);
        use_inherited();
        exit(0);
    }
    await_child(child);
}

/* Whether the thread that transfers goes on, and whether it has begun. */
static atomic_int is_transferring, has_transferred;

static void *transfer_all_the_time(void *unused)
{
    while (is_transferring) {
        library->transfer();
        has_transferred = 1;
    }
    return unused;
}

static void fork_beside_transfers(void)
{
    pthread_t thread;

    is_transferring = 1;
    check(pthread_create(&thread, NULL, transfer_all_the_time, NULL) == 0, "pthread_create");
    while (!has_transferred)
        sched_yield();
    for (int at = 0; at < CHILDREN; ++at)
        run_child(1);
    is_transferring = 0;
    pthread_join(thread, NULL);
}

/* Starts other programs by the functions of the C library. */
static void start_programs(void)
{
    char line[16];
    FILE *output;

    check(system("true") == 0, "system");
    library->transfer();
    output = popen("echo word", "r");
    check(output != NULL, "popen");
    library->transfer();
    check(fgets(line, sizeof line, output) != NULL && pclose(output) == 0, "popen's program");
}

/* Closes while a child lives that has inherited all, and opens again at once. */
static void reopen_beside_a_child(void)
{
    int pipes[2];
    char byte;
    pid_t child;

    check(pipe(pipes) == 0, "pipe");
    child = start_child();
    if (child == 0) {
        close(pipes[1]);
        /* It lives until the parent closes the pipe. */
        if (read(pipes[0], &byte, 1) != 0)
            _exit(5);
        use_inherited();
        exit(0);
    }
    close(pipes[0]);

    library->close();
    if (!library->opens_once) {
        library->open();
        library->transfer();
    }

    close(pipes[1]);
    await_child(child);
    if (!library->opens_once) {
        library->transfer();
        library->close();
    }
}

/* Opens, and waits to be killed beside a child that lives until the end of the standard input. */
static void hold(void)
{
    char byte;

    library->open();
    if (start_child() == 0)
        _exit(read(STDIN_FILENO, &byte, 1) != 0);
    puts("forked");
    fflush(NULL);
    for (;;)
        pause();
}

int main(int count, char **arguments)
{
    for (size_t at = 0; at < sizeof libraries / sizeof *libraries; ++at) {
        if (count > 1 && strcmp(arguments[1], libraries[at].name) == 0)
            library = &libraries[at];
    }
    if (library == NULL)
        return 64;
    words = (const char *const *)arguments + 2;
    alarm(PROGRAM_SECONDS);
    if (getenv("FORK_AND_HOLD") != NULL)
        hold();

    library->open();
    library->transfer();

    run_child(1);
    library->transfer();
    run_child(2);
    library->transfer();
    start_programs();
    library->transfer();
    if (!library->opens_once)
        fork_beside_transfers();
    library->transfer();
    reopen_beside_a_child();

    printf("%s is not disturbed\n", library->name);
    return 0;
}

/*
 * Each node puts a block to the next node, and gets it back.
 *
 *   cc -O2 userlib/c-api/examples/portals_ring.c -o portals_ring $(pkg-config --cflags --libs nicforge) \
 *      -Wl,-rpath,$(pkg-config --variable=libdir nicforge)
 *   nicforge run machines/seastar.toml -- ./portals_ring
 *
 * With the argument "host", the kernel of each node matches the messages instead of the card.
 */
#include <nicforge/portals3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 65536, PORTAL = 4, EVENTS = 256, WAIT_MS = 20000, RETRY_MS = 20, TRIES = 1000 };

/* Match bits of a block that is put, of one that is fetched, and of a put that asks for readiness. */
enum { BLOCK = 1, FETCH = 2, READY = 3 };

/* Parts of a node's memory: its own block, the previous node's block, and its own one fetched back. */
enum { OWN, TAKEN, BACK, PARTS };

static ptl_handle_ni_t network;
static ptl_handle_eq_t queue;
static unsigned char *memory;

/* Ends the program if a call of the library has failed. */
static void check(int code, const char *what)
{
    if (code == PTL_OK)
        return;
    fprintf(stderr, "%s: code %d: %s\n", what, code, nicforge_portals_last_error());
    exit(1);
}

/* Returns a descriptor of a part of the memory. */
static ptl_md_t part(int number, int threshold, unsigned int options)
{
    ptl_md_t md;

    memset(&md, 0, sizeof md);
    md.start = memory + (size_t)number * BYTES;
    md.length = BYTES;
    md.threshold = threshold;
    md.options = options | PTL_MD_EVENT_START_DISABLE;
    md.eq_handle = queue;
    return md;
}

/* Adds an entry that offers a part of the memory for one operation of `from`. */
static void offer(ptl_handle_me_t base, ptl_process_id_t from, ptl_match_bits_t bits, int number,
                  unsigned int options)
{
    ptl_handle_me_t entry;
    ptl_handle_md_t descriptor;

    check(PtlPost(network, base, from, bits, 0, PTL_UNLINK, PTL_INS_BEFORE, part(number, 1, options),
                  PTL_UNLINK, &entry, &descriptor, queue),
          "PtlPost");
}

/* Waits for an event. Returns 0 when there is none within the time. */
static int next_event(ptl_event_t *event, ptl_time_t timeout)
{
    int which;
    int code = PtlEQPoll(&queue, 1, timeout, event, &which);

    if (code == PTL_EQ_EMPTY)
        return 0;
    check(code, "PtlEQPoll");
    return 1;
}

/* Whether the previous node has put its block here, and has fetched it back. */
static int is_taken, is_served;

/* Records what the previous node has done. */
static void note_served(const ptl_event_t *event)
{
    is_taken |= event->type == PTL_EVENT_PUT_END && event->match_bits == BLOCK;
    is_served |= event->type == PTL_EVENT_GET_END;
}

/* Waits for the event of this node's own operation, which must succeed. */
static void await(ptl_event_kind_t type, ptl_match_bits_t bits)
{
    ptl_event_t event;

    while (next_event(&event, WAIT_MS)) {
        note_served(&event);
        if (event.type != type || event.match_bits != bits)
            continue;
        if (event.ni_fail_type == PTL_NI_OK)
            return;

        fprintf(stderr, "event %u failed for reason %u\n", event.type, event.ni_fail_type);
        exit(1);
    }
    fprintf(stderr, "there was no event %u within %d ms\n", type, WAIT_MS);
    exit(1);
}

/* Repeats a put to the next node until that acknowledges it, and thus has offered its memory. Before, the
 * next node is not booted, or drops the put. */
static void await_ready(ptl_handle_md_t from, ptl_process_id_t target)
{
    ptl_event_t event;
    int tries;

    for (tries = 0; tries < TRIES; ++tries) {
        int is_sent = 0;

        check(PtlPutRegion(from, 0, 1, PTL_ACK_REQ, target, PORTAL, 0, READY, 0, 0), "PtlPutRegion");
        while (next_event(&event, is_sent ? RETRY_MS : WAIT_MS)) {
            note_served(&event);
            if (event.type == PTL_EVENT_ACK)
                return;
            is_sent |= event.type == PTL_EVENT_SEND_END;
        }
    }
    fprintf(stderr, "node %u does not answer\n", target.nid);
    exit(1);
}

/* Checks that a part of the memory has the block of a node. */
static void verify(int number, ptl_nid_t owner)
{
    size_t at;

    for (at = 0; at < BYTES; ++at) {
        unsigned char expected = (unsigned char)(owner + 3 * at);

        if (memory[(size_t)number * BYTES + at] != expected) {
            fprintf(stderr, "byte %zu of part %d is wrong\n", at, number);
            exit(1);
        }
    }
}

int main(int count, char **words)
{
    const ptl_process_id_t anyone = { PTL_NID_ANY, PTL_PID_ANY };
    ptl_interface_t kind =
        count > 1 && strcmp(words[1], "host") == 0 ? NICFORGE_PORTALS_IFACE_HOST_BASED : PTL_IFACE_DEFAULT;
    const char *nodes = getenv("NICFORGE_SIZE");
    ptl_nid_t size = nodes == NULL ? 1 : (ptl_nid_t)strtoul(nodes, NULL, 10);
    ptl_process_id_t own, before, after;
    ptl_handle_me_t base;
    ptl_handle_md_t ready, out, back;
    ptl_md_t md;
    size_t at;
    int interfaces;

    check(PtlInit(&interfaces), "PtlInit");
    check(PtlNIInit(kind, PTL_PID_ANY, NULL, NULL, &network), "PtlNIInit");
    check(PtlGetId(network, &own), "PtlGetId");
    check(PtlEQAlloc(network, EVENTS, PTL_EQ_HANDLER_NONE, &queue), "PtlEQAlloc");

    before = after = own;
    before.nid = (own.nid + size - 1) % size;
    after.nid = (own.nid + 1) % size;

    memory = nicforge_portals_allocate(network, (ptl_size_t)PARTS * BYTES);
    if (memory == NULL)
        check(PTL_FAIL, "nicforge_portals_allocate");
    for (at = 0; at < BYTES; ++at)
        memory[(size_t)OWN * BYTES + at] = (unsigned char)(own.nid + 3 * at);

    /* The last entry of the list acknowledges puts that ask for readiness, as soon as it has a descriptor. */
    check(PtlMEAttach(network, PORTAL, anyone, READY, 0, PTL_RETAIN, PTL_INS_AFTER, &base), "PtlMEAttach");
    offer(base, before, BLOCK, TAKEN, PTL_MD_OP_PUT);
    offer(base, before, FETCH, TAKEN, PTL_MD_OP_GET);
    md = part(OWN, PTL_MD_THRESH_INF, PTL_MD_OP_PUT);
    md.length = 0;
    md.options |= PTL_MD_TRUNCATE;
    md.eq_handle = PTL_EQ_NONE;
    check(PtlMDAttach(base, md, PTL_RETAIN, &ready), "PtlMDAttach");

    check(PtlMDBind(network, part(OWN, PTL_MD_THRESH_INF, 0), PTL_RETAIN, &out), "PtlMDBind");
    check(PtlMDBind(network, part(BACK, PTL_MD_THRESH_INF, 0), PTL_RETAIN, &back), "PtlMDBind");
    await_ready(out, after);

    /* After the acknowledgement the block is in the next node's memory. */
    check(PtlPut(out, PTL_ACK_REQ, after, PORTAL, 0, BLOCK, 0, own.nid), "PtlPut");
    await(PTL_EVENT_ACK, BLOCK);
    check(PtlGet(back, after, PORTAL, 0, FETCH, 0), "PtlGet");
    await(PTL_EVENT_REPLY_END, FETCH);

    /* This node's part in the previous node's put and get must be done before it ends. */
    while (!is_taken || !is_served) {
        ptl_event_t event;

        if (!next_event(&event, WAIT_MS)) {
            fprintf(stderr, "node %u has not come\n", before.nid);
            exit(1);
        }
        note_served(&event);
    }
    verify(TAKEN, before.nid);
    verify(BACK, own.nid);

    printf("node %u: %d bytes went to node %u and back\n", own.nid, BYTES, after.nid);
    check(PtlNIFini(network), "PtlNIFini");
    PtlFini();
    return 0;
}

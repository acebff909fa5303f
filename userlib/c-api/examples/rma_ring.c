/*
 * Sends a block of memory round all nodes of a network by puts, a hundred times. Each process changes
 * the block in its own memory, and puts it to the next node. Then each process gets the next node's
 * block, and immediate puts announce the end to all.
 *
 *   cc -O2 userlib/c-api/examples/rma_ring.c -o rma_ring $(pkg-config --cflags --libs nicforge) \
 *      -Wl,-rpath,$(pkg-config --variable=libdir nicforge)
 *   nicforge run machines/extoll.toml -- ./rma_ring $(mktemp -d)
 *
 * `nicforge run` sets NICFORGE_SIZE to the number of processes, one for each node. A put needs an
 * address of the target. The processes exchange their addresses by files in the given directory.
 */
#include <errno.h>
#include <inttypes.h>
#include <nicforge/rma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 100, BLOCK = 65536, WORDS = BLOCK / 8, TIMEOUT_MS = 20000 };

/* Offsets in the buffer: the block, the next node's block, and a word (a token) that announces the end. */
enum { AT_BLOCK = 0, AT_OTHER = BLOCK, AT_TOKEN = 2 * BLOCK, BYTES = 2 * BLOCK + 4096 };

static struct rma_port *port;
static struct rma_target next;
/* Addresses of the memory of this node and of the next one. */
static uint64_t own_memory, next_memory;

/* Ends the program with the last error of the library. */
static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, rma_last_error());
    exit(1);
}

/* Ends the program unless `good`. */
static void check(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

/* Publishes the address of this node's memory. */
static void publish(const char *directory, int node)
{
    char name[4096], temporary[4096 + 8];
    FILE *file;

    snprintf(name, sizeof name, "%s/address%d", directory, node);
    snprintf(temporary, sizeof temporary, "%s.new", name);
    file = fopen(temporary, "w");
    check(file != NULL, "the directory can't be written");
    fprintf(file, "%" PRIx64 "\n", own_memory);
    check(fclose(file) == 0 && rename(temporary, name) == 0, "the address can't be published");
}

/* Returns the address of a node's memory, as soon as the node has published it. */
static uint64_t find(const char *directory, int node)
{
    char name[4096];
    time_t end = time(NULL) + TIMEOUT_MS / 1000;

    snprintf(name, sizeof name, "%s/address%d", directory, node);
    do {
        FILE *file = fopen(name, "r");
        uint64_t address;

        if (file != NULL) {
            int found = fscanf(file, "%" SCNx64, &address);

            fclose(file);
            check(found == 1, "an address makes no sense");
            return address;
        }
    } while (time(NULL) < end);
    check(0, "the next node has not published its address");
    return 0;
}

/* Takes the next notification, which must be that of `role` for a command of this kind and status. */
static void expect(uint8_t role, uint8_t kind, uint8_t status)
{
    struct rma_notification notification;

    if (rma_next(port, TIMEOUT_MS, &notification) < 0)
        fail("rma_next");
    if (notification.role != role || notification.kind != kind || notification.status != status) {
        fprintf(stderr, "a notification of role %d, kind %d, status %d\n", notification.role, notification.kind,
                notification.status);
        exit(1);
    }
}

/*
 * Tests a get from this node itself, and the errors of the calls. No other node knows this node's
 * memory yet, so no other notification arrives.
 */
static void test_alone(struct rma_buffer *buffer, struct rma_target self)
{
    struct rma_target nowhere;
    struct rma_region *region = NULL;
    struct rma_notification seen, again;
    uint64_t *block = rma_buffer_memory(buffer);

    check(rma_probe(port, NULL) == 0, "a notification of nothing");
    check(rma_wait(port, 1, NULL) == -ETIMEDOUT, "a wait that ends by its time-out");

    block[0] = 42;
    if (rma_get(port, self, own_memory + AT_BLOCK, own_memory + AT_OTHER, 8, RMA_NOTIFY_REQUESTER) != 1)
        fail("rma_get");

    if (rma_wait(port, TIMEOUT_MS, &seen) < 0)
        fail("rma_wait");
    check(seen.kind == RMA_GET && seen.role == RMA_NOTIFY_REQUESTER && seen.status == RMA_DONE, "another command");
    check(seen.length == 8 && seen.address == own_memory + AT_OTHER, "another get");
    check(seen.node == self.node && seen.vpid == self.vpid, "a get from another process");
    check(block[AT_OTHER / 8] == 42, "what was got is not what was there");

    /* The notification stays until it is freed. */
    check(rma_probe(port, &again) == 1 && again.address == seen.address, "the notification is gone");
    if (rma_free(port) < 0)
        fail("rma_free");
    check(rma_probe(port, NULL) == 0, "the notification is there still");

    check(rma_connect(port, 100000, 0, &nowhere) == -EADDRNOTAVAIL, "a node that is not there");
    check(rma_last_error()[0] != '\0', "an error has a text");
    check(rma_register(port, buffer, 8, 4096, RMA_READ, &region) == -EINVAL, "half a page");
    check(rma_register(port, buffer, 0, (uint64_t)1 << 40, RMA_READ, &region) == -ERANGE, "more than there is");
    check(region == NULL, "a region after an error");
    check(rma_put(port, self, own_memory, own_memory, 0, RMA_NOTIFY_NONE) == -EINVAL, "a put of nothing");

    /* A refused command notifies its requester, even with RMA_NOTIFY_NONE. */
    check(rma_put(port, self, own_memory, own_memory + ((uint64_t)1 << 40), 8, RMA_NOTIFY_NONE) == 1,
          "a put to nowhere");
    expect(RMA_NOTIFY_REQUESTER, RMA_PUT, RMA_REMOTE_ADDRESS);

    check(rma_cancel(port, true) == 0 && rma_wait(port, 0, NULL) == -ECANCELED, "a cancelled wait");
    check(rma_cancel(port, false) == 0, "rma_cancel");
}

int main(int count, char **words)
{
    const char *size = getenv("NICFORGE_SIZE");
    struct rma_options options = { .entries = 256 };
    struct rma_buffer *buffer;
    struct rma_region *region;
    struct rma_target self;
    uint64_t *block, *other, *token, word, round;
    int node, nodes, turn, at;

    check(count == 2, "usage: rma_ring DIRECTORY");
    if (rma_open(NULL, &options, &port) < 0)
        fail("rma_open");

    node = rma_node(port);
    nodes = size != NULL ? atoi(size) : 1;
    check(node >= 0 && rma_vpid(port) == 0 && nodes >= 1, "no node");

    if (rma_allocate(port, BYTES, &buffer) < 0)
        fail("rma_allocate");
    check(rma_buffer_size(buffer) >= BYTES, "a buffer that is too small");
    if (rma_register(port, buffer, 0, BYTES, RMA_READ | RMA_WRITE, &region) < 0)
        fail("rma_register");

    own_memory = rma_address(region);
    block = rma_buffer_memory(buffer);
    other = block + AT_OTHER / 8;
    token = block + AT_TOKEN / 8;

    if (rma_connect(port, (uint32_t)node, 0, &self) < 0)
        fail("rma_connect");
    test_alone(buffer, self);

    publish(words[1], node);
    next_memory = find(words[1], (node + 1) % nodes);
    if (rma_connect(port, (uint32_t)((node + 1) % nodes), 0, &next) < 0)
        fail("rma_connect");

    for (round = 0; round < ROUNDS; ++round) {
        if (node == 0) {
            for (at = 0; at < WORDS; ++at)
                block[at] = round << 32 | (uint64_t)at << 8;
            if (rma_put(port, next, own_memory + AT_BLOCK, next_memory + AT_BLOCK, BLOCK, RMA_NOTIFY_COMPLETER) != 1)
                fail("rma_put");
        }

        expect(RMA_NOTIFY_COMPLETER, RMA_PUT, RMA_DONE);
        word = node == 0 ? (uint64_t)nodes - 1 : (uint64_t)node - 1;
        for (at = 0; at < WORDS; ++at)
            check(block[at] == (round << 32 | (uint64_t)at << 8 | word), "the block is not what was put");

        if (node == 0)
            continue;
        for (at = 0; at < WORDS; ++at)
            ++block[at];
        if (rma_put(port, next, own_memory + AT_BLOCK, next_memory + AT_BLOCK, BLOCK, RMA_NOTIFY_COMPLETER) != 1)
            fail("rma_put");
    }

    if (rma_drain(port, TIMEOUT_MS) < 0)
        fail("rma_drain");
    check(rma_in_flight(port) == 0, "commands are under way");

    /*
     * The next node's memory still has the block of the last round: as this node has put it, or one
     * node later.
     */
    if (rma_get(port, next, next_memory + AT_BLOCK, own_memory + AT_OTHER, BLOCK, RMA_NOTIFY_NONE) != 1)
        fail("rma_get");
    if (rma_drain(port, TIMEOUT_MS) < 0)
        fail("rma_drain");

    for (at = 0; at < WORDS; ++at)
        check(other[at] >> 8 == ((uint64_t)(ROUNDS - 1) << 24 | (uint64_t)at), "the block is not what was got");

    /* The first token means that all gets are done, the second that all processes may exit. */
    for (turn = 1; turn <= 2; ++turn) {
        word = (uint64_t)turn;
        if (node == 0 && rma_put_immediate(port, next, &word, 8, next_memory + AT_TOKEN, RMA_NOTIFY_COMPLETER) < 0)
            fail("rma_put_immediate");
        expect(RMA_NOTIFY_COMPLETER, RMA_IMMEDIATE_PUT, RMA_DONE);
        check(*token == word, "another token");
        if (node != 0 && rma_put_immediate(port, next, &word, 8, next_memory + AT_TOKEN, RMA_NOTIFY_COMPLETER) < 0)
            fail("rma_put_immediate");
    }

    if (rma_drain(port, TIMEOUT_MS) < 0)
        fail("rma_drain");
    if (rma_deregister(region) < 0)
        fail("rma_deregister");
    rma_release(buffer);
    rma_close(port);

    if (node == 0)
        printf("%d rounds of %d bytes over %d nodes\n", ROUNDS, BLOCK, nodes);
    return 0;
}

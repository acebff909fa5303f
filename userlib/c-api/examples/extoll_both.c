/*
 * Uses VELO and RMA of one VPID in one program. Puts send a block of memory round all nodes of a network.
 * Messages carry the address to put to, and announce each put.
 *
 *   cc -O2 userlib/c-api/examples/extoll_both.c -o extoll_both $(pkg-config --cflags --libs nicforge) \
 *      -Wl,-rpath,$(pkg-config --variable=libdir nicforge)
 *   nicforge run machines/extoll.toml -- ./extoll_both
 *
 * `nicforge run` sets NICFORGE_SIZE to the number of processes, one for each node.
 */
#include <errno.h>
#include <inttypes.h>
#include <nicforge/extoll.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 100, BLOCK = 65536, WORDS = BLOCK / 8, TIMEOUT_MS = 20000 };

/* Tags: the address of the sender's memory; the arrival of the block, with the number of the round. */
enum { ADDRESS = 1, ARRIVED = 2 };

/* Ends the program with the last error of the library, unless `good`. */
static void check(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s: %s\n", what, nicforge_extoll_last_error());
        exit(1);
    }
}

/* Sends a word over a connection. */
static void send_word(struct velo_port *velo, int to, uint8_t tag, uint64_t word)
{
    check(velo_send(velo, to, tag, &word, sizeof word) == 0, "velo_send");
}

/* Receives the next word with a tag. */
static uint64_t receive_word(struct velo_port *velo, int32_t tag)
{
    uint64_t words[VELO_MAX_MESSAGE / 8];

    check(velo_recv(velo, tag, words, NULL) == 8, "velo_recv");
    return words[0];
}

int main(void)
{
    const char *size = getenv("NICFORGE_SIZE");
    struct velo_options options = { .timeout_ms = TIMEOUT_MS };
    struct nicforge_extoll *extoll;
    struct velo_port *velo, *second_velo = NULL;
    struct rma_port *rma, *second_rma = NULL;
    struct rma_buffer *buffer;
    struct rma_region *region;
    struct rma_target target;
    uint64_t *block, theirs, round, at;
    int node, nodes, next, before;

    check(nicforge_extoll_open(NULL, &extoll) == 0, "nicforge_extoll_open");
    check(velo_open_on(extoll, &options, &velo) == 0, "velo_open_on");
    check(rma_open_on(extoll, NULL, &rma) == 0, "rma_open_on");
    check(velo_open_on(extoll, NULL, &second_velo) == -EBUSY && second_velo == NULL, "VELO twice on one VPID");
    check(rma_open_on(extoll, NULL, &second_rma) == -EBUSY && second_rma == NULL, "RMA twice on one VPID");

    /* The ports keep the device open. */
    nicforge_extoll_close(extoll);

    node = velo_node(velo);
    nodes = size != NULL ? atoi(size) : 1;
    check(node >= 0 && node == rma_node(rma) && nodes >= 2, "a network of two nodes and more");

    check(rma_allocate(rma, BLOCK, &buffer) == 0, "rma_allocate");
    check(rma_register(rma, buffer, 0, BLOCK, RMA_WRITE, &region) == 0, "rma_register");
    block = rma_buffer_memory(buffer);

    /* The previous node puts to this node, and this node to the next one. */
    next = velo_connect(velo, (uint32_t)((node + 1) % nodes), 0);
    before = velo_connect(velo, (uint32_t)((node + nodes - 1) % nodes), 0);
    check(next >= 0 && before >= 0, "velo_connect");
    check(rma_connect(rma, (uint32_t)((node + 1) % nodes), 0, &target) == 0, "rma_connect");

    send_word(velo, before, ADDRESS, rma_address(region));
    theirs = receive_word(velo, ADDRESS);

    for (round = 0; round < ROUNDS; ++round) {
        struct rma_notification notification;

        /* Number of nodes that the block has passed. */
        uint64_t passed = node == 0 ? (uint64_t)nodes : (uint64_t)node;

        if (node != 0) {
            check(receive_word(velo, ARRIVED) == round, "another round");
            for (at = 0; at < WORDS; ++at)
                check(block[at] == (round << 32 | at << 8 | passed), "another block");
        }

        for (at = 0; at < WORDS; ++at)
            block[at] = round << 32 | at << 8 | ((uint64_t)node + 1);
        check(rma_put(rma, target, rma_address(region), theirs, BLOCK, RMA_NOTIFY_REQUESTER) == 1, "rma_put");
        check(rma_next(rma, TIMEOUT_MS, &notification) == 0 && notification.status == RMA_DONE, "the put");
        send_word(velo, next, ARRIVED, round);

        if (node == 0) {
            check(receive_word(velo, ARRIVED) == round, "another round");
            for (at = 0; at < WORDS; ++at)
                check(block[at] == (round << 32 | at << 8 | passed), "another block");
        }
    }

    if (node == 0)
        printf("%d rounds of %d bytes over %d nodes\n", ROUNDS, BLOCK, nodes);

    /* No put to this node is left: the last block has arrived before its message. */
    check(rma_deregister(region) == 0, "rma_deregister");
    rma_release(buffer);
    rma_close(rma);
    velo_close(velo);
    return 0;
}

/*
 * Sends a message round all nodes of a network, a thousand times. Each process forwards the message to
 * the next node; node 0 starts each round.
 *
 *   cc -O2 userlib/c-api/examples/velo_ring.c -o velo_ring $(pkg-config --cflags --libs nicforge) \
 *      -Wl,-rpath,$(pkg-config --variable=libdir nicforge)
 *   nicforge run machines/extoll.toml -- ./velo_ring
 *
 * `nicforge run` sets NICFORGE_SIZE to the number of processes, one for each node.
 */
#include <inttypes.h>
#include <nicforge/velo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 1000, TAG = 3 };

/* Prints the last error of the library, and returns the program's exit code. */
static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, velo_last_error());
    return 1;
}

int main(void)
{
    const char *size = getenv("NICFORGE_SIZE");
    struct velo_options options = { .timeout_ms = 20000 };
    struct velo_port *port;
    uint64_t message[VELO_MAX_MESSAGE / 8];
    int node, nodes, next, round;

    if (velo_open(NULL, &options, &port) < 0)
        return fail("velo_open");

    node = velo_node(port);
    nodes = size != NULL ? atoi(size) : 1;
    if (node < 0 || nodes < 1)
        return fail("velo_node");

    next = velo_connect(port, (uint32_t)((node + 1) % nodes), 0);
    if (next < 0)
        return fail("velo_connect");

    for (round = 0; round < ROUNDS; ++round) {
        if (node == 0) {
            uint64_t first[2] = { (uint64_t)round, 1 };
            if (velo_send(port, next, TAG, first, sizeof first) < 0)
                return fail("velo_send");
        }

        if (velo_recv(port, TAG, message, NULL) != 16)
            return fail("velo_recv");
        if (message[0] != (uint64_t)round) {
            fprintf(stderr, "round %" PRIu64 " came in round %d\n", message[0], round);
            return 1;
        }

        if (node == 0)
            continue;
        ++message[1];
        if (velo_send(port, next, TAG, message, 16) < 0)
            return fail("velo_send");
    }

    if (node == 0) {
        printf("%d rounds over %" PRIu64 " nodes\n", ROUNDS, message[1]);
        if (message[1] != (uint64_t)nodes)
            return 1;
    }

    /* Messages in flight are delivered after a port is closed. */
    velo_close(port);
    return 0;
}

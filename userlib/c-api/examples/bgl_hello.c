/*
 * Each node greets the next one by the message layer of Blue Gene/L, in the order of their numbers.
 *
 *   cc -O2 userlib/c-api/examples/bgl_hello.c -o bgl_hello $(pkg-config --cflags --libs nicforge) \
 *      -Wl,-rpath,$(pkg-config --variable=libdir nicforge)
 *   nicforge run machines/bgl.toml -- ./bgl_hello
 */
#include <nicforge/bgl.h>
#include <stdio.h>
#include <string.h>

enum { TIMEOUT_MS = 20000, CORES_OF_A_NODE = 2 };

/* The state of the program. */
struct greeting {
    char text[80];
    int is_received;
    int is_sent;
    int error;
};

/* Prints the last error of the library, and returns the program's exit code. */
static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, bgl_last_error());
    return 1;
}

/* Receives each message into `text`, and leaves the last byte of it 0. */
static void recvnew(void *user, const struct bgl_arrival *arrival, struct bgl_disposition *disposition)
{
    struct greeting *greeting = user;

    (void)arrival;
    disposition->action = BGL_RECEIVE;
    disposition->memory = greeting->text;
    disposition->capacity = sizeof greeting->text - 1;
}

static void recvdone(void *user, const struct bgl_received *received)
{
    struct greeting *greeting = user;

    if (received->error == 0)
        printf("rank %u says: %s\n", received->source, greeting->text);
    else
        greeting->error = received->error;
    greeting->is_received = 1;
}

static void senddone(void *user, const struct bgl_sent *sent)
{
    struct greeting *greeting = user;

    if (sent->error != 0)
        greeting->error = sent->error;
    greeting->is_sent = 1;
}

int main(void)
{
    struct greeting greeting = { .is_received = 0 };
    struct bgl_callbacks callbacks = { &greeting, recvnew, recvdone, senddone };
    uint8_t information[BGL_INFORMATION] = { 0 };
    struct bgl_layer *layer;
    char text[80];
    int rank, ranks, next;

    /* NULL means the first socket of NICFORGE_SOCKET, which is core 0 of this node. */
    if (bgl_open(NULL, NULL, &callbacks, &layer) < 0)
        return fail("bgl_open");

    rank = bgl_rank(layer);
    ranks = bgl_ranks(layer);
    if (rank < 0 || ranks < 0)
        return fail("bgl_rank");

    next = (rank + CORES_OF_A_NODE) % ranks;
    if (bgl_wait_for_peer(layer, (uint32_t)next, TIMEOUT_MS) < 0)
        return fail("bgl_wait_for_peer");

    snprintf(text, sizeof text, "hello from node %d", rank / CORES_OF_A_NODE);
    if (bgl_postsend(layer, (uint32_t)next, information, text, strlen(text), 0) < 0)
        return fail("bgl_postsend");

    while (!greeting.is_received || !greeting.is_sent) {
        if (bgl_wait(layer, TIMEOUT_MS) < 0)
            return fail("bgl_wait");
    }

    /* The card delivers what the torus has, also after the end of this program. */
    while (bgl_has_sent_all(layer) == 0) {
        if (bgl_advance(layer) < 0)
            return fail("bgl_advance");
    }

    if (greeting.error != 0) {
        fprintf(stderr, "a greeting failed: %s\n", strerror(-greeting.error));
        return 1;
    }
    bgl_close(layer);
    return 0;
}

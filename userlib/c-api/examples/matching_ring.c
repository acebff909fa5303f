/*
 * Sends a short and a long message round all ranks. Each rank adds one to every byte.
 *
 *   cc -O2 userlib/c-api/examples/matching_ring.c -o matching_ring $(pkg-config --cflags --libs nicforge) \
 *      -Wl,-rpath,$(pkg-config --variable=libdir nicforge)
 *   nicforge run machines/extoll.toml -- ./matching_ring
 *   nicforge run machines/bgq.toml -- ./matching_ring
 *   nicforge run machines/bgl.toml -- ./matching_ring
 */
#include <errno.h>
#include <nicforge/matching.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT = 100, LONG = 1000000, TAG = 7 };

/* Prints the last error of the library, and returns the program's exit code. */
static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, matching_last_error());
    return 1;
}

static unsigned char out[LONG], in[LONG];

/* Passes a message of `bytes` bytes on to the next rank. Rank 0 begins, and checks what comes back. */
static int run_round(struct matching_endpoint *endpoint, int rank, int size, size_t bytes)
{
    struct matching_status status;
    uint64_t request;
    size_t at;

    if (matching_irecv(endpoint, MATCHING_ANY_SOURCE, 0, TAG, 0, in, bytes, &request) < 0)
        return fail("matching_irecv");

    if (rank == 0) {
        memset(out, 1, bytes);
        if (matching_send(endpoint, (uint32_t)(1 % size), 0, TAG, out, bytes) < 0)
            return fail("matching_send");
    }

    if (matching_wait(endpoint, request, &status) < 0)
        return fail("matching_wait");
    if (status.size != bytes || status.tag != TAG || (int)status.rank != (rank + size - 1) % size) {
        fprintf(stderr, "%llu bytes of rank %u came\n", (unsigned long long)status.size, status.rank);
        return 1;
    }

    if (rank != 0) {
        for (at = 0; at < bytes; ++at)
            out[at] = (unsigned char)(in[at] + 1);
        if (matching_send(endpoint, (uint32_t)((rank + 1) % size), 0, TAG, out, bytes) < 0)
            return fail("matching_send");
        return 0;
    }

    for (at = 0; at < bytes; ++at) {
        if (in[at] != size) {
            fprintf(stderr, "byte %zu is %d\n", at, in[at]);
            return 1;
        }
    }
    printf("%zu bytes went over %d ranks\n", bytes, size);
    return 0;
}

int main(void)
{
    struct matching_options options = { .timeout_ms = 20000 };
    struct matching_endpoint *endpoint;
    uint64_t request;
    int rank, size;

    if (matching_open(&options, &endpoint) < 0)
        return fail("matching_open");

    rank = matching_rank(endpoint);
    size = matching_size(endpoint);
    if (run_round(endpoint, rank, size, SHORT) != 0 || run_round(endpoint, rank, size, LONG) != 0)
        return 1;

    /* No message arrives for this receive, so it can be cancelled. */
    if (matching_irecv(endpoint, 0, 0, TAG + 1, 0, in, SHORT, &request) < 0)
        return fail("matching_irecv");
    if (matching_test(endpoint, request, NULL) != 0 || matching_cancel(endpoint, request) != 1 ||
        matching_wait(endpoint, request, NULL) != -ECANCELED)
        return fail("matching_cancel");

    if (matching_barrier(endpoint) < 0)
        return fail("matching_barrier");
    matching_close(endpoint);
    return 0;
}

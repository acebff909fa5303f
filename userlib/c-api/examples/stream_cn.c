/*
 * The compute core's half of an echo stream. It sends messages of 64 KB to the I/O node, receives
 * them back and compares.
 *
 *   cc -O2 userlib/c-api/examples/stream_cn.c -o stream_cn $(pkg-config --cflags --libs nicforge) \
 *      -Wl,-rpath,$(pkg-config --variable=libdir nicforge)
 *
 * Run it beside stream_ion, with NICFORGE_SOCKET set to the socket of core 0 of the pset's first
 * compute node.
 */
#include <fcnp_cn.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGES = 1000 };

static _Alignas(64) unsigned char sent[65536], received[65536];

/* Prints the last error of the library, and returns the program's exit code. */
static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, nicforge_fcnp_last_error());
    return 1;
}

int main(void)
{
    if (fcnp_init(false) < 0)
        return fail("fcnp_init");
    for (unsigned message = 0; message < MESSAGES; ++message) {
        for (size_t i = 0; i < sizeof sent; ++i)
            sent[i] = (unsigned char)(message + i * 7);
        if (fcnp_write(sent, sizeof sent) < 0)
            return fail("fcnp_write");
        if (fcnp_read(received, sizeof received) < 0)
            return fail("fcnp_read");
        if (memcmp(sent, received, sizeof sent) != 0) {
            fprintf(stderr, "message %u came back changed\n", message);
            return 1;
        }
    }
    if (fcnp_write(sent, 0) < 0)
        return fail("fcnp_write");
    printf("%u messages of %zu bytes came back\n", (unsigned)MESSAGES, sizeof sent);
    return fcnp_exit() < 0;
}

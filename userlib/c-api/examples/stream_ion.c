/*
 * The I/O node's half of an echo stream. It receives messages of 64 KB from compute core 0 and
 * sends each one back.
 *
 *   cc -O2 userlib/c-api/examples/stream_ion.c -o stream_ion $(pkg-config --cflags --libs nicforge) \
 *      -Wl,-rpath,$(pkg-config --variable=libdir nicforge)
 *
 * Run it with NICFORGE_SOCKET set to the socket of a core of the I/O node. It ends when stream_cn
 * sends an empty message.
 */
#include <fcnp_ion.h>
#include <stdio.h>

static _Alignas(64) unsigned char buffer[65536];

/* Prints the last error of the library, and returns the program's exit code. */
static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, nicforge_fcnp_last_error());
    return 1;
}

int main(void)
{
    unsigned messages = 0;
    ptrdiff_t size;

    if (fcnp_init(true) < 0)
        return fail("fcnp_init");
    while ((size = fcnp_read(buffer, sizeof buffer, 0)) > 0) {
        if (fcnp_write(buffer, (size_t)size, 0) < 0)
            return fail("fcnp_write");
        ++messages;
    }
    if (size < 0)
        return fail("fcnp_read");
    printf("echoed %u messages\n", messages);
    return fcnp_exit() < 0;
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Interrupts: by read() of the device file, eventfds, masks, INTx. */
#include "checks.h"

#include <sys/eventfd.h>
#include <sys/wait.h>

#define MSIX NICFORGE_SHIM_IRQ_MSIX
#define INTX NICFORGE_SHIM_IRQ_INTX
#define ERROR_VECTOR NICFORGE_PROOF_SLOT_FIFO_VECTOR_ERROR

/* Returns whether a descriptor is readable, as poll() does. */
static short poll_now(int fd)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

	CHECK_OK(poll(&poll_fd, 1, 0));
	return poll_fd.revents;
}

static int new_eventfd(void)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	CHECK_OK(fd);
	return fd;
}

/* Waits for a time in which an interrupt that must not come would arrive. */
static void settle(const struct function *fifo)
{
	int i;

	for (i = 0; i < 5; i++) {
		get32(fifo, 0, NICFORGE_PROOF_SLOT_FIFO_REG_FILL);
		usleep(20000);
	}
}

/* Returns how many interrupts of a function Linux has counted since it was bound. */
static unsigned long counted(const char *path)
{
	FILE *file = fopen("/proc/interrupts", "r");
	unsigned long all = 0;
	char line[1024];

	CHECK(file);
	while (fgets(line, sizeof(line), file)) {
		char *at = strchr(line, ':'), *end;

		line[strcspn(line, "\n")] = 0;
		if (!at || !strstr(line, strrchr(path, '/') + 1))
			continue;
		/* A number for each processor, then words. */
		for (at++;; at = end) {
			unsigned long count = strtoul(at, &end, 10);

			if (end == at)
				break;
			all += count;
		}
	}
	fclose(file);
	return all;
}

/* Makes the slot FIFO raise an interrupt, and waits until Linux has counted it. */
static void make_and_await_error(const struct function *fifo, const char *path)
{
	unsigned long before = counted(path);
	int turns = 0;

	slot_fifo_make_error(fifo);
	while (counted(path) == before && turns++ < 2000)
		usleep(10000);
	CHECK_EQ(counted(path), before + 1);
	slot_fifo_clear_error(fifo);
}

void check_read(char **devices)
{
	struct function fifo = open_function(devices[0], 0);
	uint64_t count = 0;
	int flags = fcntl(fifo.fd, F_GETFL);
	int i;

	CHECK_ERROR(read(fifo.fd, &count, 8), ENODATA);
	bind_vectors(&fifo, MSIX, 0, 2, NICFORGE_SHIM_IRQ_FILE);
	CHECK_ERROR(read(fifo.fd, &count, 7), EINVAL);
	CHECK_EQ(poll_now(fifo.fd), 0);

	/* A read returns at once when an interrupt has come already. */
	slot_fifo_make_error(&fifo);
	CHECK_EQ(wait_for(fifo.fd, POLLIN), POLLIN);
	CHECK_EQ(read(fifo.fd, &count, 8), 8);
	CHECK_EQ(count, 1);
	slot_fifo_clear_error(&fifo);

	/* A file with O_NONBLOCK never blocks. */
	CHECK_OK(fcntl(fifo.fd, F_SETFL, flags | O_NONBLOCK));
	CHECK_ERROR(read(fifo.fd, &count, 8), EAGAIN);
	for (i = 0; i < 3; i++)
		make_and_await_error(&fifo, devices[0]);
	CHECK_EQ(take(fifo.fd), 3);
	CHECK_EQ(take(fifo.fd), 0);
	CHECK_OK(fcntl(fifo.fd, F_SETFL, flags));

	/* Two kinds cannot be bound at once, and bad vectors or eventfds are refused. */
	{
		struct nicforge_shim_irq_bind intx = { .kind = INTX, .count = 1, .eventfd = -1 };

		CHECK_ERROR(ioctl(fifo.fd, NICFORGE_SHIM_BIND_IRQ, &intx), EBUSY);
		intx = (struct nicforge_shim_irq_bind) { .kind = MSIX, .start = 1, .count = 2, .eventfd = -1 };
		CHECK_ERROR(ioctl(fifo.fd, NICFORGE_SHIM_BIND_IRQ, &intx), EINVAL);
		intx = (struct nicforge_shim_irq_bind) { .kind = MSIX, .count = 1, .eventfd = 0 };
		CHECK_ERROR(ioctl(fifo.fd, NICFORGE_SHIM_BIND_IRQ, &intx), EINVAL);
	}
	CHECK_OK(unbind_all(&fifo, MSIX));
	CHECK_ERROR(read(fifo.fd, &count, 8), ENODATA);
}

void check_eventfd(char **devices)
{
	struct function fifo = open_function(devices[0], 0);
	int first = new_eventfd(), second = new_eventfd();

	bind_vectors(&fifo, MSIX, ERROR_VECTOR, 1, first);
	slot_fifo_make_error(&fifo);
	wait_for(first, POLLIN);
	CHECK_EQ(take(first), 1);
	slot_fifo_clear_error(&fifo);

	/* Another eventfd replaces the first one, and gets the next interrupt. */
	bind_vectors(&fifo, MSIX, ERROR_VECTOR, 1, second);
	slot_fifo_make_error(&fifo);
	wait_for(second, POLLIN);
	CHECK_EQ(take(second), 1);
	CHECK_EQ(take(first), 0);
	slot_fifo_clear_error(&fifo);

	/* A vector that is bound to the file does not affect the vector of the eventfd. */
	bind_vectors(&fifo, MSIX, 0, 1, NICFORGE_SHIM_IRQ_FILE);
	slot_fifo_make_error(&fifo);
	wait_for(second, POLLIN);
	CHECK_EQ(take(second), 1);
	CHECK_EQ(poll_now(fifo.fd), 0);
	slot_fifo_clear_error(&fifo);

	/* An unbound vector signals nothing. */
	CHECK_OK(unbind_all(&fifo, MSIX));
	slot_fifo_make_error(&fifo);
	settle(&fifo);
	CHECK_EQ(take(second), 0);
	slot_fifo_clear_error(&fifo);
}

void check_masking(char **devices)
{
	struct function fifo = open_function(devices[0], 0);
	int events = new_eventfd();

	CHECK_ERROR(mask_vector(&fifo, true, MSIX, ERROR_VECTOR), EINVAL);
	bind_vectors(&fifo, MSIX, ERROR_VECTOR, 1, events);
	CHECK_ERROR(mask_vector(&fifo, true, MSIX, 0), EINVAL);

	CHECK_OK(mask_vector(&fifo, true, MSIX, ERROR_VECTOR));
	CHECK_OK(mask_vector(&fifo, true, MSIX, ERROR_VECTOR));
	slot_fifo_make_error(&fifo);
	slot_fifo_clear_error(&fifo);
	slot_fifo_make_error(&fifo);
	settle(&fifo);
	CHECK_EQ(take(events), 0);
	CHECK_OK(mask_vector(&fifo, false, MSIX, ERROR_VECTOR));
	wait_for(events, POLLIN);
	settle(&fifo);
	CHECK_EQ(take(events), 1);
	slot_fifo_clear_error(&fifo);

	/* An unmasked vector signals as before. */
	slot_fifo_make_error(&fifo);
	wait_for(events, POLLIN);
	slot_fifo_clear_error(&fifo);
}

void check_intx(char **devices)
{
	struct function fifo = open_function(devices[0], 0);
	int events = new_eventfd();

	bind_vectors(&fifo, INTX, 0, 1, events);
	slot_fifo_make_error(&fifo);
	wait_for(events, POLLIN);
	CHECK_EQ(take(events), 1);
	/* INTx is still asserted, but has masked itself. */
	settle(&fifo);
	CHECK_EQ(take(events), 0);
	/* Unmasked while it is asserted, it signals at once. */
	CHECK_OK(mask_vector(&fifo, false, INTX, 0));
	wait_for(events, POLLIN);
	CHECK_EQ(take(events), 1);
	slot_fifo_clear_error(&fifo);
	CHECK_OK(mask_vector(&fifo, false, INTX, 0));
	settle(&fifo);
	CHECK_EQ(take(events), 0);

	/* The process masks INTx. */
	CHECK_OK(mask_vector(&fifo, true, INTX, 0));
	slot_fifo_make_error(&fifo);
	settle(&fifo);
	CHECK_EQ(take(events), 0);
	CHECK_OK(mask_vector(&fifo, false, INTX, 0));
	wait_for(events, POLLIN);
	slot_fifo_clear_error(&fifo);

	/* MSI-X works after INTx was unbound. */
	CHECK_OK(unbind_all(&fifo, INTX));
	take(events);
	bind_vectors(&fifo, MSIX, ERROR_VECTOR, 1, events);
	slot_fifo_make_error(&fifo);
	wait_for(events, POLLIN);
	slot_fifo_clear_error(&fifo);
}

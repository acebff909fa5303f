// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Resets, and the end of a file, a process, the module and a function. */
#include "checks.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define REG_HOLD NICFORGE_PROOF_SLOT_FIFO_REG_HOLD

void check_reset(char **devices)
{
	struct function fifo = open_function(devices[0], 0);
	uint32_t resets = get_info(&fifo).resets;
	volatile uint32_t *registers = map_bar(&fifo, 0, 0, PAGE, PROT_READ | PROT_WRITE);
	struct nicforge_shim_dma_alloc memory = { .len = PAGE };
	volatile uint32_t *words;
	int events = eventfd(0, EFD_CLOEXEC);

	CHECK_OK(events);
	CHECK_OK(ioctl(fifo.fd, NICFORGE_SHIM_ALLOC_DMA, &memory));
	words = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fifo.fd, (off_t)memory.offset);
	CHECK(words != MAP_FAILED);
	words[1] = 5;
	bind_vectors(&fifo, NICFORGE_SHIM_IRQ_MSIX, 0, 2, events);
	registers[REG_HOLD / 4] = 1;
	CHECK_EQ(get32(&fifo, 0, REG_HOLD), 1);

	/* A reset by ioctl() resets the registers, and changes nothing else. */
	CHECK_OK(ioctl(fifo.fd, NICFORGE_SHIM_RESET));
	CHECK_EQ(get_info(&fifo).resets, resets + 1);
	CHECK_EQ(registers[REG_HOLD / 4], 0);
	CHECK_EQ(words[1], 5);
	slot_fifo_make_error(&fifo);
	wait_for(events, POLLIN);
	slot_fifo_clear_error(&fifo);

	/* The last close resets the function too. */
	set32(&fifo, 0, REG_HOLD, 1);
	close(fifo.fd);
	CHECK_OK(munmap((void *)words, PAGE));
	CHECK_OK(munmap((void *)registers, PAGE));
	close(open_when_free(devices[0]));
	fifo = open_function(devices[0], 0);
	CHECK(get_info(&fifo).resets >= resets + 2);
	CHECK_EQ(get32(&fifo, 0, REG_HOLD), 0);
	CHECK_EQ(get_info(&fifo).dma_used, 0);
}

/* A process is killed while it has mappings, DMA memory and interrupts, and blocks in read(). */
void check_killed(char **devices)
{
	int ready[2];
	pid_t child;
	struct function fifo;
	char byte;

	CHECK_OK(pipe(ready));
	child = fork();
	CHECK_OK(child);
	if (!child) {
		struct nicforge_shim_dma_alloc memory = { .len = 4 * PAGE };
		struct nicforge_shim_dma_pin pin = { .len = PAGE, .flags = NICFORGE_SHIM_DMA_WRITE };
		uint64_t count;
		void *pinned;

		fifo = open_function(devices[0], 0);
		map_bar(&fifo, 1, 0, PAGE, PROT_READ | PROT_WRITE);
		CHECK_OK(ioctl(fifo.fd, NICFORGE_SHIM_ALLOC_DMA, &memory));
		pinned = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		pin.start = (uintptr_t)pinned;
		CHECK_OK(ioctl(fifo.fd, NICFORGE_SHIM_PIN_DMA, &pin));
		set32(&fifo, 0, REG_HOLD, 1);
		bind_vectors(&fifo, NICFORGE_SHIM_IRQ_MSIX, 0, 2, NICFORGE_SHIM_IRQ_FILE);
		CHECK_EQ(write(ready[1], "", 1), 1);
		CHECK_EQ(read(fifo.fd, &count, 8), 8);
		_exit(1);
	}
	close(ready[1]);
	CHECK_EQ(read(ready[0], &byte, 1), 1);
	CHECK_OK(kill(child, SIGKILL));
	expect_signal(child, SIGKILL);
	close(open_when_free(devices[0]));
	fifo = open_function(devices[0], 0);
	CHECK_EQ(get32(&fifo, 0, REG_HOLD), 0);
	CHECK_EQ(get_info(&fifo).dma_used, 0);
}

void check_module_in_use(char **devices)
{
	struct function fifo = open_function(devices[0], 0);
	volatile uint32_t *registers = map_bar(&fifo, 0, 0, PAGE, PROT_READ | PROT_WRITE);

	CHECK_ERROR(syscall(SYS_delete_module, "nicforge_shim", O_NONBLOCK), EAGAIN);
	/* A mapping alone keeps the module. */
	close(fifo.fd);
	CHECK_ERROR(syscall(SYS_delete_module, "nicforge_shim", O_NONBLOCK), EAGAIN);
	CHECK_EQ(registers[REG_HOLD / 4], 0);
}

/* Blocks in read() until the function is gone. The argument is the descriptor. */
static void *blocked_read(void *argument)
{
	uint64_t count;

	CHECK_ERROR(read(*(int *)argument, &count, 8), ENODEV);
	return NULL;
}

/* Checks that every call on a function that is gone fails with ENODEV. */
static void check_gone(const struct function *fifo)
{
	struct nicforge_shim_info info;
	struct nicforge_shim_dma_alloc alloc = { .len = PAGE };
	uint64_t word;

	CHECK_EQ(wait_for(fifo->fd, POLLIN), POLLERR | POLLHUP);
	CHECK_ERROR(read(fifo->fd, &word, 8), ENODEV);
	CHECK_ERROR(pread(fifo->fd, &word, 8, (off_t)fifo->bars[0].offset), ENODEV);
	CHECK_ERROR(pwrite(fifo->fd, &word, 8, (off_t)fifo->bars[0].offset), ENODEV);
	CHECK_ERROR(ioctl(fifo->fd, NICFORGE_SHIM_GET_INFO, &info), ENODEV);
	CHECK_ERROR(ioctl(fifo->fd, NICFORGE_SHIM_RESET), ENODEV);
	CHECK_ERROR(ioctl(fifo->fd, NICFORGE_SHIM_ALLOC_DMA, &alloc), ENODEV);
	CHECK_ERROR(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fifo->fd,
			 (off_t)fifo->bars[1].offset), ENODEV);
	CHECK_ERROR(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fifo->fd, 1LL << 50), ENODEV);
}

/*
 * Prints "ready" when it has mappings, DMA memory and interrupts, and a thread
 * blocks in read(). The test then removes the function.
 */
void check_end(char **devices)
{
	struct function fifo = open_function(devices[0], 0);
	volatile uint32_t *registers = map_bar(&fifo, 0, 0, PAGE, PROT_READ | PROT_WRITE);
	volatile uint32_t *windows = map_bar(&fifo, 1, 0, 2 * PAGE, PROT_READ | PROT_WRITE);
	volatile uint32_t *never = map_bar(&fifo, 2, 0, PAGE, PROT_READ);
	struct nicforge_shim_dma_alloc memory = { .len = 2 * PAGE };
	struct nicforge_shim_dma_pin pin = { .len = PAGE, .flags = NICFORGE_SHIM_DMA_WRITE };
	volatile uint32_t *words;
	uint64_t *pinned;
	pthread_t reader;

	CHECK_OK(ioctl(fifo.fd, NICFORGE_SHIM_ALLOC_DMA, &memory));
	words = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fifo.fd, (off_t)memory.offset);
	CHECK(words != MAP_FAILED);
	pinned = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pinned != MAP_FAILED);
	pin.start = (uintptr_t)pinned;
	CHECK_OK(ioctl(fifo.fd, NICFORGE_SHIM_PIN_DMA, &pin));
	pinned[0] = 7;
	CHECK(!touch_faults(registers));
	CHECK(!touch_faults(windows));
	CHECK(!touch_faults(words));
	bind_vectors(&fifo, NICFORGE_SHIM_IRQ_MSIX, 0, 2, NICFORGE_SHIM_IRQ_FILE);
	CHECK_EQ(pthread_create(&reader, NULL, blocked_read, &fifo.fd), 0);
	printf("ready\n");
	fflush(stdout);

	CHECK_EQ(pthread_join(reader, NULL), 0);
	check_gone(&fifo);
	CHECK(touch_faults(registers));
	CHECK(touch_faults(windows));
	CHECK(touch_faults(never));
	/*
	 * The coherent memory goes when the driver has let go of the function,
	 * which is later than the function's removal.
	 */
	while (!touch_faults(words))
		usleep(10000);
	CHECK(touch_faults(words + PAGE / 4));
	CHECK_EQ(pinned[0], 7);
	CHECK_OK(munmap((void *)words, PAGE));
	close(fifo.fd);
	CHECK_EQ(pinned[0], 7);
}

/* A function whose device answers no more, although Linux was told nothing. */
void check_answers_no_more(char **devices)
{
	struct function fifo = open_function(devices[0], 0);
	volatile uint32_t *windows = map_bar(&fifo, 1, 0, 2 * PAGE, PROT_READ | PROT_WRITE);
	struct timespec start, end;
	pthread_t reader;

	CHECK(!touch_faults(windows));
	bind_vectors(&fifo, NICFORGE_SHIM_IRQ_MSIX, 0, 2, NICFORGE_SHIM_IRQ_FILE);
	CHECK_EQ(pthread_create(&reader, NULL, blocked_read, &fifo.fd), 0);
	printf("ready\n");
	fflush(stdout);
	clock_gettime(CLOCK_MONOTONIC, &start);

	CHECK_EQ(pthread_join(reader, NULL), 0);
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("noticed %lld ms after \"ready\"\n",
	       (end.tv_sec - start.tv_sec) * 1000LL + (end.tv_nsec - start.tv_nsec) / 1000000);
	check_gone(&fifo);
	CHECK(touch_faults(windows));
	close(fifo.fd);
	CHECK_ERROR(open(devices[0], O_RDWR), ENODEV);
}

/* Processes that use functions at once. */
#define RACERS 3
/* Device numbers that functions may get when they are bound repeatedly. */
#define NUMBERS 8

/*
 * Opens a function, uses it in every way, and closes it. Returns false if it
 * does not exist, or if another process has it.
 */
static bool use_briefly(unsigned int number)
{
	struct nicforge_shim_region bar = { .index = 1 };
	struct nicforge_shim_dma_alloc memory = { .len = PAGE };
	struct nicforge_shim_irq_bind bind = {
		.kind = NICFORGE_SHIM_IRQ_MSIX, .count = 1, .eventfd = NICFORGE_SHIM_IRQ_FILE,
	};
	void *window = MAP_FAILED;
	char path[32];
	uint64_t count;
	int fd;

	snprintf(path, sizeof(path), "/dev/nicforge%u", number);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) {
		/* EAGAIN: the function is being removed, so open() cannot reset it. */
		CHECK(errno == ENOENT || errno == ENXIO || errno == ENODEV ||
		      errno == EBUSY || errno == EAGAIN);
		return false;
	}
	/* The function may be removed at any time, so ENODEV is the only error. */
	if (ioctl(fd, NICFORGE_SHIM_GET_REGION, &bar) < 0)
		CHECK_EQ(errno, ENODEV);
	else
		window = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			      (off_t)bar.offset);
	if (window == MAP_FAILED)
		CHECK_EQ(errno, ENODEV);
	else
		touch_faults(window);
	if (ioctl(fd, NICFORGE_SHIM_ALLOC_DMA, &memory) < 0)
		CHECK_EQ(errno, ENODEV);
	if (ioctl(fd, NICFORGE_SHIM_BIND_IRQ, &bind) < 0)
		CHECK_EQ(errno, ENODEV);
	else if (read(fd, &count, 8) < 0)
		CHECK(errno == ENODEV || errno == EAGAIN);
	/* From here on only the mapping keeps the function. */
	close(fd);
	if (window != MAP_FAILED) {
		touch_faults(window);
		CHECK_OK(munmap(window, PAGE));
	}
	return true;
}

/*
 * Processes open and use all functions that exist, while the test removes and
 * adds functions, their driver and the module, until a file exists. At least
 * one use of a function must have succeeded.
 */
void check_race(char **devices)
{
	uint64_t *uses = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t racers[RACERS], parent = getpid();
	int i;

	CHECK(uses != MAP_FAILED);
	/* The test has a deadline of its own. */
	alarm(0);
	for (i = 0; i < RACERS; i++) {
		racers[i] = fork();
		CHECK_OK(racers[i]);
		if (racers[i])
			continue;
		CHECK_OK(prctl(PR_SET_PDEATHSIG, SIGKILL));
		CHECK_EQ(getppid(), parent);
		while (access(devices[0], F_OK)) {
			unsigned int number;

			for (number = 0; number < NUMBERS; number++)
				uses[i] += use_briefly(number);
			/* For a moment no process has a function, so the module can be removed. */
			usleep(2000);
		}
		_exit(0);
	}
	printf("ready\n");
	fflush(stdout);
	for (i = 0; i < RACERS; i++)
		expect_exit(racers[i], 0);
	for (i = 1; i < RACERS; i++)
		uses[0] += uses[i];
	printf("%llu uses\n", (unsigned long long)uses[0]);
	CHECK(uses[0] > 0);
}

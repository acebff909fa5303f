// SPDX-License-Identifier: Apache-2.0 OR MIT
/* The program that runs one check, and the functions that several checks use. */
#include "checks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <time.h>

void fail(const char *file, int line, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	printf("FAILED %s:%d: ", strrchr(file, '/') ? strrchr(file, '/') + 1 : file, line);
	vprintf(format, arguments);
	printf("\n");
	va_end(arguments);
	fflush(stdout);
	_exit(1);
}

struct function open_function(const char *path, int flags)
{
	struct function function = {};
	uint32_t i;

	function.fd = open(path, O_RDWR | O_CLOEXEC | flags);
	CHECK_OK(function.fd);
	for (i = 0; i < NICFORGE_SHIM_REGION_BARS; i++) {
		function.bars[i].index = i;
		CHECK_OK(ioctl(function.fd, NICFORGE_SHIM_GET_REGION, &function.bars[i]));
	}
	return function;
}

int open_when_free(const char *path)
{
	time_t end = time(NULL) + 20;

	for (;;) {
		int fd = open(path, O_RDWR | O_CLOEXEC);

		if (fd >= 0 || errno != EBUSY || time(NULL) >= end) {
			CHECK_OK(fd);
			return fd;
		}
		usleep(10000);
	}
}

void *map_bar(const struct function *function, int bar, uint64_t offset,
	      size_t len, int protection)
{
	void *memory = mmap(NULL, len, protection, MAP_SHARED, function->fd,
			    (off_t)(function->bars[bar].offset + offset));

	CHECK(memory != MAP_FAILED);
	return memory;
}

/* Returns the position in the device file of an offset in a BAR. */
static off_t place(const struct function *function, int bar, uint64_t offset)
{
	return (off_t)(function->bars[bar].offset + offset);
}

uint32_t get32(const struct function *function, int bar, uint64_t offset)
{
	uint32_t value = 0;

	CHECK_EQ(pread(function->fd, &value, 4, place(function, bar, offset)), 4);
	return value;
}

uint64_t get64(const struct function *function, int bar, uint64_t offset)
{
	uint64_t value = 0;

	CHECK_EQ(pread(function->fd, &value, 8, place(function, bar, offset)), 8);
	return value;
}

void set32(const struct function *function, int bar, uint64_t offset,
	   uint32_t value)
{
	CHECK_EQ(pwrite(function->fd, &value, 4, place(function, bar, offset)), 4);
}

void set64(const struct function *function, int bar, uint64_t offset,
	   uint64_t value)
{
	CHECK_EQ(pwrite(function->fd, &value, 8, place(function, bar, offset)), 8);
}

struct nicforge_shim_info get_info(const struct function *function)
{
	struct nicforge_shim_info info;

	CHECK_OK(ioctl(function->fd, NICFORGE_SHIM_GET_INFO, &info));
	return info;
}

void bind_vectors(const struct function *function, uint32_t kind,
		  uint32_t start, uint32_t count, int eventfd)
{
	struct nicforge_shim_irq_bind bind = {
		.kind = kind, .start = start, .count = count, .eventfd = eventfd,
	};

	CHECK_OK(ioctl(function->fd, NICFORGE_SHIM_BIND_IRQ, &bind));
}

int mask_vector(const struct function *function, bool mask, uint32_t kind,
		uint32_t vector)
{
	struct nicforge_shim_irq_range range = {
		.kind = kind, .start = vector, .count = 1,
	};

	return ioctl(function->fd,
		     mask ? NICFORGE_SHIM_MASK_IRQ : NICFORGE_SHIM_UNMASK_IRQ, &range);
}

int unbind_all(const struct function *function, uint32_t kind)
{
	struct nicforge_shim_irq_range range = { .kind = kind, .count = UINT32_MAX };

	return ioctl(function->fd, NICFORGE_SHIM_UNBIND_IRQ, &range);
}

short wait_for(int fd, short events)
{
	struct pollfd poll_fd = { .fd = fd, .events = events };

	CHECK_EQ(poll(&poll_fd, 1, 20000), 1);
	return poll_fd.revents;
}

uint64_t take(int fd)
{
	uint64_t count = 0;
	ssize_t len = read(fd, &count, sizeof(count));

	if (len < 0 && errno == EAGAIN)
		return 0;
	CHECK_EQ(len, 8);
	return count;
}

/* Where a process continues after SIGBUS. */
static sigjmp_buf after_fault;

static void fault(int number)
{
	(void)number;
	siglongjmp(after_fault, 1);
}

bool touch_faults(volatile void *memory)
{
	struct sigaction action = { .sa_handler = fault }, old;
	bool faulted = sigsetjmp(after_fault, 1);

	if (!faulted) {
		CHECK_OK(sigaction(SIGBUS, &action, &old));
		(void)*(volatile uint32_t *)memory;
	}
	signal(SIGBUS, SIG_DFL);
	return faulted;
}

void expect_exit(pid_t child, int status)
{
	int ended;

	CHECK_EQ(waitpid(child, &ended, 0), child);
	CHECK(WIFEXITED(ended));
	CHECK_EQ(WEXITSTATUS(ended), status);
}

void expect_signal(pid_t child, int signal)
{
	int ended;

	CHECK_EQ(waitpid(child, &ended, 0), child);
	CHECK(WIFSIGNALED(ended));
	CHECK_EQ(WTERMSIG(ended), signal);
}

void slot_fifo_make_error(const struct function *fifo)
{
	/* The queue is empty, so a read of the port is an error. */
	get64(fifo, 0, NICFORGE_PROOF_SLOT_FIFO_REG_PORT);
}

void slot_fifo_clear_error(const struct function *fifo)
{
	uint32_t errors = get32(fifo, 0, NICFORGE_PROOF_SLOT_FIFO_REG_ERROR);

	CHECK_EQ(errors, NICFORGE_PROOF_SLOT_FIFO_ERROR_EMPTY);
	set32(fifo, 0, NICFORGE_PROOF_SLOT_FIFO_REG_ERROR, errors);
}

static const struct {
	const char *name;
	/* Number of arguments, which are device files. */
	int devices;
	void (*run)(char **devices);
} checks[] = {
	{ "enumeration", 2, check_enumeration },
	{ "open-twice", 1, check_open_twice },
	{ "registers", 1, check_registers },
	{ "mappings", 1, check_mappings },
	{ "read-only", 1, check_read_only },
	{ "mapped-fifo", 1, check_mapped_fifo },
	{ "caching", 1, check_caching },
	{ "read", 1, check_read },
	{ "eventfd", 1, check_eventfd },
	{ "masking", 1, check_masking },
	{ "intx", 1, check_intx },
	{ "coherent", 1, check_coherent },
	{ "pinned", 1, check_pinned },
	{ "untouched", 1, check_untouched },
	{ "iommu", 1, check_iommu },
	{ "quota", 1, check_quota },
	{ "reset", 1, check_reset },
	{ "killed", 1, check_killed },
	{ "module-in-use", 1, check_module_in_use },
	{ "end", 1, check_end },
	{ "answers-no-more", 1, check_answers_no_more },
	/* Its argument is the file whose existence ends it. */
	{ "race", 1, check_race },
};

int main(int count, char **arguments)
{
	size_t i;

	/* SIGALRM ends a check that hangs. */
	alarm(100);
	for (i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
		if (count < 2 || strcmp(arguments[1], checks[i].name))
			continue;
		CHECK_EQ(count - 2, checks[i].devices);
		checks[i].run(arguments + 2);
		printf("ok %s\n", arguments[1]);
		return 0;
	}
	fail(__FILE__, __LINE__, "there is no such check");
}

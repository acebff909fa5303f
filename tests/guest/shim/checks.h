/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Checks of the kernel module nicforge-shim, for a guest in which it has bound
 * the proof devices.
 *
 * The arguments are a check's name and device files. The exit status is 0, or
 * 1 after a line that says which condition was false. Each check is a process
 * of its own and leaves nothing behind.
 */
#ifndef CHECKS_H
#define CHECKS_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nicforge_hwi.h"
#include "nicforge_shim.h"

#define PAGE 4096UL

/* Prints a line about a failure, and ends the process with status 1. */
void fail(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4), noreturn));

#define CHECK(condition)                                                       \
	do {                                                                   \
		if (!(condition))                                              \
			fail(__FILE__, __LINE__, "%s", #condition);            \
	} while (0)

/* Fails unless two integers are equal. */
#define CHECK_EQ(is, should)                                                   \
	do {                                                                   \
		long long is_ = (long long)(is), should_ = (long long)(should); \
		if (is_ != should_)                                            \
			fail(__FILE__, __LINE__, "%s is %#llx, not %s (%#llx)", \
			     #is, is_, #should, should_);                      \
	} while (0)

/* Fails unless a call succeeds. */
#define CHECK_OK(call)                                                         \
	do {                                                                   \
		if ((call) < 0)                                                \
			fail(__FILE__, __LINE__, "%s: %s", #call,              \
			     strerror(errno));                                 \
	} while (0)

/* Fails unless a call fails with this error. */
#define CHECK_ERROR(call, error)                                               \
	do {                                                                   \
		errno = 0;                                                     \
		if ((long)(call) != -1 || errno != (error))                    \
			fail(__FILE__, __LINE__, "%s: %s instead of %s", #call, \
			     strerror(errno), strerror(error));                \
	} while (0)

/* A function that this process has open, and its BARs. */
struct function {
	int fd;
	struct nicforge_shim_region bars[NICFORGE_SHIM_REGION_BARS];
};

/* Opens a function. flags are those of open(), besides O_RDWR and O_CLOEXEC. */
struct function open_function(const char *path, int flags);
/* Opens a function, and waits up to 20 s while another process has it. */
int open_when_free(const char *path);
/* Maps a part of a BAR. */
void *map_bar(const struct function *function, int bar, uint64_t offset,
	      size_t len, int protection);

/* Registers, through pread() and pwrite(). */
uint32_t get32(const struct function *function, int bar, uint64_t offset);
uint64_t get64(const struct function *function, int bar, uint64_t offset);
void set32(const struct function *function, int bar, uint64_t offset,
	   uint32_t value);
void set64(const struct function *function, int bar, uint64_t offset,
	   uint64_t value);
struct nicforge_shim_info get_info(const struct function *function);

/* Interrupts. A kind is one of NICFORGE_SHIM_IRQ_*. */
void bind_vectors(const struct function *function, uint32_t kind,
		  uint32_t start, uint32_t count, int eventfd);
int mask_vector(const struct function *function, bool mask, uint32_t kind,
		uint32_t vector);
int unbind_all(const struct function *function, uint32_t kind);
/* Waits up to 20 s until poll() returns any of the events. Returns all of them. */
short wait_for(int fd, short events);
/* Takes the count of an eventfd or device file; 0 if nothing has happened. */
uint64_t take(int fd);

/* Returns whether a load from the memory raises SIGBUS. */
bool touch_faults(volatile void *memory);
/* Wait for the end of a child process, and fail unless it ended like this. */
void expect_exit(pid_t child, int status);
void expect_signal(pid_t child, int signal);

/* Makes the slot FIFO set an error bit, which raises an interrupt. */
void slot_fifo_make_error(const struct function *fifo);
/* Clears that error bit, which must be the only one. */
void slot_fifo_clear_error(const struct function *fifo);

/* The checks, by file. */
void check_enumeration(char **devices);
void check_open_twice(char **devices);
void check_registers(char **devices);
void check_mappings(char **devices);
void check_read_only(char **devices);
void check_mapped_fifo(char **devices);
void check_caching(char **devices);
void check_read(char **devices);
void check_eventfd(char **devices);
void check_masking(char **devices);
void check_intx(char **devices);
void check_coherent(char **devices);
void check_pinned(char **devices);
void check_untouched(char **devices);
void check_iommu(char **devices);
void check_quota(char **devices);
void check_reset(char **devices);
void check_killed(char **devices);
void check_module_in_use(char **devices);
void check_end(char **devices);
void check_answers_no_more(char **devices);
void check_race(char **devices);

#endif /* CHECKS_H */

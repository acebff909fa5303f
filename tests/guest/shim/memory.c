// SPDX-License-Identifier: Apache-2.0 OR MIT
/* DMA memory, coherent and pinned: its use, its limits, and its release. */
#include "checks.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

typedef struct nicforge_proof_dma_engine_descriptor descriptor;

static struct nicforge_shim_dma_alloc alloc_dma(const struct function *engine,
						uint64_t len)
{
	struct nicforge_shim_dma_alloc alloc = { .len = len };

	CHECK_OK(ioctl(engine->fd, NICFORGE_SHIM_ALLOC_DMA, &alloc));
	return alloc;
}

static void *map_dma(const struct function *engine,
		     const struct nicforge_shim_dma_alloc *alloc)
{
	void *memory = mmap(NULL, alloc->len, PROT_READ | PROT_WRITE, MAP_SHARED,
			    engine->fd, (off_t)alloc->offset);

	CHECK(memory != MAP_FAILED);
	return memory;
}

static int free_dma(const struct function *engine, uint32_t handle)
{
	struct nicforge_shim_dma_free arguments = { .handle = handle };

	return ioctl(engine->fd, NICFORGE_SHIM_FREE_DMA, &arguments);
}

/* Returns the bytes of DMA memory that a function's process uses. */
static uint64_t used(const struct function *engine)
{
	return get_info(engine).dma_used;
}

/*
 * Lets the engine copy, with its list in coherent memory. Returns the status
 * after the interrupt of the copy's end.
 */
static uint32_t copy(const struct function *engine, const descriptor *pieces,
		     uint32_t count)
{
	struct nicforge_shim_dma_alloc list = alloc_dma(engine, PAGE);
	void *memory = map_dma(engine, &list);

	CHECK(count * sizeof(*pieces) <= PAGE);
	memcpy(memory, pieces, count * sizeof(*pieces));
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	bind_vectors(engine, NICFORGE_SHIM_IRQ_MSIX, 0, 2, NICFORGE_SHIM_IRQ_FILE);
	set64(engine, 0, NICFORGE_PROOF_DMA_ENGINE_REG_LIST, list.address);
	set32(engine, 0, NICFORGE_PROOF_DMA_ENGINE_REG_COUNT, count);
	set32(engine, 0, NICFORGE_PROOF_DMA_ENGINE_REG_START, 1);
	CHECK_EQ(take(engine->fd), 1);
	CHECK_OK(munmap(memory, PAGE));
	CHECK_OK(free_dma(engine, list.handle));
	return get32(engine, 0, NICFORGE_PROOF_DMA_ENGINE_REG_STATUS);
}

/* Fills memory with words that depend on a seed. */
static void fill(uint64_t *words, size_t len, uint64_t seed)
{
	size_t i;

	for (i = 0; i < len / 8; i++)
		words[i] = seed + i * 0x9e3779b97f4a7c15ULL;
}

void check_coherent(char **devices)
{
	struct function engine = open_function(devices[0], 0);
	struct nicforge_shim_dma_alloc from = alloc_dma(&engine, 16 * PAGE);
	struct nicforge_shim_dma_alloc to = alloc_dma(&engine, 16 * PAGE);
	struct nicforge_shim_dma_alloc five, bad = { .len = 100 };
	int has_iommu = !!(get_info(&engine).flags & NICFORGE_SHIM_INFO_IOMMU);
	uint64_t *source = map_dma(&engine, &from), *target = map_dma(&engine, &to);
	uint64_t *page;
	descriptor piece = { from.address, to.address, 16 * PAGE, 0 };
	size_t i;

	CHECK_EQ(used(&engine), 32 * PAGE);
	for (i = 0; i < 16 * PAGE / 8; i++)
		CHECK_EQ(target[i], 0);
	fill(source, 16 * PAGE, 1);
	CHECK_EQ(copy(&engine, &piece, 1), 0);
	CHECK_EQ(memcmp(source, target, 16 * PAGE), 0);

	/* A page of the memory can be mapped a second time. */
	page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, engine.fd, (off_t)(to.offset + 5 * PAGE));
	CHECK(page != MAP_FAILED);
	CHECK_EQ(memcmp(page, source + 5 * PAGE / 8, PAGE), 0);
	CHECK_ERROR(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, engine.fd,
			 (off_t)(to.offset + 16 * PAGE)), EINVAL);

	/* Freed memory exists, and counts, as long as it is mapped. */
	CHECK_OK(free_dma(&engine, to.handle));
	CHECK_ERROR(free_dma(&engine, to.handle), ENOENT);
	CHECK_ERROR(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, engine.fd, (off_t)to.offset), EINVAL);
	CHECK_EQ(memcmp(source, target, 16 * PAGE), 0);
	CHECK_EQ(used(&engine), 32 * PAGE);
	CHECK_OK(munmap(target, 8 * PAGE));
	CHECK_OK(munmap(target + 8 * PAGE / 8, 8 * PAGE));
	CHECK_EQ(used(&engine), 32 * PAGE);
	CHECK_EQ(page[0], source[5 * PAGE / 8]);
	CHECK_OK(munmap(page, PAGE));
	CHECK_EQ(used(&engine), 16 * PAGE);

	/* Without an IOMMU, the kernel allocates a power of two of pages. */
	five = alloc_dma(&engine, 5 * PAGE);
	CHECK_EQ(used(&engine), (has_iommu ? 21 : 24) * PAGE);
	CHECK_OK(free_dma(&engine, five.handle));
	CHECK_EQ(used(&engine), 16 * PAGE);

	CHECK_ERROR(ioctl(engine.fd, NICFORGE_SHIM_ALLOC_DMA, &bad), EINVAL);
	bad.len = NICFORGE_SHIM_MAX_BUFFER_LEN + PAGE;
	CHECK_ERROR(ioctl(engine.fd, NICFORGE_SHIM_ALLOC_DMA, &bad), EINVAL);
	bad.len = 0;
	CHECK_ERROR(ioctl(engine.fd, NICFORGE_SHIM_ALLOC_DMA, &bad), EINVAL);
}

/* Pages of each pinned range. */
#define PAGES 64

static uint64_t *new_memory(size_t len)
{
	uint64_t *memory = mmap(NULL, len, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	return memory;
}

static struct nicforge_shim_dma_pin pin(const struct function *engine, void *start,
					size_t len, uint32_t flags,
					struct nicforge_shim_dma_segment *list,
					uint32_t capacity)
{
	struct nicforge_shim_dma_pin pin = {
		.start = (uintptr_t)start,
		.len = len,
		.segments = (uintptr_t)list,
		.capacity = capacity,
		.flags = flags,
	};

	CHECK_OK(ioctl(engine->fd, NICFORGE_SHIM_PIN_DMA, &pin));
	return pin;
}

/*
 * Makes a descriptor for each page of two pinned ranges, and changes the lists
 * of their segments. Returns the number of source segments.
 */
static uint32_t page_pieces(struct nicforge_shim_dma_segment *from,
			    struct nicforge_shim_dma_segment *to,
			    descriptor *pieces, uint32_t pages)
{
	uint32_t i, in = 0, out = 0;

	for (i = 0; i < pages; i++) {
		pieces[i] = (descriptor) { from[in].address, to[out].address, PAGE, 0 };
		from[in].address += PAGE;
		from[in].len -= PAGE;
		in += !from[in].len;
		to[out].address += PAGE;
		to[out].len -= PAGE;
		out += !to[out].len;
	}
	return in;
}

void check_pinned(char **devices)
{
	struct function engine = open_function(devices[0], 0);
	struct nicforge_shim_dma_segment from[PAGES], to[PAGES];
	uint64_t *source = new_memory(PAGES * PAGE), *target = new_memory(PAGES * PAGE);
	struct nicforge_shim_dma_pin source_pin, target_pin, bad;
	descriptor pieces[PAGES];
	uint64_t len = 0;
	uint32_t i;

	/* The pages are allocated in turns, so that those of a range are not adjacent. */
	for (i = 0; i < PAGES; i++)
		source[i * PAGE / 8] = target[i * PAGE / 8] = 1;
	fill(source, PAGES * PAGE, 2);
	source_pin = pin(&engine, source, PAGES * PAGE, NICFORGE_SHIM_DMA_READ, from, PAGES);
	target_pin = pin(&engine, target, PAGES * PAGE, NICFORGE_SHIM_DMA_WRITE, to, PAGES);
	CHECK_EQ(source_pin.address, from[0].address);
	CHECK_EQ(used(&engine), 2 * PAGES * PAGE);
	for (i = 0; i < target_pin.count; i++)
		len += to[i].len;
	CHECK_EQ(len, PAGES * PAGE);

	CHECK_EQ(page_pieces(from, to, pieces, PAGES), source_pin.count);
	CHECK_EQ(copy(&engine, pieces, PAGES), 0);
	CHECK_EQ(memcmp(source, target, PAGES * PAGE), 0);

	/*
	 * Without room for segments, the call fails and returns the needed room.
	 * With an IOMMU one segment is enough, which needs no room.
	 */
	bad = (struct nicforge_shim_dma_pin) {
		.address = 0x55,
		.start = (uintptr_t)target,
		.len = PAGES * PAGE,
		.flags = NICFORGE_SHIM_DMA_READ | NICFORGE_SHIM_DMA_WRITE,
	};
	if (get_info(&engine).flags & NICFORGE_SHIM_INFO_IOMMU) {
		CHECK_EQ(target_pin.count, 1);
		CHECK_OK(ioctl(engine.fd, NICFORGE_SHIM_PIN_DMA, &bad));
		CHECK_OK(free_dma(&engine, bad.handle));
	} else {
		CHECK(target_pin.count > 1);
		CHECK_ERROR(ioctl(engine.fd, NICFORGE_SHIM_PIN_DMA, &bad), ENOSPC);
		/* No memory is pinned, so there is no address. */
		CHECK_EQ(bad.address, 0x55);
	}
	CHECK_EQ(bad.count, target_pin.count);

	CHECK_OK(free_dma(&engine, source_pin.handle));
	CHECK_OK(free_dma(&engine, target_pin.handle));
	CHECK_EQ(used(&engine), 0);

	/* Addresses without memory, unaligned ones, and read-only memory are refused. */
	bad.start = PAGE;
	CHECK_ERROR(ioctl(engine.fd, NICFORGE_SHIM_PIN_DMA, &bad), EFAULT);
	bad.start = (uintptr_t)target + 8;
	CHECK_ERROR(ioctl(engine.fd, NICFORGE_SHIM_PIN_DMA, &bad), EINVAL);
	bad.start = -PAGE;
	CHECK_ERROR(ioctl(engine.fd, NICFORGE_SHIM_PIN_DMA, &bad), EINVAL);
	bad.start = (uintptr_t)target;
	CHECK_OK(mprotect(target, PAGE, PROT_READ));
	CHECK_ERROR(ioctl(engine.fd, NICFORGE_SHIM_PIN_DMA, &bad), EFAULT);
	bad.start = (uintptr_t)map_bar(&engine, 1, 0, PAGE, PROT_READ | PROT_WRITE);
	bad.len = PAGE;
	CHECK_ERROR(ioctl(engine.fd, NICFORGE_SHIM_PIN_DMA, &bad), EFAULT);
	bad.start = (uintptr_t)source;
	bad.flags = 4;
	CHECK_ERROR(ioctl(engine.fd, NICFORGE_SHIM_PIN_DMA, &bad), EINVAL);
	/* If the list of segments cannot be written, no memory stays pinned. */
	bad.flags = NICFORGE_SHIM_DMA_READ;
	bad.segments = PAGE;
	bad.capacity = 1;
	CHECK_ERROR(ioctl(engine.fd, NICFORGE_SHIM_PIN_DMA, &bad), EFAULT);
	CHECK_EQ(used(&engine), 0);
}

/* Maps a page of some kind at an address. */
static void map_at(char *place, int protection, int flags, int fd)
{
	CHECK(mmap(place, PAGE, protection, flags | MAP_FIXED, fd, 0) == place);
}

void check_untouched(char **devices)
{
	enum { UNTOUCHED, READ, FILE_PAGE, SHARED, KINDS };
	struct function engine = open_function(devices[0], 0);
	struct nicforge_shim_dma_segment from[KINDS], to[KINDS];
	char *source = (char *)new_memory(KINDS * PAGE);
	char *target = (char *)new_memory(KINDS * PAGE);
	int own = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	int shared = (int)syscall(SYS_memfd_create, "shared", 0);
	descriptor pieces[KINDS];
	volatile char *touched;
	char value = 7;

	CHECK_OK(own);
	CHECK_OK(shared);
	CHECK_OK(ftruncate(shared, PAGE));
	map_at(source + FILE_PAGE * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, own);
	map_at(source + SHARED * PAGE, PROT_READ, MAP_SHARED, shared);
	touched = source + READ * PAGE;
	CHECK_EQ(*touched, 0);
	pin(&engine, source, KINDS * PAGE, NICFORGE_SHIM_DMA_READ, from, KINDS);
	pin(&engine, target, KINDS * PAGE, NICFORGE_SHIM_DMA_WRITE, to, KINDS);
	page_pieces(from, to, pieces, KINDS);

	/* Stores after the pinning: the function reads what the process reads. */
	memset(source + UNTOUCHED * PAGE, 1, PAGE);
	memset(source + READ * PAGE, 2, PAGE);
	memset(source + FILE_PAGE * PAGE, 3, PAGE);
	CHECK_EQ(pwrite(shared, &value, 1, 5), 1);
	CHECK_EQ(source[SHARED * PAGE + 5], value);
	CHECK_EQ(copy(&engine, pieces, KINDS), 0);
	CHECK_EQ(memcmp(source, target, KINDS * PAGE), 0);
}

/* With an IOMMU: memory of 16 MiB, and accesses that the IOMMU refuses. */
void check_iommu(char **devices)
{
	struct function engine = open_function(devices[0], 0);
	size_t len = 16UL << 20;
	struct nicforge_shim_dma_alloc large;
	struct nicforge_shim_dma_pin source, target;
	uint64_t *from = new_memory(len), *to = new_memory(len);
	descriptor piece;

	CHECK(get_info(&engine).flags & NICFORGE_SHIM_INFO_IOMMU);
	large = alloc_dma(&engine, len);
	fill(map_dma(&engine, &large), len, 4);
	fill(from, len, 3);
	source = pin(&engine, from, len, NICFORGE_SHIM_DMA_READ, NULL, 0);
	target = pin(&engine, to, len, NICFORGE_SHIM_DMA_WRITE, NULL, 0);

	piece = (descriptor) { source.address + len - PAGE, target.address, PAGE, 0 };
	CHECK_EQ(copy(&engine, &piece, 1), 0);
	CHECK_EQ(memcmp(to, from + (len - PAGE) / 8, PAGE), 0);
	piece = (descriptor) { large.address + len - PAGE, target.address + PAGE, PAGE, 0 };
	CHECK_EQ(copy(&engine, &piece, 1), 0);

	/* A write to memory that may only be read, and an access to freed memory. */
	piece = (descriptor) { source.address, source.address + PAGE, PAGE, 0 };
	CHECK_EQ(copy(&engine, &piece, 1), NICFORGE_PROOF_DMA_ENGINE_STATUS_DMA_ERROR);
	CHECK_OK(free_dma(&engine, target.handle));
	piece = (descriptor) { source.address, target.address, PAGE, 0 };
	usleep(100000);
	CHECK_EQ(copy(&engine, &piece, 1), NICFORGE_PROOF_DMA_ENGINE_STATUS_DMA_ERROR);
}

/* Drops all capabilities, and so the right to pin without limit. */
static void drop_capabilities(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = {};

	CHECK_OK(syscall(SYS_capset, &header, none));
}

void check_quota(char **devices)
{
	struct function engine = open_function(devices[0], 0);
	struct rlimit limit = { 8 * PAGE, 8 * PAGE };
	struct nicforge_shim_dma_alloc five = { .len = 5 * PAGE }, large = { .len = 1ULL << 30 };
	struct nicforge_shim_dma_pin four = {
		.start = (uintptr_t)new_memory(4 * PAGE),
		.len = 4 * PAGE,
		.flags = NICFORGE_SHIM_DMA_WRITE,
	};
	uint64_t quota = get_info(&engine).dma_quota;

	/* The function's quota, which the test has set below 1 GiB. */
	CHECK(quota < large.len);
	CHECK_ERROR(ioctl(engine.fd, NICFORGE_SHIM_ALLOC_DMA, &large), ENOMEM);

	/* The process's limit. */
	CHECK_OK(setrlimit(RLIMIT_MEMLOCK, &limit));
	drop_capabilities();
	CHECK_OK(ioctl(engine.fd, NICFORGE_SHIM_ALLOC_DMA, &five));
	CHECK_ERROR(ioctl(engine.fd, NICFORGE_SHIM_PIN_DMA, &four), ENOMEM);
	CHECK_OK(free_dma(&engine, five.handle));
	four.len = 1 * PAGE;
	CHECK_OK(ioctl(engine.fd, NICFORGE_SHIM_PIN_DMA, &four));
	five.len = 8 * PAGE;
	CHECK_ERROR(ioctl(engine.fd, NICFORGE_SHIM_ALLOC_DMA, &five), ENOMEM);
	CHECK_OK(free_dma(&engine, four.handle));
	CHECK_OK(ioctl(engine.fd, NICFORGE_SHIM_ALLOC_DMA, &five));
}

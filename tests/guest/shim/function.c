// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A function's identity, its only user, its registers and its mappings. */
#include "checks.h"

#include <sys/wait.h>

#define REG_HOLD NICFORGE_PROOF_SLOT_FIFO_REG_HOLD
#define REG_FILL NICFORGE_PROOF_SLOT_FIFO_REG_FILL

/* Offsets in BAR 0 of the control page and of the MSI-X table. */
#define CONTROL 0x1000
#define MSIX_TABLE 0x2000

/* Checks what a function says of itself, and that sysfs has its address. */
static void check_identity(const char *path, uint16_t device)
{
	char address[32], link[128], text[64] = "";
	struct function function = open_function(path, 0);
	struct nicforge_shim_info info = get_info(&function);
	FILE *file;

	CHECK_EQ(info.version, NICFORGE_SHIM_VERSION);
	CHECK_EQ(info.vendor, NICFORGE_PCI_VENDOR_ID);
	CHECK_EQ(info.device, device);
	CHECK_EQ(info.class, 0xff0000);
	CHECK(info.flags & NICFORGE_SHIM_INFO_RESET);
	CHECK(info.flags & NICFORGE_SHIM_INFO_ATTACHMENT);
	CHECK(info.flags & NICFORGE_SHIM_INFO_DMA64);
	CHECK_EQ(info.dma_used, 0);

	/* The same address in sysfs. */
	snprintf(link, sizeof(link), "/sys/class/nicforge/%s/pci_address",
		 strrchr(path, '/') + 1);
	file = fopen(link, "r");
	CHECK(file);
	CHECK(fgets(text, sizeof(text), file));
	fclose(file);
	snprintf(address, sizeof(address), "%04x:%02x:%02x.%x\n", info.domain,
		 info.bus, info.slot, info.function);
	CHECK_EQ(strcmp(text, address), 0);
	close(function.fd);
}

void check_enumeration(char **devices)
{
	struct function fifo;
	struct nicforge_shim_irq irq = { .kind = NICFORGE_SHIM_IRQ_MSIX };
	struct nicforge_shim_region region = { .index = NICFORGE_SHIM_REGION_CONFIG };

	check_identity(devices[0], NICFORGE_PCI_DEVICE_SLOT_FIFO);
	check_identity(devices[1], NICFORGE_PCI_DEVICE_DMA_ENGINE);

	fifo = open_function(devices[0], 0);
	/* Registers, then MSI-X, which is not mappable. */
	CHECK_EQ(fifo.bars[0].size, 0x4000);
	CHECK_EQ(fifo.bars[0].flags, NICFORGE_SHIM_REGION_READ |
		 NICFORGE_SHIM_REGION_WRITE | NICFORGE_SHIM_REGION_MMAP);
	CHECK_EQ(fifo.bars[0].area_count, 1);
	CHECK_EQ(fifo.bars[0].areas[0].offset, 0);
	CHECK_EQ(fifo.bars[0].areas[0].len, MSIX_TABLE);
	/* Memory. */
	CHECK_EQ(fifo.bars[1].flags, NICFORGE_SHIM_REGION_READ |
		 NICFORGE_SHIM_REGION_WRITE | NICFORGE_SHIM_REGION_MMAP |
		 NICFORGE_SHIM_REGION_WC | NICFORGE_SHIM_REGION_MEMORY);
	/* The mirror. */
	CHECK_EQ(fifo.bars[2].flags, NICFORGE_SHIM_REGION_READ |
		 NICFORGE_SHIM_REGION_MMAP | NICFORGE_SHIM_REGION_WC |
		 NICFORGE_SHIM_REGION_MEMORY);
	CHECK_EQ(fifo.bars[3].size, 0);
	CHECK_OK(ioctl(fifo.fd, NICFORGE_SHIM_GET_REGION, &region));
	CHECK_EQ(region.flags, NICFORGE_SHIM_REGION_READ);
	region.index = 8;
	CHECK_ERROR(ioctl(fifo.fd, NICFORGE_SHIM_GET_REGION, &region), EINVAL);

	CHECK_OK(ioctl(fifo.fd, NICFORGE_SHIM_GET_IRQ, &irq));
	CHECK_EQ(irq.count, 2);
	CHECK_EQ(irq.flags, NICFORGE_SHIM_IRQ_MASKABLE);
	irq = (struct nicforge_shim_irq) { .kind = NICFORGE_SHIM_IRQ_INTX };
	CHECK_OK(ioctl(fifo.fd, NICFORGE_SHIM_GET_IRQ, &irq));
	CHECK_EQ(irq.count, 1);
	CHECK_EQ(irq.flags, NICFORGE_SHIM_IRQ_MASKABLE | NICFORGE_SHIM_IRQ_AUTOMASKED);
	irq = (struct nicforge_shim_irq) { .kind = NICFORGE_SHIM_IRQ_MSI };
	CHECK_OK(ioctl(fifo.fd, NICFORGE_SHIM_GET_IRQ, &irq));
	CHECK_EQ(irq.count, 0);
	irq = (struct nicforge_shim_irq) { .kind = NICFORGE_SHIM_IRQ_MSI, .reserved = 1 };
	CHECK_ERROR(ioctl(fifo.fd, NICFORGE_SHIM_GET_IRQ, &irq), EINVAL);
	CHECK_ERROR(ioctl(fifo.fd, _IO(NICFORGE_SHIM_IOCTL_TYPE, 0x7f), 0), ENOTTY);
}

void check_open_twice(char **devices)
{
	struct function fifo = open_function(devices[0], 0);
	pid_t child;
	void *memory;

	CHECK_ERROR(open(devices[0], O_RDWR), EBUSY);

	/* A child process inherits the descriptor, but cannot use it. */
	memory = map_bar(&fifo, 1, 0, PAGE, PROT_READ);
	child = fork();
	CHECK_OK(child);
	if (!child) {
		struct nicforge_shim_info info;
		uint64_t count;

		CHECK_ERROR(open(devices[0], O_RDWR), EBUSY);
		CHECK_ERROR(ioctl(fifo.fd, NICFORGE_SHIM_GET_INFO, &info), EPERM);
		CHECK_ERROR(read(fifo.fd, &count, 8), EPERM);
		CHECK_ERROR(pread(fifo.fd, &count, 8, (off_t)fifo.bars[0].offset), EPERM);
		CHECK_ERROR(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fifo.fd,
				 (off_t)fifo.bars[1].offset), EPERM);
		/* The parent's mapping was not copied. */
		CHECK_ERROR(msync(memory, PAGE, MS_ASYNC), ENOMEM);
		_exit(0);
	}
	expect_exit(child, 0);

	/* A mapping alone keeps the function. */
	close(fifo.fd);
	CHECK_ERROR(open(devices[0], O_RDWR), EBUSY);
	CHECK_OK(munmap(memory, PAGE));
	CHECK_OK(close(open_when_free(devices[0])));
}

void check_registers(char **devices)
{
	struct function fifo = open_function(devices[0], 0);
	struct nicforge_shim_region config = { .index = NICFORGE_SHIM_REGION_CONFIG };
	uint8_t bytes[32] = {};
	uint32_t word = 1;
	uint16_t vendor;
	void *nothing;

	CHECK_OK(ioctl(fifo.fd, NICFORGE_SHIM_GET_REGION, &config));
	CHECK_EQ(pread(fifo.fd, &vendor, 2, (off_t)config.offset), 2);
	CHECK_EQ(vendor, NICFORGE_PCI_VENDOR_ID);
	/* A read of configuration space may have any length and alignment. */
	CHECK_EQ(pread(fifo.fd, bytes, 28, (off_t)config.offset + 1), 28);
	CHECK_EQ(bytes[0], NICFORGE_PCI_VENDOR_ID >> 8);
	CHECK_ERROR(pwrite(fifo.fd, &word, 4, (off_t)config.offset + 4), EPERM);
	CHECK_ERROR(pread(fifo.fd, &word, 4, (off_t)(config.offset + config.size)), EINVAL);

	CHECK_EQ(get32(&fifo, 0, REG_HOLD), 0);
	set32(&fifo, 0, REG_HOLD, 1);
	CHECK_EQ(get32(&fifo, 0, REG_HOLD), 1);
	set32(&fifo, 0, REG_HOLD, 0);
	CHECK_EQ(get32(&fifo, 0, CONTROL + NICFORGE_ATTACHMENT_CONTROL_ATTACHMENT), 0);

	/* pread() reads the mirror, which is never written. */
	CHECK_EQ(get32(&fifo, 2, NICFORGE_ATTACHMENT_MIRROR_MAGIC),
		 NICFORGE_ATTACHMENT_MIRROR_MAGIC_VALUE);
	CHECK_ERROR(pwrite(fifo.fd, &word, 4, (off_t)fifo.bars[2].offset), EPERM);
	/* Only the kernel accesses the MSI-X table. */
	CHECK_ERROR(pread(fifo.fd, &word, 4, (off_t)fifo.bars[0].offset + MSIX_TABLE), EPERM);
	CHECK_ERROR(pwrite(fifo.fd, &word, 4, (off_t)fifo.bars[0].offset + MSIX_TABLE), EPERM);
	CHECK_ERROR(pread(fifo.fd, bytes, 8, (off_t)fifo.bars[0].offset + MSIX_TABLE - 4), EPERM);
	/* Accesses outside of a region are refused. */
	CHECK_ERROR(pread(fifo.fd, &word, 4, (off_t)(fifo.bars[0].offset + fifo.bars[0].size)), EINVAL);
	CHECK_ERROR(pread(fifo.fd, &word, 4, (off_t)fifo.bars[3].offset), EINVAL);
	CHECK_ERROR(pwrite(fifo.fd, &word, 4, 0), EINVAL);
	CHECK_ERROR(lseek(fifo.fd, 1, SEEK_SET), ESPIPE);
	nothing = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(nothing != MAP_FAILED);
	CHECK_ERROR(pread(fifo.fd, nothing, 4, (off_t)fifo.bars[0].offset), EFAULT);
}

#define MAP(function, len, protection, flags, offset) \
	mmap(NULL, len, protection, flags, (function)->fd, (off_t)(offset))

void check_mappings(char **devices)
{
	struct function fifo = open_function(devices[0], 0);
	volatile uint32_t *registers, *mirror;
	uint64_t bar0 = fifo.bars[0].offset, bar2 = fifo.bars[2].offset;

	/* Registers: each access reaches the device. */
	registers = map_bar(&fifo, 0, 0, 2 * PAGE, PROT_READ | PROT_WRITE);
	registers[REG_HOLD / 4] = 1;
	CHECK_EQ(get32(&fifo, 0, REG_HOLD), 1);
	set32(&fifo, 0, REG_HOLD, 0);
	CHECK_EQ(registers[REG_HOLD / 4], 0);
	CHECK_EQ(registers[(CONTROL + NICFORGE_ATTACHMENT_CONTROL_ATTACHMENT) / 4], 0);

	/* MSI-X, other offsets, private mappings and execution are refused. */
	CHECK_ERROR(MAP(&fifo, PAGE, PROT_READ, MAP_SHARED, bar0 + MSIX_TABLE), EINVAL);
	CHECK_ERROR(MAP(&fifo, 3 * PAGE, PROT_READ, MAP_SHARED, bar0), EINVAL);
	CHECK_ERROR(MAP(&fifo, PAGE, PROT_READ, MAP_SHARED, bar0 + fifo.bars[0].size), EINVAL);
	CHECK_ERROR(MAP(&fifo, PAGE, PROT_READ, MAP_SHARED, fifo.bars[3].offset), EINVAL);
	CHECK_ERROR(MAP(&fifo, PAGE, PROT_READ, MAP_SHARED, 0), EINVAL);
	CHECK_ERROR(MAP(&fifo, PAGE, PROT_READ, MAP_SHARED, 1ULL << 50), EINVAL);
	CHECK_ERROR(MAP(&fifo, PAGE, PROT_READ, MAP_PRIVATE, bar0), EINVAL);
	CHECK_ERROR(MAP(&fifo, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, bar0), EACCES);

	/* The mirror is read only, and stays so. */
	CHECK_ERROR(MAP(&fifo, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, bar2), EACCES);
	mirror = map_bar(&fifo, 2, 0, PAGE, PROT_READ);
	CHECK_EQ(mirror[0], NICFORGE_ATTACHMENT_MIRROR_MAGIC_VALUE);
	CHECK_ERROR(mprotect((void *)mirror, PAGE, PROT_READ | PROT_WRITE), EACCES);

	/* One half of a mapping can be removed. */
	CHECK_OK(munmap((void *)registers, PAGE));
	CHECK_EQ(registers[(CONTROL + NICFORGE_ATTACHMENT_CONTROL_ATTACHMENT) / 4], 0);
}

/* Checks that the page at an offset of the file can be mapped only for reading. */
static void check_no_store(const struct function *function, uint64_t offset)
{
	volatile uint32_t *memory;

	CHECK_ERROR(MAP(function, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, offset), EACCES);
	CHECK_ERROR(MAP(function, PAGE, PROT_WRITE, MAP_SHARED, offset), EACCES);
	memory = MAP(function, PAGE, PROT_READ, MAP_SHARED, offset);
	CHECK(memory != MAP_FAILED);
	CHECK(!touch_faults(memory));
	CHECK_ERROR(mprotect((void *)memory, PAGE, PROT_READ | PROT_WRITE), EACCES);
	CHECK_ERROR(mprotect((void *)memory, PAGE, PROT_WRITE), EACCES);
	CHECK_OK(munmap((void *)memory, PAGE));
}

/* A NIC with two BARs that only the device writes. */
void check_read_only(char **devices)
{
	struct function nic = open_function(devices[0], 0);
	uint32_t word = 1;
	int i, found = 0;

	for (i = 0; i < NICFORGE_SHIM_REGION_BARS; i++) {
		const struct nicforge_shim_region *bar = &nic.bars[i];

		if (!bar->size || bar->flags & NICFORGE_SHIM_REGION_WRITE)
			continue;
		check_no_store(&nic, bar->offset);
		check_no_store(&nic, bar->wc_offset);
		CHECK_ERROR(pwrite(nic.fd, &word, 4, (off_t)bar->offset), EPERM);
		found++;
	}
	CHECK_EQ(found, 2);
}

/* A message goes through mapped slots, without a system call. */
void check_mapped_fifo(char **devices)
{
	struct function fifo = open_function(devices[0], 0);
	size_t len = fifo.bars[1].size;
	char *windows = map_bar(&fifo, 1, 0, len, PROT_READ | PROT_WRITE);
	char *mirror = map_bar(&fifo, 2, 0, fifo.bars[2].size, PROT_READ);
	volatile uint32_t *control = map_bar(&fifo, 0, CONTROL, PAGE, PROT_READ | PROT_WRITE);
	volatile uint64_t *send = (void *)(windows + NICFORGE_PROOF_SLOT_FIFO_WIN_SEND);
	volatile uint64_t *receive = (void *)(mirror + NICFORGE_PROOF_SLOT_FIFO_MIRROR_RECEIVE);
	uint64_t turns = 0;
	int i;

	for (i = 1; i < 8; i++)
		send[i] = 0x0101010101010101ULL * (unsigned int)i;
	__atomic_store_n((uint64_t *)(uintptr_t)send, 1, __ATOMIC_RELEASE);
	control[NICFORGE_ATTACHMENT_CONTROL_WAKE / 4] = 1;
	while (__atomic_load_n((uint64_t *)(uintptr_t)receive, __ATOMIC_ACQUIRE) != 1 &&
	       turns++ < 2000)
		usleep(10000);
	CHECK_EQ(receive[0], 1);
	for (i = 1; i < 8; i++)
		CHECK_EQ(receive[i], 0x0101010101010101ULL * (unsigned int)i);
}

/* Returns whether the kernel maps the memory from an address on with a type. */
static bool has_memory_type(const char *type, uint64_t start)
{
	FILE *file = fopen("/sys/kernel/debug/x86/pat_memtype_list", "r");
	char line[256];
	bool found = false;

	CHECK(file);
	while (fgets(line, sizeof(line), file))
		if (strstr(line, type)) {
			char *at = strstr(line, "0x");

			found |= at && strtoull(at, NULL, 16) == start;
		}
	fclose(file);
	return found;
}

/* Returns the physical address of a BAR. */
static uint64_t bar_address(const struct function *function, int bar)
{
	struct nicforge_shim_region config = { .index = NICFORGE_SHIM_REGION_CONFIG };
	uint32_t value = 0;

	CHECK_OK(ioctl(function->fd, NICFORGE_SHIM_GET_REGION, &config));
	CHECK_EQ(pread(function->fd, &value, 4,
		       (off_t)config.offset + 0x10 + 4 * bar), 4);
	return value & ~0xfU;
}

void check_caching(char **devices)
{
	struct function fifo = open_function(devices[0], 0);
	uint64_t uc = fifo.bars[1].offset, wc = fifo.bars[1].wc_offset;
	uint64_t address = bar_address(&fifo, 1);
	volatile uint64_t *memory, *second;

	/* Writes of registers are never combined. */
	CHECK_EQ(fifo.bars[0].wc_offset, 0);
	CHECK_ERROR(MAP(&fifo, PAGE, PROT_READ, MAP_SHARED, fifo.bars[0].offset | 1ULL << 44), EINVAL);

	/* The mapping by which the kernel serves pread() does not prevent another type. */
	get64(&fifo, 1, 0x10000);
	memory = MAP(&fifo, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, wc + 0x10000);
	CHECK(memory != MAP_FAILED);
	memory[9] = 77;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	CHECK(has_memory_type("write-combining", address));
	CHECK_EQ(get64(&fifo, 1, 0x10000 + 72), 77);

	/* A BAR has mappings of one type at a time. */
	CHECK_ERROR(MAP(&fifo, PAGE, PROT_READ, MAP_SHARED, uc), EBUSY);
	second = MAP(&fifo, PAGE, PROT_READ, MAP_SHARED, wc + 0x10000);
	CHECK(second != MAP_FAILED);
	CHECK_EQ(second[9], 77);
	CHECK_OK(munmap((void *)memory, 2 * PAGE));
	CHECK_ERROR(MAP(&fifo, PAGE, PROT_READ, MAP_SHARED, uc), EBUSY);
	CHECK_OK(munmap((void *)second, PAGE));
	CHECK(!has_memory_type("write-combining", address));

	memory = MAP(&fifo, PAGE, PROT_READ, MAP_SHARED, uc + 0x10000);
	CHECK(memory != MAP_FAILED);
	CHECK_EQ(memory[9], 77);
	CHECK_ERROR(MAP(&fifo, PAGE, PROT_READ, MAP_SHARED, wc), EBUSY);
}

/* SPDX-License-Identifier: GPL-2.0 */
/*
 * DMA buffers: declarations for buffer.c and pin.c. The functions are called
 * with dma.mutex held, except shim_check_len() and shim_buffer_new().
 */
#ifndef NICFORGE_SHIM_BUFFER_H
#define NICFORGE_SHIM_BUFFER_H

#include <linux/dma-direction.h>
#include <linux/scatterlist.h>

#include "internal.h"

/**
 * struct shim_buffer - a DMA buffer of coherent or pinned memory
 * @shim: function of the buffer
 * @node: entry in dma.buffers while @live is set
 * @handle: handle; 0 if it was freed
 * @references: number of references: one of the handle, one of each mapping
 * @len: length in bytes
 * @charged: bytes that it counts in the account, at least @len
 * @live: the memory is allocated or pinned, and the function may access it
 * @cpu: coherent memory: kernel address; NULL for pinned memory
 * @address: coherent memory: DMA address
 * @pages: pinned memory: its pages
 * @table: pinned memory: its DMA mapping
 * @direction: pinned memory: direction of the DMA mapping
 */
struct shim_buffer {
	struct shim *shim;
	struct list_head node;
	u32 handle;
	unsigned int references;
	u64 len;
	u64 charged;
	bool live;
	void *cpu;
	dma_addr_t address;
	struct page **pages;
	struct sg_table table;
	enum dma_data_direction direction;
};

/* buffer.c */
int shim_check_len(u64 len);
int shim_charge(struct shim *shim, u64 len);
void shim_uncharge(struct shim *shim, u64 len);
struct shim_buffer *shim_buffer_new(struct shim *shim, u64 len);
int shim_buffer_add(struct shim_buffer *buffer);

/* pin.c */
void shim_pin_end(struct shim_buffer *buffer);

#endif /* NICFORGE_SHIM_BUFFER_H */

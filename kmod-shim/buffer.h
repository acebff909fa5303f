/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Buffers of DMA memory: what buffer.c and pin.c share. All but
 * shim_check_len() and shim_buffer_new() are called with dma.mutex held.
 */
#ifndef NICFORGE_SHIM_BUFFER_H
#define NICFORGE_SHIM_BUFFER_H

#include <linux/dma-direction.h>
#include <linux/scatterlist.h>

#include "internal.h"

/**
 * struct shim_buffer - a buffer
 * @shim: whose
 * @node: in dma.buffers, until the memory is given back
 * @handle: its handle; 0 when it is freed
 * @references: the handle and each mapping
 * @len: bytes
 * @live: the memory was not given back yet
 * @cpu: coherent memory; NULL for pinned memory
 * @address: coherent memory, for the function
 * @pages: pinned pages
 * @table: pinned pages, as mapped
 * @direction: what the function may do with pinned pages
 */
struct shim_buffer {
	struct shim *shim;
	struct list_head node;
	u32 handle;
	unsigned int references;
	u64 len;
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

/* pin.c: takes pinned memory away from the function and unpins it. */
void shim_pin_end(struct shim_buffer *buffer);

#endif /* NICFORGE_SHIM_BUFFER_H */

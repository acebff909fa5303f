// SPDX-License-Identifier: GPL-2.0
/*
 * Interrupts: INTx, MSI or MSI-X vectors. An eventfd counts the interrupts of
 * a vector, or read() of the device file returns their number.
 *
 * INTx is masked when it fires: by the function's Interrupt Disable bit, or
 * by disable_irq_nosync() where that bit does not work.
 *
 * MSI and MSI-X are masked in software: the handler of a masked vector sets
 * its pending flag. disable_irq() would be wrong here, because it is lazy. The
 * IRQ core keeps the first interrupt pending and only then masks the vector
 * in the function, which keeps a second one pending. If enable_irq() runs on
 * another CPU than the handler, both are delivered, but UNMASK_IRQ promises
 * to count one.
 */
#include <linux/eventfd.h>
#include <linux/interrupt.h>
#include <linux/pci.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "internal.h"

void shim_irqs_init(struct shim *shim)
{
	mutex_init(&shim->irqs.mutex);
	spin_lock_init(&shim->irqs.lock);
	init_waitqueue_head(&shim->irqs.wait);
}

/* ---- Delivery ---- */

/* Counts an interrupt. Called with irqs.lock held. */
static void shim_deliver(struct shim_vector *vector)
{
	struct shim_irqs *irqs = &vector->shim->irqs;

	if (vector->eventfd) {
		shim_eventfd_signal(vector->eventfd);
		return;
	}
	irqs->count++;
	wake_up(&irqs->wait);
}

/* The handler of an MSI or MSI-X vector. */
static irqreturn_t shim_handle_msi(int irq, void *data)
{
	struct shim_vector *vector = data;
	unsigned long flags;

	spin_lock_irqsave(&vector->shim->irqs.lock, flags);
	if (vector->masked)
		vector->pending = true;
	else
		shim_deliver(vector);
	spin_unlock_irqrestore(&vector->shim->irqs.lock, flags);
	return IRQ_HANDLED;
}

/*
 * Returns true if the function's Interrupt Disable bit works. If it does not,
 * the interrupt controller masks the line, so INTx cannot be shared.
 */
static bool shim_intx_is_maskable(struct shim *shim)
{
	return pci_intx_mask_supported(shim->pdev);
}

/* The handler of INTx. It masks the interrupt before it counts it. */
static irqreturn_t shim_handle_intx(int irq, void *data)
{
	struct shim_vector *vector = data;
	struct shim *shim = vector->shim;
	irqreturn_t ret = IRQ_NONE;
	unsigned long flags;

	spin_lock_irqsave(&shim->irqs.lock, flags);
	if (vector->masked) {
		/*
		 * A line without Interrupt Disable is not shared: another
		 * processor has masked it while this one waited for the lock.
		 */
		if (!shim_intx_is_maskable(shim))
			ret = IRQ_HANDLED;
		goto unlock;
	}

	if (!shim_intx_is_maskable(shim)) {
		disable_irq_nosync(irq);
		ret = IRQ_HANDLED;
	} else if (pci_check_and_mask_intx(shim->pdev)) {
		ret = IRQ_HANDLED;
	}
	if (ret == IRQ_HANDLED) {
		vector->masked = true;
		shim_deliver(vector);
	}
unlock:
	spin_unlock_irqrestore(&shim->irqs.lock, flags);
	return ret;
}

/* ---- Number of vectors ---- */

/* Returns the number of vectors of a kind that the function has. */
static unsigned int shim_irq_count(struct shim *shim, u32 kind)
{
	int count = 0;

	switch (kind) {
	case NICFORGE_SHIM_IRQ_INTX:
		count = shim->pdev->pin ? 1 : 0;
		break;
	case NICFORGE_SHIM_IRQ_MSI:
		count = pci_msi_vec_count(shim->pdev);
		break;
	case NICFORGE_SHIM_IRQ_MSIX:
		count = pci_msix_vec_count(shim->pdev);
		break;
	}
	return max(count, 0);
}

int shim_get_irq(struct shim *shim, struct nicforge_shim_irq *irq)
{
	if (irq->reserved || irq->kind > NICFORGE_SHIM_IRQ_MSIX)
		return -EINVAL;
	irq->count = shim_irq_count(shim, irq->kind);
	irq->flags = 0;
	if (irq->count)
		irq->flags |= NICFORGE_SHIM_IRQ_MASKABLE;
	if (irq->count && irq->kind == NICFORGE_SHIM_IRQ_INTX)
		irq->flags |= NICFORGE_SHIM_IRQ_AUTOMASKED;
	return 0;
}

/* ---- Binding; all functions are called with irqs.mutex held ---- */

/* Allocates the vectors of a kind, which is then in use. */
static int shim_vectors_alloc(struct shim *shim, u32 kind)
{
	struct shim_irqs *irqs = &shim->irqs;
	unsigned int types = kind == NICFORGE_SHIM_IRQ_MSI ? PCI_IRQ_MSI :
							     PCI_IRQ_MSIX;
	int count = shim_irq_count(shim, kind);
	int i;

	if (kind != NICFORGE_SHIM_IRQ_INTX)
		count = pci_alloc_irq_vectors(shim->pdev, 1, count, types);
	if (count < 0)
		return count;

	irqs->vectors = kvcalloc(count, sizeof(*irqs->vectors), GFP_KERNEL);
	if (!irqs->vectors) {
		if (kind != NICFORGE_SHIM_IRQ_INTX)
			pci_free_irq_vectors(shim->pdev);
		return -ENOMEM;
	}

	irqs->kind = kind;
	irqs->vector_count = count;
	for (i = 0; i < count; i++) {
		irqs->vectors[i].shim = shim;
		irqs->vectors[i].irq = kind == NICFORGE_SHIM_IRQ_INTX ?
			shim->pdev->irq : pci_irq_vector(shim->pdev, i);
	}
	return 0;
}

/* Frees the vectors. None is bound, and no kind is in use afterwards. */
static void shim_vectors_free(struct shim *shim)
{
	struct shim_irqs *irqs = &shim->irqs;

	if (irqs->kind != NICFORGE_SHIM_IRQ_INTX)
		pci_free_irq_vectors(shim->pdev);
	kvfree(irqs->vectors);
	irqs->vectors = NULL;
	irqs->vector_count = 0;
}

/*
 * Replaces the eventfd of a bound vector; NULL stands for the file. Wakes
 * read(), which fails if no vector is bound to the file any more.
 */
static void shim_vector_retarget(struct shim_vector *vector,
				 struct eventfd_ctx *eventfd)
{
	struct shim_irqs *irqs = &vector->shim->irqs;
	struct eventfd_ctx *old;

	spin_lock_irq(&irqs->lock);
	old = vector->eventfd;
	/* Adds 1 for a new vector of the file, subtracts 1 for a former one. */
	irqs->file_bound += !eventfd - !old;
	vector->eventfd = eventfd;
	spin_unlock_irq(&irqs->lock);
	if (old)
		eventfd_ctx_put(old);
	wake_up_all(&irqs->wait);
}

/*
 * Binds a vector to an eventfd, or to the file if @eventfd is NULL. On
 * success the vector holds the caller's reference to the eventfd.
 */
static int shim_vector_bind(struct shim_vector *vector,
			    struct eventfd_ctx *eventfd)
{
	struct shim *shim = vector->shim;
	struct shim_irqs *irqs = &shim->irqs;
	bool intx = irqs->kind == NICFORGE_SHIM_IRQ_INTX;
	unsigned long flags = 0;
	int ret;

	if (vector->bound) {
		shim_vector_retarget(vector, eventfd);
		return 0;
	}

	if (intx && shim_intx_is_maskable(shim))
		flags = IRQF_SHARED;
	vector->eventfd = eventfd;
	vector->masked = false;
	vector->pending = false;
	ret = request_irq(vector->irq, intx ? shim_handle_intx : shim_handle_msi,
			  flags, dev_name(&shim->dev), vector);
	if (ret) {
		vector->eventfd = NULL;
		return ret;
	}

	vector->bound = true;
	irqs->bound++;
	if (!eventfd) {
		spin_lock_irq(&irqs->lock);
		irqs->file_bound++;
		spin_unlock_irq(&irqs->lock);
	}
	if (intx)
		pci_intx(shim->pdev, 1);
	return 0;
}

/*
 * Unbinds a vector, if it is bound. When the last vector of the file is
 * unbound, the interrupts that read() has not returned are forgotten.
 */
static void shim_vector_unbind(struct shim_vector *vector)
{
	struct shim *shim = vector->shim;
	struct shim_irqs *irqs = &shim->irqs;

	if (!vector->bound)
		return;

	if (irqs->kind == NICFORGE_SHIM_IRQ_INTX && !shim_is_gone(shim))
		pci_intx(shim->pdev, 0);
	free_irq(vector->irq, vector);
	vector->bound = false;
	irqs->bound--;
	if (vector->eventfd) {
		eventfd_ctx_put(vector->eventfd);
		vector->eventfd = NULL;
		return;
	}

	spin_lock_irq(&irqs->lock);
	irqs->file_bound--;
	if (!irqs->file_bound)
		irqs->count = 0;
	spin_unlock_irq(&irqs->lock);
	wake_up_all(&irqs->wait);
}

/* Unbinds a range of vectors. Frees all vectors if no bound one is left. */
static void shim_unbind_vectors(struct shim *shim, u32 start, u32 count)
{
	struct shim_irqs *irqs = &shim->irqs;
	u32 i;

	if (!irqs->vectors)
		return;
	for (i = start; i < irqs->vector_count && i - start < count; i++)
		shim_vector_unbind(&irqs->vectors[i]);
	if (!irqs->bound)
		shim_vectors_free(shim);
}

/* Binds a range of allocated vectors. On an error some may stay bound. */
static int shim_bind_vectors(struct shim *shim,
			     const struct nicforge_shim_irq_bind *bind)
{
	struct shim_irqs *irqs = &shim->irqs;
	u32 i;
	int ret;

	if (bind->start >= irqs->vector_count ||
	    bind->count > irqs->vector_count - bind->start)
		return -ENOSPC;
	for (i = bind->start; i < bind->start + bind->count; i++) {
		struct eventfd_ctx *eventfd = NULL;

		if (bind->eventfd != NICFORGE_SHIM_IRQ_FILE) {
			eventfd = eventfd_ctx_fdget(bind->eventfd);
			if (IS_ERR(eventfd))
				return PTR_ERR(eventfd);
		}
		ret = shim_vector_bind(&irqs->vectors[i], eventfd);
		if (ret) {
			if (eventfd)
				eventfd_ctx_put(eventfd);
			return ret;
		}
	}
	return 0;
}

/* ---- ioctl() requests and read() ---- */

int shim_bind_irq(struct shim *shim, const struct nicforge_shim_irq_bind *bind)
{
	struct shim_irqs *irqs = &shim->irqs;
	unsigned int available;
	int ret = 0;

	if (bind->kind > NICFORGE_SHIM_IRQ_MSIX ||
	    bind->eventfd < NICFORGE_SHIM_IRQ_FILE)
		return -EINVAL;
	available = shim_irq_count(shim, bind->kind);
	if (!bind->count || bind->start >= available ||
	    bind->count > available - bind->start)
		return -EINVAL;

	mutex_lock(&irqs->mutex);
	if (shim_is_gone(shim))
		ret = -ENODEV;
	else if (irqs->vectors && irqs->kind != bind->kind)
		ret = -EBUSY;
	else if (!irqs->vectors)
		ret = shim_vectors_alloc(shim, bind->kind);
	if (!ret) {
		ret = shim_bind_vectors(shim, bind);
		if (!irqs->bound)
			shim_vectors_free(shim);
	}
	mutex_unlock(&irqs->mutex);
	return ret;
}

int shim_unbind_irq(struct shim *shim,
		    const struct nicforge_shim_irq_range *range)
{
	struct shim_irqs *irqs = &shim->irqs;

	if (range->reserved || range->kind > NICFORGE_SHIM_IRQ_MSIX)
		return -EINVAL;
	mutex_lock(&irqs->mutex);
	if (irqs->vectors && irqs->kind == range->kind)
		shim_unbind_vectors(shim, range->start, range->count);
	mutex_unlock(&irqs->mutex);
	return 0;
}

void shim_irqs_teardown(struct shim *shim)
{
	struct shim_irqs *irqs = &shim->irqs;

	mutex_lock(&irqs->mutex);
	shim_unbind_vectors(shim, 0, U32_MAX);
	/*
	 * Interrupts of a vector that was bound to the file first and to an
	 * eventfd later are still counted.
	 */
	spin_lock_irq(&irqs->lock);
	irqs->count = 0;
	spin_unlock_irq(&irqs->lock);
	mutex_unlock(&irqs->mutex);
}

static void shim_mask_intx(struct shim_vector *vector, bool mask)
{
	struct shim *shim = vector->shim;
	/* The interrupt controller masks the line, not the function. */
	bool by_line = !shim_intx_is_maskable(shim);
	bool change;

	spin_lock_irq(&shim->irqs.lock);
	change = vector->masked != mask;
	if (!change) {
		/* Nothing to do. */
	} else if (mask) {
		vector->masked = true;
		if (by_line)
			disable_irq_nosync(vector->irq);
		else
			pci_intx(shim->pdev, 0);
	} else if (by_line) {
		vector->masked = false;
		enable_irq(vector->irq);
	} else if (pci_check_and_unmask_intx(shim->pdev)) {
		vector->masked = false;
	} else {
		/* INTx is still asserted: it fires again and stays masked. */
		shim_deliver(vector);
	}
	spin_unlock_irq(&shim->irqs.lock);
}

/* Masks or unmasks a vector; a pending interrupt is then counted. */
static void shim_mask_msi(struct shim_vector *vector, bool mask)
{
	struct shim_irqs *irqs = &vector->shim->irqs;

	spin_lock_irq(&irqs->lock);
	vector->masked = mask;
	if (!mask && vector->pending) {
		vector->pending = false;
		shim_deliver(vector);
	}
	spin_unlock_irq(&irqs->lock);
}

/*
 * Makes the function's Interrupt Disable bit agree with its INTx vector after
 * a reset. If the handler masks INTx when the PCI core has already saved the
 * configuration space, the core restores it with INTx enabled. Called with
 * irqs.mutex held.
 */
void shim_intx_restore(struct shim *shim)
{
	struct shim_irqs *irqs = &shim->irqs;
	struct shim_vector *vector = irqs->vectors;

	if (!vector || irqs->kind != NICFORGE_SHIM_IRQ_INTX ||
	    !vector->bound || !shim_intx_is_maskable(shim))
		return;
	spin_lock_irq(&irqs->lock);
	pci_intx(shim->pdev, !vector->masked);
	spin_unlock_irq(&irqs->lock);
}

static void shim_mask_vector(struct shim_vector *vector, bool mask)
{
	if (vector->shim->irqs.kind == NICFORGE_SHIM_IRQ_INTX)
		shim_mask_intx(vector, mask);
	else
		shim_mask_msi(vector, mask);
}

int shim_mask_irq(struct shim *shim,
		  const struct nicforge_shim_irq_range *range, bool mask)
{
	struct shim_irqs *irqs = &shim->irqs;
	int ret = 0;
	u32 i;

	if (range->reserved)
		return -EINVAL;
	mutex_lock(&irqs->mutex);
	if (shim_is_gone(shim))
		ret = -ENODEV;
	else if (!irqs->vectors || irqs->kind != range->kind ||
		 range->start >= irqs->vector_count ||
		 range->count > irqs->vector_count - range->start)
		ret = -EINVAL;

	for (i = 0; !ret && i < range->count; i++)
		if (!irqs->vectors[range->start + i].bound)
			ret = -EINVAL;
	for (i = 0; !ret && i < range->count; i++)
		shim_mask_vector(&irqs->vectors[range->start + i], mask);
	mutex_unlock(&irqs->mutex);
	return ret;
}

/*
 * Takes the count of interrupts and returns its size in bytes, as read() does.
 * Returns 0 if the caller must wait for an interrupt, and an error if none can
 * arrive.
 */
static s64 shim_take_count(struct shim *shim, u64 *count)
{
	struct shim_irqs *irqs = &shim->irqs;
	s64 ret = 0;

	spin_lock_irq(&irqs->lock);
	if (shim_is_gone(shim)) {
		ret = -ENODEV;
	} else if (irqs->count) {
		*count = irqs->count;
		irqs->count = 0;
		ret = sizeof(*count);
	} else if (!irqs->file_bound) {
		ret = -ENODATA;
	}
	spin_unlock_irq(&irqs->lock);
	return ret;
}

/*
 * read() at file position 0, which waits for interrupts. It wakes up every
 * SHIM_CHECK_INTERVAL, because a function that died sends no interrupt.
 */
ssize_t shim_irq_read(struct shim *shim, char __user *to, size_t len,
		      bool nonblock)
{
	u64 count = 0;
	s64 ret;

	if (len < sizeof(count))
		return -EINVAL;
	for (;;) {
		ret = shim_take_count(shim, &count);
		if (ret)
			break;
		if (nonblock) {
			shim_check_presence_rarely(shim);
			return shim_is_gone(shim) ? -ENODEV : -EAGAIN;
		}
		ret = wait_event_interruptible_timeout(shim->irqs.wait,
						       shim_is_gone(shim) ||
						       READ_ONCE(shim->irqs.count) ||
						       !READ_ONCE(shim->irqs.file_bound),
						       SHIM_CHECK_INTERVAL);
		if (ret < 0)
			return ret;
		if (!ret)
			shim_check_presence_rarely(shim);
	}
	if (ret > 0 && copy_to_user(to, &count, sizeof(count)))
		return -EFAULT;
	return ret;
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Presence checks, the transition of a function to gone, and resets.
 */
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/pci.h>
#include <linux/sched/signal.h>

#include "internal.h"

/* Attempts to take the device lock for a reset, and the time between two. */
#define SHIM_RESET_TRIES	100
#define SHIM_RESET_PAUSE_MS	20

/*
 * Shortest time, in jiffies, from a change of the heartbeat or a presence
 * check to the next presence check.
 */
#define SHIM_SILENCE		HZ

/* ---- Presence ---- */

/*
 * Marks the function as gone. All later file operations fail without an
 * access to the function, and an access to a mapped BAR raises SIGBUS.
 */
void shim_mark_gone(struct shim *shim)
{
	down_write(&shim->state);
	WRITE_ONCE(shim->gone, true);
	shim_regions_zap(shim);
	up_write(&shim->state);
	wake_up_all(&shim->irqs.wait);
}

/*
 * Returns true if the function still answers. Marks it as gone if it does not.
 * Called with no lock held but open_lock.
 */
bool shim_check_presence(struct shim *shim)
{
	bool present;

	down_read(&shim->state);
	present = !shim->gone && pci_device_is_present(shim->pdev);
	up_read(&shim->state);
	if (!present && !shim_is_gone(shim)) {
		pci_warn(shim->pdev, "does not answer any more\n");
		shim_mark_gone(shim);
	}
	return present;
}

/*
 * Checks the function as shim_check_presence() does, but at a limited rate,
 * for read() and poll(). A change of the heartbeat shows that the device is
 * alive, and reading it needs no answer from the device. The configuration
 * space is read only if the heartbeat is absent or did not change for a second,
 * and at most once a second.
 */
void shim_check_presence_rarely(struct shim *shim)
{
	unsigned long now = jiffies;
	u32 beat;

	if (time_before(now, READ_ONCE(shim->last_check) + SHIM_CHECK_INTERVAL))
		return;
	WRITE_ONCE(shim->last_check, now);

	if (shim_read_heartbeat(shim, &beat) &&
	    beat != READ_ONCE(shim->heartbeat)) {
		WRITE_ONCE(shim->heartbeat, beat);
		WRITE_ONCE(shim->last_alive, now);
		return;
	}

	if (time_before(now, READ_ONCE(shim->last_alive) + SHIM_SILENCE))
		return;
	WRITE_ONCE(shim->last_alive, now);
	shim_check_presence(shim);
}

/* ---- Reset ---- */

bool shim_can_reset(const struct shim *shim)
{
	return shim->pdev->reset_methods[0] != 0;
}

/*
 * Resets the function once. Returns -EAGAIN if another task holds the device
 * lock.
 */
static int shim_try_reset(struct shim *shim)
{
	int ret;

	mutex_lock(&shim->irqs.mutex);
	down_write(&shim->state);
	if (shim->gone) {
		ret = -ENODEV;
	} else {
		shim_regions_zap(shim);
		WRITE_ONCE(shim->resetter, current);
		/*
		 * Only a trylock of the device lock: its holder may be
		 * shim_remove(), which waits for state.
		 */
		ret = pci_try_reset_function(shim->pdev);
		WRITE_ONCE(shim->resetter, NULL);
		shim_intx_restore(shim);
		if (!ret) {
			shim->resets++;
			shim->dirty = false;
		}
	}
	up_write(&shim->state);
	mutex_unlock(&shim->irqs.mutex);
	return ret;
}

/* Resets the function. Called with no lock held but open_lock. */
int shim_reset(struct shim *shim)
{
	int ret = -EAGAIN;
	int i;

	if (!shim_can_reset(shim))
		return -EOPNOTSUPP;
	/* The PCI core waits a minute for a function that does not answer. */
	if (!shim_check_presence(shim))
		return -ENODEV;

	for (i = 0; i < SHIM_RESET_TRIES && ret == -EAGAIN; i++) {
		if (i)
			msleep(SHIM_RESET_PAUSE_MS);
		/* A killed process still resets at its last close. */
		if (fatal_signal_pending(current) &&
		    !(current->flags & PF_EXITING))
			return -EINTR;
		ret = shim_try_reset(shim);
	}
	return ret;
}

/*
 * The PCI core calls this function before each reset, and shim_reset_done()
 * after it. shim_try_reset() holds the locks already. For any other reset, as
 * through sysfs, these two take and release them.
 */
static void shim_reset_prepare(struct pci_dev *pdev)
{
	struct shim *shim = pci_get_drvdata(pdev);

	if (READ_ONCE(shim->resetter) == current)
		return;
	mutex_lock(&shim->irqs.mutex);
	down_write(&shim->state);
	shim_regions_zap(shim);
}

static void shim_reset_done(struct pci_dev *pdev)
{
	struct shim *shim = pci_get_drvdata(pdev);

	if (READ_ONCE(shim->resetter) == current)
		return;
	shim_intx_restore(shim);
	shim->resets++;
	up_write(&shim->state);
	mutex_unlock(&shim->irqs.mutex);
}

const struct pci_error_handlers shim_error_handlers = {
	.reset_prepare = shim_reset_prepare,
	.reset_done = shim_reset_done,
};

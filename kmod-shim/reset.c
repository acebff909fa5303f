// SPDX-License-Identifier: GPL-2.0
/*
 * The end of a function, looking whether it has come, and resets.
 */
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/pci.h>
#include <linux/sched/signal.h>

#include "internal.h"

/* Tries to reset a function that somebody else holds, 20 ms apart. */
#define SHIM_RESET_TRIES 100

/* After so long without a sign of life a function is asked itself. */
#define SHIM_SILENCE	HZ

/* ---- The end of a function ---- */

/*
 * From here on nobody touches the hardware, each call fails, and mapped BARs
 * are no more.
 */
void shim_end(struct shim *shim)
{
	down_write(&shim->state);
	WRITE_ONCE(shim->gone, true);
	shim_regions_zap(shim);
	up_write(&shim->state);
	wake_up_all(&shim->irqs.wait);
}

/*
 * Whether the function still answers; it ends when it does not. Called
 * without locks that come after open_lock.
 */
bool shim_look(struct shim *shim)
{
	bool present;

	down_read(&shim->state);
	present = !shim->gone && pci_device_is_present(shim->pdev);
	up_read(&shim->state);
	if (!present && !shim_is_gone(shim)) {
		pci_warn(shim->pdev, "does not answer any more\n");
		shim_end(shim);
	}
	return present;
}

/*
 * The same for those who wait, however often they ask. A heartbeat that moves
 * says it without an access that the device would have to answer; only a
 * function that has none, or whose heartbeat rests, is asked itself, once a
 * second.
 */
void shim_look_rarely(struct shim *shim)
{
	unsigned long now = jiffies;
	u32 beat;

	if (time_before(now, READ_ONCE(shim->last_look) + SHIM_LOOK))
		return;
	WRITE_ONCE(shim->last_look, now);
	if (shim_read_heartbeat(shim, &beat) &&
	    beat != READ_ONCE(shim->heartbeat)) {
		WRITE_ONCE(shim->heartbeat, beat);
		WRITE_ONCE(shim->last_sign, now);
		return;
	}
	if (time_before(now, READ_ONCE(shim->last_sign) + SHIM_SILENCE))
		return;
	WRITE_ONCE(shim->last_sign, now);
	shim_look(shim);
}

/* ---- Reset ---- */

bool shim_can_reset(const struct shim *shim)
{
	return shim->pdev->reset_methods[0] != 0;
}

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
		 * It only tries to get the device lock: who has it may be
		 * about to remove the function, and waits for state.
		 */
		ret = pci_try_reset_function(shim->pdev);
		WRITE_ONCE(shim->resetter, NULL);
		if (!ret) {
			shim->resets++;
			shim->dirty = false;
		}
	}
	up_write(&shim->state);
	mutex_unlock(&shim->irqs.mutex);
	return ret;
}

int shim_reset(struct shim *shim)
{
	int ret = -EAGAIN;
	int i;

	if (!shim_can_reset(shim))
		return -EOPNOTSUPP;
	/* The PCI core would wait a minute for one that does not answer. */
	if (!shim_look(shim))
		return -ENODEV;
	for (i = 0; i < SHIM_RESET_TRIES && ret == -EAGAIN; i++) {
		if (i)
			msleep(20);
		if (fatal_signal_pending(current) &&
		    !(current->flags & PF_EXITING))
			return -EINTR;
		ret = shim_try_reset(shim);
	}
	return ret;
}

/* A reset that somebody else asked for, through sysfs for instance. */
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
	shim->resets++;
	up_write(&shim->state);
	mutex_unlock(&shim->irqs.mutex);
}

const struct pci_error_handlers shim_error_handlers = {
	.reset_prepare = shim_reset_prepare,
	.reset_done = shim_reset_done,
};

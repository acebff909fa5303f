//! The share of the host's processors that programs other than a machine's take.

use std::{collections::BTreeSet, fs, thread, time::Duration};

/// Time over which the share is measured.
const SAMPLE: Duration = Duration::from_millis(200);

/// Processor time in ticks of the kernel.
#[derive(Clone, Copy)]
struct Times {
    /// All time that passed on all processors.
    total: u64,
    /// The part of it in which they did nothing.
    idle: u64,
    /// The part of it in which the machine's processes ran.
    ours: u64,
}

impl Times {
    /// Reads the times from `/proc`. Returns `None` where it has none.
    fn read(pids: &BTreeSet<i32>) -> Option<Self> {
        let all = fs::read_to_string("/proc/stat").ok()?;
        let fields: Vec<u64> =
            all.lines().next()?.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
        // proc(5): user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user's.
        let total = fields.iter().take(8).sum();
        let idle = fields.get(3)? + fields.get(4)?;
        let ours = pids.iter().filter_map(|pid| process_ticks(*pid)).sum();
        Some(Self { total, idle, ours })
    }
}

/// Returns the processor time of a process, or `None` if it has ended.
fn process_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may contain anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

/// Measures for [`SAMPLE`] which share of the processors others than these processes take, in per
/// cent. Returns `None` where `/proc` does not say.
pub(crate) fn measure_others(pids: &BTreeSet<i32>) -> Option<u64> {
    let before = Times::read(pids)?;
    thread::sleep(SAMPLE);
    let after = Times::read(pids)?;

    let total = after.total.checked_sub(before.total).filter(|total| *total > 0)?;
    let idle = after.idle.saturating_sub(before.idle);
    let ours = after.ours.saturating_sub(before.ours);
    Some(total.saturating_sub(idle + ours) * 100 / total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_has_processor_time_and_a_share_is_at_most_all() {
        let own = std::process::id() as i32;
        assert!(process_ticks(own).is_some() && process_ticks(-1).is_none());
        let share = measure_others(&BTreeSet::from([own]));
        assert!(share.is_some_and(|share| share <= 100), "{share:?}");
    }
}

//! Counts of context switches.

use std::{
    fs,
    ops::{Add, Sub},
};

/// Context switches of a process, of the threads that exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Switches {
    /// The process waited.
    pub(super) voluntary: u64,
    /// The process was to run on, and another one got its processor.
    pub(super) involuntary: u64,
}

impl Switches {
    /// Returns the switches of a process so far, or zeros if it has ended.
    pub(super) fn of(process: u32) -> Self {
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let of_thread = |thread: fs::DirEntry| {
            // A thread may have ended in this moment.
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            Self::parse(&status)
        };
        threads.map(of_thread).fold(Self::default(), Self::add)
    }

    /// Returns the switches that a thread's status contains.
    fn parse(status: &str) -> Self {
        let count = |name| {
            let value = status.lines().find_map(|line: &str| line.strip_prefix(name));
            value.and_then(|value: &str| value.trim().parse().ok()).unwrap_or(0)
        };
        Self {
            voluntary: count("voluntary_ctxt_switches:"),
            involuntary: count("nonvoluntary_ctxt_switches:"),
        }
    }
}

impl Add for Switches {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            voluntary: self.voluntary + other.voluntary,
            involuntary: self.involuntary + other.involuntary,
        }
    }
}

impl Sub for Switches {
    type Output = Self;

    /// Returns the switches since `earlier`. They may be too few if threads have ended meanwhile.
    fn sub(self, earlier: Self) -> Self {
        Self {
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_counts_of_a_status_are_read() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(Switches::parse(status), Switches { voluntary: 7, involuntary: 3 });
        assert_eq!(Switches::parse(""), Switches::default());
    }

    #[test]
    fn sleeps_of_this_process_are_counted() {
        let before = Switches::of(std::process::id());
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!((Switches::of(std::process::id()) - before).voluntary >= 1);
    }
}

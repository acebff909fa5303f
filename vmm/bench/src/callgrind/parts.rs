//! Counts by parts of the code.
//!
//! callgrind reports the number of executed instructions for each source line, and inlined code
//! counts for the file that it was written in. A part is a set of source files. Code of the
//! standard library and of libc counts for the function that it is inlined in.

use std::collections::HashMap;

/// The parts of a count.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// The parts, each with the beginnings of its sources' paths in the repository. The longest
    /// matching path applies.
    pub paths: &'static [(&'static str, &'static [&'static str])],
    /// Sources that several parts use. Inlined code from them counts for the function that it is
    /// inlined in.
    pub shared: &'static [&'static str],
    /// The part of all other code.
    pub other: &'static str,
}

impl Parts {
    /// Returns the part that a source file belongs to: the one with the longest matching path.
    fn of_file(&self, file: &str) -> Option<&'static str> {
        let longest_match = |(part, paths): &(&'static str, &[&str])| {
            let longest = paths.iter().filter(|path| is_below(file, path)).map(|path| path.len()).max()?;
            Some((longest, *part))
        };
        self.paths.iter().filter_map(longest_match).max().map(|(_, part)| part)
    }

    /// Reads callgrind's output, and returns the number of instructions of each part.
    ///
    /// - `fn=(number) name` begins a function. A name occurs only once, and its number stands for
    ///   it later.
    /// - `fl=`, `fi=` and `fe=` change the source file.
    /// - `calls=` is followed by a line with the cost of the called function, which is counted
    ///   there.
    /// - Other lines that begin with a position have a count after it.
    pub(super) fn count(&self, text: &str) -> HashMap<&'static str, u64> {
        // The parts of each file, by its number: for code of a function's own source, and for code
        // that is inlined from it.
        let mut parts_of_files: HashMap<&str, [Option<&'static str>; 2]> = HashMap::new();
        let mut counts = HashMap::new();
        // The part of the function, and the part of the code inlined in it.
        let (mut outer, mut inner) = (None, None);
        let mut is_call_cost = false;

        for line in text.lines() {
            if let Some((key, value)) = line.split_once('=') {
                if matches!(key, "fl" | "fi" | "fe" | "cfi" | "cfl") {
                    let (number, name) = value.split_once(' ').unwrap_or((value, ""));
                    let [own, inlined] = *parts_of_files.entry(number).or_insert_with(|| {
                        let part = self.of_file(name);
                        [part, part.filter(|_| !self.shared.iter().any(|path| is_below(name, path)))]
                    });
                    match key {
                        "fl" => (outer, inner) = (own, own),
                        "fi" | "fe" => inner = inlined,
                        // These name the called function's file.
                        _ => {}
                    }
                }

                is_call_cost |= key == "calls";
                continue;
            }

            let is_cost = line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first));
            if is_cost
                && !std::mem::take(&mut is_call_cost)
                && let Some(cost) = line.split_whitespace().nth(1).and_then(|cost| cost.parse::<u64>().ok())
            {
                *counts.entry(inner.or(outer).unwrap_or(self.other)).or_default() += cost;
            }
        }

        counts
    }
}

/// Returns whether `path` occurs in the path of `file` at the beginning of a name.
fn is_below(file: &str, path: &str) -> bool {
    file.match_indices(path).any(|(at, _)| at == 0 || file.as_bytes()[at - 1] == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: Parts = Parts {
        paths: &[
            ("program", &["vmm/"]),
            ("queues", &["lib/matching/src/queues/"]),
            ("protocol", &["lib/matching/"]),
            ("messages", &["lib/messages/"]),
            ("posting", &["lib/driver/", "device-model/shm/src/posted/producer.rs"]),
            ("machine", &["device-model/", "vmm/machine/"]),
        ],
        shared: &["device-model/shm/"],
        other: "program",
    };

    #[test]
    fn a_file_belongs_to_the_part_with_the_longest_matching_path() {
        assert_eq!(PARTS.of_file("lib/matching/src/queues/bins.rs"), Some("queues"));
        assert_eq!(PARTS.of_file("/build/lib/matching/src/wire.rs"), Some("protocol"));
        assert_eq!(PARTS.of_file("lib/messages/src/send.rs"), Some("messages"));
        assert_eq!(PARTS.of_file("device-model/shm/src/posted/producer.rs"), Some("posting"));
        assert_eq!(PARTS.of_file("device-model/shm/src/window.rs"), Some("machine"));
        assert_eq!(PARTS.of_file("vmm/machine/src/build.rs"), Some("machine"));
        assert_eq!(PARTS.of_file("vmm/bench/src/bench.rs"), Some("program"));
        assert_eq!(PARTS.of_file("/rustc/library/core/src/option.rs"), None);
    }

    #[test]
    fn instructions_count_where_they_were_written_and_calls_do_not() {
        let text = "events: Ir\nfl=(1) lib/messages/src/send.rs\nfn=(1) send\n10 4\nfi=(2) /rustc/library/core/src/option.rs\n7 3\n\
                    fi=(4) device-model/shm/src/window.rs\n7 1\nfe=(1)\n+2 1\ncfi=(3) lib/driver/src/ring.rs\ncfn=(2) post\ncalls=1 40\n12 100\n13 2\n\n\
                    fl=(3)\nfn=(2)\n40 100\n\ntotals: 111\n";
        assert_eq!(PARTS.count(text), HashMap::from([("messages", 11), ("posting", 100)]));
    }
}

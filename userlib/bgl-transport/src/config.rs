//! Configuration of a transport.

use std::time::Duration;

use nicforge_bgl::message;

use crate::Error;

/// Run-time parameters. They concern only their own rank, but each rank's `get_bytes` must not
/// exceed the other ranks' `answer_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Messages of each other rank that are kept until the endpoint takes them, 1 to 4,096; 64 by
    /// default.
    pub window: usize,
    /// Bytes of a get, 256 to 8 MiB; 65,536 by default.
    pub get_bytes: usize,
    /// Gets in flight at a time, 1 to 32; 8 by default. They take this number times
    /// [`Config::get_bytes`] of memory. Gets from one rank have half of the places at most.
    pub gets: usize,
    /// Time after which gets that wait for their answers no longer count as in flight, so that
    /// others can start; 100 ms by default. A rank answers when its program calls the endpoint
    /// next. Gets from one rank still have no more than half of [`Config::gets`].
    pub get_delay: Duration,
    /// Bytes of answers to each other rank's gets that are on their way at a time, up to 64 MiB; 1
    /// MiB by default, and [`Config::get_bytes`] at least. A longer get of another rank is refused.
    pub answer_bytes: usize,
    /// Messages to each other rank that the message layer has not sent yet, 1 to 4,096; 32 by
    /// default.
    pub sends: usize,
    /// The message layer's options. Its limit for messages of one packet must be the default, which
    /// keeps this transport's messages in order.
    pub layer: message::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 64,
            get_bytes: 65_536,
            gets: 8,
            get_delay: Duration::from_millis(100),
            answer_bytes: 1 << 20,
            sends: 32,
            layer: message::Config::default(),
        }
    }
}

impl Config {
    /// Checks the ranges of the parameters.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let single = self.layer.single;
        let ranges = [
            ("window", self.window, 1..=4096, "1 to 4096"),
            ("get_bytes", self.get_bytes, 256..=8 << 20, "256 to 8 MiB"),
            ("gets", self.gets, 1..=32, "1 to 32"),
            ("answer_bytes", self.answer_bytes, 0..=64 << 20, "up to 64 MiB"),
            ("sends", self.sends, 1..=4096, "1 to 4096"),
            ("layer.single", single, message::MAX_SINGLE..=message::MAX_SINGLE, "the default"),
        ];
        for (what, value, range, rule) in ranges {
            if !range.contains(&value) {
                return Err(Error::BadConfig { what, value, rule });
            }
        }
        Ok(())
    }

    /// Returns the bytes of answers to one rank that are on their way at a time, which are also
    /// those of the longest get that is answered.
    pub(crate) fn longest_answer(&self) -> usize {
        self.answer_bytes.max(self.get_bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "tests")]

    use super::*;

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let good = Config::default();
        assert_eq!(good.check(), Ok(()));

        let refused = |config: Config| match config.check() {
            Err(Error::BadConfig { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(Config { window: 0, ..good }), "window");
        assert_eq!(refused(Config { get_bytes: 255, ..good }), "get_bytes");
        assert_eq!(refused(Config { gets: 33, ..good }), "gets");
        assert_eq!(refused(Config { answer_bytes: 65 << 20, ..good }), "answer_bytes");
        assert_eq!(refused(Config { sends: 0, ..good }), "sends");
        let layer = message::Config { single: 100, ..good.layer };
        assert_eq!(refused(Config { layer, ..good }), "layer.single");
    }
}

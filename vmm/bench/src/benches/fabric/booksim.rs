//! BookSim on the same network, for comparison: a torus of 8 x 8 x 8, uniform traffic beyond
//! saturation, the same bytes of a packet. The environment variable [`PROGRAM`] names its binary.
//!
//! BookSim moves flits, so the compared rate is that of packets over links. Its routers have as
//! many virtual channels as ours, with buffers for as many packets, and the same routes: dimension
//! order, with a second virtual channel where a ring closes.

use std::{env, ffi::OsString, fs, process::Command};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_core::fabric::MAX_PACKET;

use super::traffic::{CHANNELS, CREDITS, PACKET_BYTES};

/// The environment variable that names BookSim's binary.
pub(super) const PROGRAM: &str = "NICFORGE_BOOKSIM";
/// Bytes of a flit. BookSim's links carry one in a cycle.
const FLIT_BYTES: usize = 32;
/// Nodes of the torus.
const NODES: f64 = 512.0;
const _: () = assert!(PACKET_BYTES.is_multiple_of(FLIT_BYTES) && PACKET_BYTES <= MAX_PACKET);

/// Returns BookSim's binary, if the user has named it.
pub(super) fn find() -> Option<OsString> {
    env::var_os(PROGRAM)
}

/// Runs BookSim, and returns its packets over links and second.
///
/// # Errors
/// Returns an error when the program cannot be run or prints something else than expected.
pub(super) fn rate(program: &OsString) -> Result<f64, Failure> {
    let folder = tempfile::tempdir().context(|| "a temporary folder".into())?;
    let file = folder.path().join("torus");
    fs::write(&file, configuration()).context(|| file.display().to_string())?;

    let output = Command::new(program).arg(&file).output().context(|| program.display().to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    hops_per_second(&text).ok_or_else(|| {
        Failure::environment(format!("{} printed no results ({})", program.display(), output.status))
    })
}

/// Returns the text of BookSim's configuration file: the torus, its routers, and the traffic.
fn configuration() -> String {
    let flits = PACKET_BYTES / FLIT_BYTES;
    format!(
        "topology = torus;\nk = 8;\nn = 3;\nrouting_function = dim_order;\nnum_vcs = {CHANNELS};\nvc_buf_size = {};\n\
         packet_size = {flits};\ninjection_rate_uses_flits = 1;\ninjection_rate = 0.9;\ntraffic = uniform;\n\
         sim_type = throughput;\nsample_period = 200;\nwarmup_periods = 1;\nmax_samples = 2;\n\
         latency_thres = 1000000.0;\nseed = 1;\n",
        CREDITS as usize * flits
    )
}

/// Returns the packets over links and second of a run that has printed `text`.
fn hops_per_second(text: &str) -> Option<f64> {
    // The first number behind a label, in the last line that begins with it.
    let last = |label: &str| {
        let line = text.lines().rev().find(|line| line.trim_start().starts_with(label))?;
        let words = line.trim_start().strip_prefix(label)?.split_whitespace();
        words.filter_map(|word| word.parse::<f64>().ok()).next()
    };

    // BookSim counts the routers of a way, which is one more than its links.
    let links = last("Hops average")? - 1.0;
    let packets = last("Accepted packet rate average")? * NODES * last("Time taken is")?;
    let seconds = last("Total run time")?;
    (seconds > 0.0).then(|| packets * links / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_values_of_the_output_are_used() {
        let text = "Accepted packet rate average = 0.5\nTime taken is 100 cycles\n\
                    Accepted packet rate average = 0.1 (1 samples)\nHops average = 7 (1 samples)\nTotal run time 4\n";
        assert_eq!(hops_per_second(text), Some(0.1 * 512.0 * 100.0 * 6.0 / 4.0));
        assert_eq!(hops_per_second("nothing"), None);
    }
}

//! The same messages over sockets of the kernel: half a round trip, and the one-way rate with one
//! system call for each message.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use nicforge::failure::{ErrorContext, Failure};

use super::{BYTES, Effort, Measurement};
use crate::{placement::pin, samples::Samples};

/// The longest wait for a message.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// The content of a message that the far end returns.
const ECHO: u64 = 0;
/// The content of a message that the far end only receives.
const ONE_WAY: u64 = 1;
/// The content of the last message, after whose return the far end ends.
const END: u64 = 2;
/// Number of messages between two readings of the clock.
const MESSAGES_PER_CHECK: u32 = 64;

/// Measures a pair of Unix sockets.
pub(super) fn measure_unix(processor: Option<usize>, effort: &Effort) -> Result<Measurement, Failure> {
    let (local_end, remote_end) = UnixStream::pair().context(|| "a pair of sockets".into())?;
    for end in [&local_end, &remote_end] {
        end.set_read_timeout(Some(STEP_TIMEOUT)).context(|| "a socket's limit".into())?;
    }
    exchange(local_end, remote_end, processor, effort)
}

/// Measures a TCP connection over loopback.
pub(super) fn measure_tcp(processor: Option<usize>, effort: &Effort) -> Result<Measurement, Failure> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context(|| "listening on the loopback".into())?;
    let address = listener.local_addr().context(|| "the listener's address".into())?;
    let local_end = TcpStream::connect(address).context(|| "connecting over the loopback".into())?;
    let (remote_end, _) = listener.accept().context(|| "accepting over the loopback".into())?;

    for end in [&local_end, &remote_end] {
        end.set_nodelay(true).context(|| "TCP_NODELAY".into())?;
        end.set_read_timeout(Some(STEP_TIMEOUT)).context(|| "a socket's limit".into())?;
    }

    exchange(local_end, remote_end, processor, effort)
}

/// Runs the far end of a socket. It returns all messages but those with the content [`ONE_WAY`],
/// and ends after the return of [`END`].
fn serve(mut socket: impl Read + Write, processor: Option<usize>) -> Result<(), Failure> {
    processor.map_or(Ok(()), pin)?;
    let mut message = [0; BYTES];

    loop {
        socket.read_exact(&mut message).context(|| "the far end".into())?;
        let content = u64::from_le_bytes(message);
        if content != ONE_WAY {
            socket.write_all(&message).context(|| "the far end".into())?;
        }
        if content == END {
            return Ok(());
        }
    }
}

/// Measures a pair of sockets, with a thread at the far end.
fn exchange(
    mut local_end: impl Read + Write,
    remote_end: impl Read + Write + Send,
    processor: Option<usize>,
    effort: &Effort,
) -> Result<Measurement, Failure> {
    thread::scope(|scope| {
        let server = scope.spawn(move || serve(remote_end, processor));
        let measurement = measure(&mut local_end, effort);
        drop(local_end);
        let served = server.join().unwrap_or_else(|_| Err(Failure::result("the far end panicked")));
        // A failure of the near end causes one of the far end, so the near end's is returned.
        measurement.and_then(|measurement| served.map(|()| measurement))
    })
}

/// Measures round trips, and then the rate of messages in one direction.
fn measure(local_end: &mut (impl Read + Write), effort: &Effort) -> Result<Measurement, Failure> {
    let mut samples = Samples::with_capacity(effort.latency_messages as usize);
    let mut answer = [0; BYTES];
    for _ in 0..effort.latency_messages {
        let start = Instant::now();
        local_end.write_all(&ECHO.to_le_bytes()).context(|| "the near end".into())?;
        local_end.read_exact(&mut answer).context(|| "the near end".into())?;
        samples.add_mean(start.elapsed(), 2);
    }

    let (start, mut sent) = (Instant::now(), 0_u64);
    while start.elapsed() < effort.sustained {
        for _ in 0..MESSAGES_PER_CHECK {
            local_end.write_all(&ONE_WAY.to_le_bytes()).context(|| "the near end".into())?;
        }
        sent += u64::from(MESSAGES_PER_CHECK);
    }

    // The return of the last message shows that all have arrived.
    local_end.write_all(&END.to_le_bytes()).context(|| "the near end".into())?;
    local_end.read_exact(&mut answer).context(|| "the near end".into())?;

    Ok(Measurement { rate: Some(sent as f64 / start.elapsed().as_secs_f64()), samples })
}

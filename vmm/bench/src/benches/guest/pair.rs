//! The measurements with one pair of guests.

use std::{net::SocketAddr, time::Duration};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_guest::{Accelerator, Driver, Progress, Toolkit};
use nicforge_hwi::{extoll_velo::MAX_MESSAGE, tree::PAYLOAD};

use super::{
    super::{
        fcnp::task::{Direction, FlowTimes, Kind, Path, Side, Task},
        mmio::REGISTER_PATHS,
    },
    Sweep,
    counts::{self, count},
    effort,
    guests::{BenchGuest, Network, Role},
    machine::{FIFO_DEPTH, Machine},
    order::{Access, Answer, Order},
    worker::{self, Worker},
};
use crate::{
    bench::Run,
    contest::{self, Measurement},
    row::{Backing, Row},
    samples::Samples,
};

/// How long the engine of the counted machine polls. It is longer than the host ever delays a
/// guest's processor.
const POLLING_TIME: Duration = Duration::from_secs(5);
/// The port of the guests' TCP connection.
const PORT: u16 = 7000;
/// Bytes of all messages of a probe, which determines how many messages are measured.
const PROBE_BYTES: usize = 256 << 10;
/// The least number of messages in a probe, and in a measurement.
const MIN_MESSAGES: u32 = 2;
/// The greatest number of messages in a probe.
const MAX_PROBE_MESSAGES: u32 = 64;
/// The greatest number of messages in a measurement. A few messages may pass faster than many do.
const MAX_MESSAGES: u32 = 20_000;
/// The message size for measurements of latency.
const LATENCY_BYTES: usize = 16;
/// Number of trapped accesses that are counted, to check that counting works.
const TRAPPED_ACCESSES: u32 = 100;
/// Bytes of the messages whose packets are counted.
const COUNTED_BYTES: usize = 64 << 10;

/// Indexes of the first guest's devices. Those of `COUNTED_` belong to the machine whose engine
/// stays awake.
const REGISTERS: usize = 0;
const IO: usize = 3;
const COUNTED_REGISTERS: usize = 4;
const COUNTED_IO: usize = 5;
const FIRST_VPID: usize = 6;
/// Indexes of the second guest's devices.
const COMPUTE: usize = 0;
const COMPUTE_OF_HOST: usize = 1;
const COUNTED_COMPUTE: usize = 2;
const SECOND_VPID: usize = 3;
/// Index of the host's device.
const HOST_IO: usize = 0;

/// The devices of both ends of a path, as indexes into the lists of their workers.
#[derive(Clone, Copy, Debug)]
struct EndDevices {
    io: usize,
    compute: usize,
}

/// A path of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessagePath {
    /// Raw packets between the guests.
    Raw,
    /// FCNP between the guests.
    Guests,
    /// FCNP between the host and the second guest.
    Host,
    /// VELO between the guests.
    Velo,
    /// TCP between the guests, over a network of QEMU's or of the served machine.
    Tcp(Network),
}

impl MessagePath {
    /// All paths.
    const ALL: [Self; 6] = [
        Self::Raw,
        Self::Guests,
        Self::Host,
        Self::Velo,
        Self::Tcp(Network::Qemu),
        Self::Tcp(Network::Served),
    ];

    /// Returns the paths that messages of a size can take.
    fn of_messages(bytes: usize) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |path| *path != Self::Velo || bytes <= MAX_MESSAGE)
    }

    /// Returns the path of a task.
    const fn path(self) -> Path {
        match self {
            Self::Raw => Path::Raw,
            Self::Guests | Self::Host => Path::FcnpPoll,
            Self::Velo => Path::Velo,
            Self::Tcp(_) => Path::Tcp,
        }
    }

    /// Returns the name of the rows.
    const fn row(self) -> &'static str {
        match self {
            Self::Tcp(Network::Qemu) => "virtio-net-tcp",
            Self::Tcp(Network::Served) => "nicforge-virtio-net-tcp",
            path => path.path().name(),
        }
    }

    /// Returns where both ends run, as a row shows it.
    const fn placement(self) -> &'static str {
        match self {
            Self::Host => "io@host compute@guest",
            _ => "io@guest compute@guest",
        }
    }
}

/// A pair of guests, and the programs in them and on the host.
pub(super) struct GuestPair<'a> {
    run: &'a Run<'a>,
    sweep: &'a Sweep,
    accelerator: Accelerator,
    backing: Backing,
    guests: [&'a BenchGuest; 2],
    /// The machine that counts are taken from.
    polling: &'a Machine,
    io: Worker<'a>,
    compute: Worker<'a>,
    host: Worker<'a>,
}

/// Boots a pair of guests, measures, and returns the rows.
pub(super) fn measure(
    run: &Run<'_>,
    toolkit: &Toolkit,
    progress: &Progress,
    sweep: &Sweep,
    accelerator: Accelerator,
    driver: Driver,
    backing: Backing,
) -> Result<Vec<Row>, Failure> {
    let names = format!("{}, {}", accelerator.name(), backing.name());
    run.step(format!("booting two guests, {names}"))?;
    let folder = tempfile::Builder::new().prefix("nicforge-bench-").tempdir();
    let folder = folder.context(|| "a directory for guests".into())?;
    let sleeping = Machine::serve("sleeping", run.event_loop, None)?;
    let polling = Machine::serve("polling", run.event_loop, Some(POLLING_TIME))?;

    let boot =
        |role: &Role<'_>| BenchGuest::boot(toolkit, progress, role, accelerator, driver, folder.path());
    let [first, second] = boot_both(&sleeping, &polling, boot);
    // When Ctrl-C prevented a boot, the run ends here and reports no failure.
    run.check()?;
    let (first, second) = (first?, second?);

    let mut pair = GuestPair {
        run,
        sweep,
        accelerator,
        backing,
        guests: [&first, &second],
        polling: &polling,
        io: Worker::in_guest(run, "the first guest", &first.guest)?,
        compute: Worker::in_guest(run, "the second guest", &second.guest)?,
        host: Worker::on_host(run, "the host", &[sleeping.socket("io1.core0")])?,
    };
    let rows = pair.measure_all()?;

    drop(pair);
    drop((first, second));
    sleeping.stop()?;
    polling.stop()?;

    Ok(rows)
}

/// Boots both guests at the same time. Each has functions of both machines.
fn boot_both(
    sleeping: &Machine,
    polling: &Machine,
    boot: impl Fn(&Role<'_>) -> Result<BenchGuest, Failure> + Sync,
) -> [Result<BenchGuest, Failure>; 2] {
    let first = Role {
        name: "first",
        number: 1,
        functions: &[
            (sleeping, "dma0.0"),
            (sleeping, "dma0.1"),
            (sleeping, "dma0.2"),
            (sleeping, "io0.core0"),
            (polling, "dma0.0"),
            (polling, "io0.core0"),
            (sleeping, "ex0.vpid0"),
        ],
        network: (sleeping, "en0.user0"),
    };
    let second = Role {
        name: "second",
        number: 2,
        functions: &[
            (sleeping, "cn0.core0"),
            (sleeping, "cn1.core0"),
            (polling, "cn0.core0"),
            (sleeping, "ex1.vpid0"),
        ],
        network: (sleeping, "en1.user0"),
    };

    std::thread::scope(|scope| {
        let second = scope.spawn(|| boot(&second));
        let first = boot(&first);
        let second = second.join();
        [first, second.unwrap_or_else(|_| Err(Failure::environment("a thread of the bench failed")))]
    })
}

impl<'a> GuestPair<'a> {
    /// Returns the number of calls to [`Run::step`] for a pair of guests.
    pub(super) fn steps(sweep: &Sweep) -> u64 {
        let paths: usize = sweep.sizes.iter().map(|&bytes| MessagePath::of_messages(bytes).count()).sum();
        // The boot and the registers are a step each, and so is each of the four kinds of counted
        // work. A path has a step for its probe and one for each round.
        (2 + 4 + paths * sweep.directions.len() * (sweep.rounds + 1)) as u64
    }

    /// Makes all measurements, and returns their rows.
    fn measure_all(&mut self) -> Result<Vec<Row>, Failure> {
        let mut rows = self.measure_registers()?;
        rows.extend(self.measure_messages()?);
        rows.extend(self.count_work()?);
        Ok(rows)
    }

    /// Returns a row for a path, without figures.
    fn row(&self, path: &str) -> Row {
        Row { accelerator: Some(self.accelerator.name()), backing: Some(self.backing), ..Row::new(path) }
    }

    /// Measures the device of registers.
    fn measure_registers(&mut self) -> Result<Vec<Row>, Failure> {
        self.run.step("registers and interrupts")?;
        self.io.execute(self.run, &Order::OpenRegisters { first: REGISTERS })?;
        let rounds = effort(self.run.quick).rounds;
        let results = contest::run(self.run, rounds, REGISTER_PATHS.to_vec(), |&mut path, _| {
            let order = Order::MeasureRegisters { path: path.into(), quick: self.run.quick };
            match self.io.execute(self.run, &order)? {
                Answer::Measurement(measurement) => Ok(measurement),
                answer => Err(unexpected_answer(&answer)),
            }
        })?;

        self.io.execute(self.run, &Order::Close)?;
        let row = |(path, measurements): (&&str, &[Measurement])| Row {
            placement: Some("client@guest".into()),
            ..self.row(path).with_measurements(measurements)
        };

        Ok(results.iter().map(row).collect())
    }

    /// Measures the bandwidths and latencies of all paths, for each direction and message size.
    fn measure_messages(&mut self) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        for &direction in self.sweep.directions {
            for &bytes in self.sweep.sizes {
                rows.extend(self.measure_paths_interleaved(direction, bytes)?);
            }
        }
        Ok(rows)
    }

    /// Measures all paths in turns, with messages of one size in one direction. The first pass of
    /// each path determines how many messages are measured.
    fn measure_paths_interleaved(&mut self, direction: Direction, bytes: usize) -> Result<Vec<Row>, Failure> {
        let &Sweep { rounds, seconds, round_trips, .. } = self.sweep;
        let task = |path: MessagePath, kind, count| Task {
            path: path.path(),
            direction,
            kind,
            bytes,
            count,
            compute_cores: 1,
        };
        let probe = ((PROBE_BYTES / bytes) as u32).clamp(MIN_MESSAGES, MAX_PROBE_MESSAGES);
        let mut counted = Vec::new();

        for path in MessagePath::of_messages(bytes) {
            self.run.step(format!("{}, {bytes} bytes, {}", path.row(), direction.name()))?;
            let probe_seconds = self.measure_once(path, &task(path, Kind::Stream, probe))?.seconds();
            let count = (f64::from(probe) * seconds / probe_seconds) as u32;
            counted.push((path, count.clamp(MIN_MESSAGES, MAX_MESSAGES)));
        }

        let results = contest::run(self.run, rounds, counted, |&mut (path, count), _| {
            self.run.step(format!("{}, {bytes} bytes, {}", path.row(), direction.name()))?;
            let stream = task(path, Kind::Stream, count);
            let rate = stream.rate(&self.measure_once(path, &stream)?);
            let mut samples = Samples::default();
            if bytes == LATENCY_BYTES {
                samples = self.measure_once(path, &task(path, Kind::PingPong, round_trips))?.latencies();
            }
            Ok(Measurement { rate: Some(rate), samples })
        })?;

        let row = |(&(path, _), measurements): (&(MessagePath, u32), &[Measurement])| {
            let has_device = !matches!(path, MessagePath::Tcp(_));
            let row = self.row(path.row()).with_measurements(measurements).with_bandwidth(bytes);
            Row {
                backing: row.backing.filter(|_| has_device),
                placement: Some(path.placement().into()),
                fifo_depth: (has_device && path != MessagePath::Velo).then_some(FIFO_DEPTH),
                direction: Some(direction.name()),
                ..row
            }
        };

        Ok(results.iter().map(row).collect())
    }

    /// Opens both endpoints of a path, passes a task's messages once, and closes the endpoints.
    fn measure_once(&mut self, path: MessagePath, task: &Task) -> Result<FlowTimes, Failure> {
        let devices = match path {
            MessagePath::Host => EndDevices { io: HOST_IO, compute: COMPUTE_OF_HOST },
            MessagePath::Velo => EndDevices { io: FIRST_VPID, compute: SECOND_VPID },
            _ => EndDevices { io: IO, compute: COMPUTE },
        };

        self.open_endpoints(path, task, devices)?;
        let measured = self.measure_open_endpoints(path)?;
        self.close_endpoints(path)?;

        Ok(measured)
    }

    /// Returns the I/O worker and the compute worker of a path.
    fn workers(&mut self, path: MessagePath) -> (&mut Worker<'a>, &mut Worker<'a>) {
        let io = if path == MessagePath::Host { &mut self.host } else { &mut self.io };
        (io, &mut self.compute)
    }

    /// Sends the I/O worker and the compute worker of a path an order each, and waits for both
    /// answers.
    fn order_both(&mut self, path: MessagePath, orders: [Order; 2]) -> Result<Vec<Answer>, Failure> {
        let run = self.run;
        let description = format!("{path:?}, {:?}", orders[1]);
        let (io, compute) = self.workers(path);
        io.send(&orders[0])?;
        compute.send(&orders[1])?;
        worker::collect(run, &[io, compute], &description)
    }

    /// Makes both workers open their endpoints on these devices.
    fn open_endpoints(&mut self, path: MessagePath, task: &Task, devices: EndDevices) -> Result<(), Failure> {
        let task = *task;
        let order = |side, device| -> Result<Order, Failure> {
            Ok(match path {
                MessagePath::Tcp(network) => {
                    let address = format!("{}:{PORT}", network.address(1));
                    let address: SocketAddr = address.parse().context(|| "an address".into())?;
                    Order::OpenTcp { side, task, address }
                }
                MessagePath::Velo => Order::OpenVelo { side, task, device },
                _ => Order::OpenTree { side, task, device },
            })
        };

        let orders = [order(Side::Io, devices.io)?, order(Side::Compute, devices.compute)?];
        self.order_both(path, orders).map(drop)
    }

    /// Makes both workers measure with their open endpoints, and returns what both measured.
    fn measure_open_endpoints(&mut self, path: MessagePath) -> Result<FlowTimes, Failure> {
        let mut measured = FlowTimes::default();
        for answer in self.order_both(path, [Order::Measure, Order::Measure])? {
            match answer {
                Answer::FlowTimes(one) => measured = measured.and(one),
                answer => return Err(unexpected_answer(&answer)),
            }
        }

        Ok(measured)
    }

    /// Makes both workers close their endpoints.
    fn close_endpoints(&mut self, path: MessagePath) -> Result<(), Failure> {
        self.order_both(path, [Order::Close, Order::Close]).map(drop)
    }

    /// Counts the work of the server and of QEMU during posted writes, trapped accesses and
    /// packets.
    fn count_work(&mut self) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        let (run, polling, guests) = (self.run, self.polling, self.guests);
        self.io.execute(run, &Order::OpenCounted { device: COUNTED_REGISTERS })?;
        let kinds = [
            (counts::POSTED, Access::Posted, self.sweep.counted),
            ("counted-trapped-reads", Access::Read, TRAPPED_ACCESSES),
            ("counted-trapped-writes", Access::Write, TRAPPED_ACCESSES),
        ];

        // The first access wakes the engine.
        self.io.execute(run, &Order::Count { kind: Access::Read, times: 1 })?;

        for (path, kind, times) in kinds {
            run.step(path)?;
            let posted = if kind == Access::Posted { u64::from(times) } else { 0 };
            let counted = count(
                polling,
                &guests[..1],
                |done| done.posted == posted,
                || self.io.execute(run, &Order::Count { kind, times }).map(drop),
            )?;

            if kind == Access::Posted {
                self.io.execute(run, &Order::Check)?;
            }

            rows.push(counted.add_to(self.row(path), u64::from(times)));
        }

        self.io.execute(run, &Order::Close)?;

        run.step(counts::PACKETS)?;
        let packets_of_message = (COUNTED_BYTES / PAYLOAD) as u32;
        let task = Task {
            path: Path::FcnpPoll,
            direction: Direction::IoToCompute,
            kind: Kind::Stream,
            bytes: COUNTED_BYTES,
            count: self.sweep.counted.div_ceil(packets_of_message),
            compute_cores: 1,
        };

        let devices = EndDevices { io: COUNTED_IO, compute: COUNTED_COMPUTE };
        self.open_endpoints(MessagePath::Guests, &task, devices)?;
        let minimum = u64::from(task.count * packets_of_message);
        let counted = count(
            polling,
            &guests,
            |done| done.packets >= minimum,
            || self.measure_open_endpoints(MessagePath::Guests).map(drop),
        )?;
        self.close_endpoints(MessagePath::Guests)?;
        rows.push(counted.add_to(self.row(counts::PACKETS), counted.done.packets));

        Ok(rows)
    }
}

/// Returns the failure of an answer that does not fit the order.
fn unexpected_answer(answer: &Answer) -> Failure {
    Failure::environment(format!("a worker of the bench gave an answer that does not fit: {answer:?}"))
}

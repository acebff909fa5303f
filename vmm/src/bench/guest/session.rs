//! The measurements with one pair of guests.

use std::{net::SocketAddr, time::Duration};

use nicforge_guest::{Accelerator, Driver, Toolkit, Watch};
use nicforge_hwi::tree::PAYLOAD;

use super::{
    Extent,
    counts::{self, count},
    effort,
    end::{self, End},
    machine::{FIFO_DEPTH, Machine},
    order::{Access, Answer, Order},
    place::{Place, Role, address},
};
use crate::{
    bench::{
        Run,
        fcnp::task::{Direction, Kind, Measured, Path, Side, Task},
        row::{Backing, Row},
        samples::{Samples, in_turns, median},
    },
    failure::{Doing, Failure},
};

/// How long the engine of the counted machine polls. It is longer than the host ever delays a
/// guest's processor.
const AWAKE: Duration = Duration::from_secs(5);
/// The port of the guests' TCP connection.
const PORT: u16 = 7000;
/// The size of a probe, which determines how many messages are measured: bytes, and the least and
/// the greatest number of messages.
const PROBE: (usize, usize, usize) = (256 << 10, 2, 64);
/// The greatest number of messages in a measurement. A few messages may pass faster than many do.
const MOST: u32 = 20_000;
/// The message size for measurements of latency.
const LATENCY_AT: usize = 16;
/// Number of trapped accesses that are counted, to check that counting works.
const TRAPPED: u32 = 100;
/// Bytes of the messages whose packets are counted.
const COUNTED_BYTES: usize = 64 << 10;
/// The measured paths of the device of registers.
const REGISTER_PATHS: [&str; 7] = [
    "trapped-read",
    "trapped-read-hot",
    "trapped-write",
    "posted-write",
    "posted-write-done",
    "posted-write-done-asleep",
    "irq",
];

/// Indexes of the first guest's devices.
const REGISTERS: usize = 0;
const IO: usize = 3;
const COUNTED_REGISTERS: usize = 4;
const COUNTED_IO: usize = 5;
/// Indexes of the second guest's devices.
const COMPUTE: usize = 0;
const COMPUTE_OF_HOST: usize = 1;
const COUNTED_COMPUTE: usize = 2;
/// Index of the host's device.
const HOST_IO: usize = 0;

/// A path of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Raw packets between the guests.
    Raw,
    /// FCNP between the guests.
    Guests,
    /// FCNP between the host and the second guest.
    Host,
    /// TCP between the guests.
    Tcp,
}

impl Way {
    const ALL: [Self; 4] = [Self::Raw, Self::Guests, Self::Host, Self::Tcp];

    const fn path(self) -> Path {
        match self {
            Self::Raw => Path::Raw,
            Self::Guests | Self::Host => Path::FcnpPoll,
            Self::Tcp => Path::Tcp,
        }
    }

    const fn row(self) -> &'static str {
        match self {
            Self::Tcp => "virtio-net-tcp",
            way => way.path().name(),
        }
    }

    const fn placement(self) -> &'static str {
        match self {
            Self::Host => "io@host compute@guest",
            _ => "io@guest compute@guest",
        }
    }
}

/// A pair of guests, and the programs in them and on the host.
pub(super) struct Session<'a> {
    run: &'a Run<'a>,
    extent: &'a Extent,
    accelerator: Accelerator,
    backing: Backing,
    places: [&'a Place; 2],
    /// The machine that counts are taken from.
    awake: &'a Machine,
    io: End<'a>,
    compute: End<'a>,
    host: End<'a>,
}

/// Boots a pair of guests, measures, and returns the rows.
pub(super) fn measure(
    run: &Run<'_>,
    toolkit: &Toolkit,
    watch: &Watch,
    extent: &Extent,
    accelerator: Accelerator,
    driver: Driver,
    backing: Backing,
) -> Result<Vec<Row>, Failure> {
    let names = format!("{}, {}", accelerator.name(), backing.name());
    run.step(format!("booting two guests, {names}"))?;
    let folder = tempfile::Builder::new().prefix("nicforge-bench-").tempdir();
    let folder = folder.doing(|| "a directory for guests".into())?;
    let usual = Machine::serve("usual", run.event_loop, None)?;
    let awake = Machine::serve("awake", run.event_loop, Some(AWAKE))?;
    let first = Role {
        name: "first",
        number: 1,
        functions: &[
            (&usual, "dma0.0"),
            (&usual, "dma0.1"),
            (&usual, "dma0.2"),
            (&usual, "io0.core0"),
            (&awake, "dma0.0"),
            (&awake, "io0.core0"),
        ],
    };

    let second = Role {
        name: "second",
        number: 2,
        functions: &[(&usual, "cn0.core0"), (&usual, "cn1.core0"), (&awake, "cn0.core0")],
    };

    let boot = |role| Place::boot(toolkit, watch, role, accelerator, driver, folder.path());
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| boot(&second));
        let first = boot(&first);
        (first, second.join().unwrap_or_else(|_| Err(Failure::environment("a thread of the bench failed"))))
    });

    // When Ctrl-C prevented a boot, the run ends here and reports no failure.
    run.check()?;
    let (first, second) = (first?, second?);

    let rows = {
        let mut session = Session {
            run,
            extent,
            accelerator,
            backing,
            places: [&first, &second],
            awake: &awake,
            io: End::in_guest(run, "the first guest", &first.guest)?,
            compute: End::in_guest(run, "the second guest", &second.guest)?,
            host: End::on_host(run, "the host", &[usual.socket("io1.core0")])?,
        };
        session.rows()?
    };

    drop((first, second));
    usual.stop()?;
    awake.stop()?;

    Ok(rows)
}

impl<'a> Session<'a> {
    /// Returns the number of calls to [`Run::step`] for a pair of guests.
    pub(super) fn steps(extent: &Extent) -> u64 {
        let messages = extent.sizes.len() * extent.directions.len() * (extent.rounds + 1);
        (1 + 4 + 1 + Way::ALL.len() * messages) as u64
    }

    fn rows(&mut self) -> Result<Vec<Row>, Failure> {
        let mut rows = self.registers()?;
        rows.extend(self.messages()?);
        rows.extend(self.counted()?);
        Ok(rows)
    }

    fn row(&self, path: &str) -> Row {
        Row { accelerator: Some(self.accelerator.name()), backing: Some(self.backing), ..Row::new(path) }
    }

    /// Measures the device of registers.
    fn registers(&mut self) -> Result<Vec<Row>, Failure> {
        self.run.step("registers and interrupts")?;
        self.io.obey(self.run, &Order::OpenRegisters { first: REGISTERS })?;
        let rounds = effort(self.run.quick).rounds;
        let turns = in_turns(rounds, REGISTER_PATHS.len(), |index, _| {
            let order = Order::Turn { path: REGISTER_PATHS[index].into(), quick: self.run.quick };
            match self.io.obey(self.run, &order)? {
                Answer::Turn(turn) => Ok(turn),
                answer => Err(unexpected(&answer)),
            }
        })?;

        self.io.obey(self.run, &Order::Close)?;
        let row = |(path, turns): (&&str, Vec<crate::bench::mmio::Turn>)| {
            let rates: Vec<_> = turns.iter().filter_map(|turn| turn.rate_per_s).collect();
            let mut samples = Samples::default();
            turns.into_iter().for_each(|turn| samples.append(turn.samples));
            Row {
                placement: Some("client@guest".into()),
                p50_us: Some(samples.p50_us()),
                p99_us: Some(samples.p99_us()),
                rate_per_s: (!rates.is_empty()).then(|| median(&rates)),
                ..self.row(path)
            }
        };

        Ok(REGISTER_PATHS.iter().zip(turns).map(row).collect())
    }

    /// Measures bandwidths and latencies.
    fn messages(&mut self) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        for &direction in self.extent.directions {
            for &bytes in self.extent.sizes {
                rows.extend(self.compare(direction, bytes)?);
            }
        }
        Ok(rows)
    }

    /// Measures all paths in turns.
    fn compare(&mut self, direction: Direction, bytes: usize) -> Result<Vec<Row>, Failure> {
        let &Extent { rounds, seconds, round_trips, .. } = self.extent;
        let task = |way: Way, kind, count| Task { path: way.path(), direction, kind, bytes, count, lanes: 1 };
        let (of_bytes, least, most) = PROBE;
        let probe = (of_bytes / bytes).clamp(least, most) as u32;
        let mut counts = Vec::new();

        for way in Way::ALL {
            self.run.step(format!("{}, {bytes} bytes, {}", way.row(), direction.name()))?;
            let took = self.pass(way, &task(way, Kind::Stream, probe))?.seconds();
            counts.push(((f64::from(probe) * seconds / took) as u32).clamp(2, MOST));
        }

        let figures = in_turns(rounds, Way::ALL.len(), |index, _| {
            let way = Way::ALL[index];
            self.run.step(format!("{}, {bytes} bytes, {}", way.row(), direction.name()))?;
            let stream = task(way, Kind::Stream, counts[index]);
            let gbit_s = stream.bandwidth(&self.pass(way, &stream)?) / 1e9;
            let mut samples = Samples::default();
            if bytes == LATENCY_AT {
                let trips = self.pass(way, &task(way, Kind::PingPong, round_trips))?.round_trips;
                trips.iter().for_each(|nanoseconds| samples.add(Duration::from_nanos(nanoseconds / 2)));
            }
            Ok::<_, Failure>((gbit_s, samples))
        })?;

        let row = |(way, rounds): (Way, Vec<(f64, Samples)>)| {
            let gbit_s = median(&rounds.iter().map(|(gbit_s, _)| *gbit_s).collect::<Vec<_>>());
            let mut samples = Samples::default();
            rounds.into_iter().for_each(|(_, more)| samples.append(more));

            let device = way != Way::Tcp;
            let row = self.row(way.row());
            Row {
                backing: row.backing.filter(|_| device),
                placement: Some(way.placement().into()),
                fifo_depth: device.then_some(FIFO_DEPTH),
                direction: Some(direction.name()),
                bytes: Some(bytes as u64),
                gbit_s: Some(gbit_s),
                rate_per_s: Some(gbit_s * 1e9 / 8.0 / bytes as f64),
                p50_us: (!samples.is_empty()).then(|| samples.p50_us()),
                p99_us: (!samples.is_empty()).then(|| samples.p99_us()),
                ..row
            }
        };

        Ok(Way::ALL.into_iter().zip(figures).map(row).collect())
    }

    /// Passes a task's messages once.
    fn pass(&mut self, way: Way, task: &Task) -> Result<Measured, Failure> {
        let devices = match way {
            Way::Host => (HOST_IO, COMPUTE_OF_HOST),
            _ => (IO, COMPUTE),
        };

        self.open(way, task, devices)?;
        let measured = self.go(way)?;
        self.close(way)?;

        Ok(measured)
    }

    /// Returns the two ends of a path.
    fn ends(&mut self, way: Way) -> (&mut End<'a>, &mut End<'a>) {
        let io = if way == Way::Host { &mut self.host } else { &mut self.io };
        (io, &mut self.compute)
    }

    /// Sends both ends their orders, and waits for both answers.
    fn both(&mut self, way: Way, orders: [Order; 2]) -> Result<Vec<Answer>, Failure> {
        let run = self.run;
        let what = format!("{way:?}, {:?}", orders[1]);
        let (io, compute) = self.ends(way);
        io.tell(&orders[0])?;
        compute.tell(&orders[1])?;
        end::collect(run, &[io, compute], &what)
    }

    fn open(&mut self, way: Way, task: &Task, (io, compute): (usize, usize)) -> Result<(), Failure> {
        let task = *task;
        let order = |side, device| -> Result<Order, Failure> {
            if way != Way::Tcp {
                return Ok(Order::OpenTree { side, task, device });
            }
            let address: SocketAddr =
                format!("{}:{PORT}", address(1)).parse().doing(|| "an address".into())?;
            Ok(Order::OpenTcp { side, task, address })
        };

        let orders = [order(Side::Io, io)?, order(Side::Compute, compute)?];
        self.both(way, orders).map(drop)
    }

    fn go(&mut self, way: Way) -> Result<Measured, Failure> {
        let mut measured = Measured::default();
        for answer in self.both(way, [Order::Go, Order::Go])? {
            match answer {
                Answer::Measured(one) => measured = measured.and(one),
                answer => return Err(unexpected(&answer)),
            }
        }

        Ok(measured)
    }

    fn close(&mut self, way: Way) -> Result<(), Failure> {
        self.both(way, [Order::Close, Order::Close]).map(drop)
    }

    /// Counts the work of the server and of QEMU.
    fn counted(&mut self) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        let (run, awake, places) = (self.run, self.awake, self.places);
        self.io.obey(run, &Order::OpenCounted { device: COUNTED_REGISTERS })?;
        let kinds = [
            (counts::POSTED, Access::Posted, self.extent.counted),
            ("counted-trapped-reads", Access::Read, TRAPPED),
            ("counted-trapped-writes", Access::Write, TRAPPED),
        ];

        // The first access wakes the engine.
        self.io.obey(run, &Order::Count { kind: Access::Read, times: 1 })?;

        for (path, kind, times) in kinds {
            run.step(path)?;
            let posted = if kind == Access::Posted { u64::from(times) } else { 0 };
            let counted = count(
                awake,
                &places[..1],
                |done| done.posted == posted,
                || self.io.obey(run, &Order::Count { kind, times }).map(drop),
            )?;

            if kind == Access::Posted {
                self.io.obey(run, &Order::Check)?;
            }

            rows.push(counted.figures(self.row(path), u64::from(times)));
        }

        self.io.obey(run, &Order::Close)?;

        run.step(counts::PACKETS)?;
        let packets_of_message = (COUNTED_BYTES / PAYLOAD) as u32;
        let task = Task {
            path: Path::FcnpPoll,
            direction: Direction::IoToCompute,
            kind: Kind::Stream,
            bytes: COUNTED_BYTES,
            count: self.extent.counted.div_ceil(packets_of_message),
            lanes: 1,
        };

        self.open(Way::Guests, &task, (COUNTED_IO, COUNTED_COMPUTE))?;
        let least = u64::from(task.count * packets_of_message);
        let counted = count(awake, &places, |done| done.packets >= least, || self.go(Way::Guests).map(drop))?;
        self.close(Way::Guests)?;
        rows.push(counted.figures(self.row(counts::PACKETS), counted.done.packets));

        Ok(rows)
    }
}

fn unexpected(answer: &Answer) -> Failure {
    Failure::environment(format!("an end of the bench gave an answer that does not fit: {answer:?}"))
}

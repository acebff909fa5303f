//! Attacks of a rank on the other ranks of its job, by the libraries that the ranks use.
//!
//! Each round opens a job: rank 0, which is attacked, rank 1, which attacks, and rank 2. The honest
//! ranks exchange messages meanwhile, and must do so in [`LIMIT`].

#![allow(unsafe_code, reason = "memory is registered by address, as the matching layer does")]

use std::{
    io,
    ptr::NonNull,
    time::{Duration, Instant},
};

use nicforge_bgl_transport::{BglTransport, Config as BglConfig, Job as BglJob};
use nicforge_driver::{Device, OpenOptions, Relax};
use nicforge_extoll_transport::{Config as ExtollConfig, ExtollTransport, Job as ExtollJob};
use nicforge_matching::{
    Access, Config, Endpoint, Envelope, Get, Memory, Mode, RemoteRegion, Request, Selector, Taken, Transport,
    wire,
};
use nicforge_mu_transport::{Config as MuConfig, Job as MuJob, MuTransport, RankAddress};
use nicforge_velo::Address;
use nix::time::{ClockId, clock_gettime};
use zerocopy::{FromBytes, IntoBytes};

use crate::arena::{Arena, Failed, Round};

/// Time limit of a round of the honest ranks.
const LIMIT: Duration = Duration::from_secs(20);
/// Longest time of a processor that one call of an honest rank's `progress` may take.
const CALL_LIMIT: Duration = Duration::from_millis(50);
/// Bytes of a long message between the honest ranks.
const LONG: usize = 200_000;
/// Bytes of the memory that the attacker asks for.
const ASKED: usize = 8 << 20;
/// The rank that is attacked.
const VICTIM: u32 = 0;
/// The rank that attacks.
const ATTACKER: u32 = 1;
/// The other honest rank.
const FRIEND: u32 = 2;
/// The context of the honest ranks' messages.
const CONTEXT: u32 = 3;

/// Returns an error of a round.
fn failed(description: impl Into<String>) -> Failed {
    Failed::Io(io::Error::other(description.into()))
}

/// Returns the error of a library.
fn of_library(error: impl std::fmt::Display) -> Failed {
    failed(error.to_string())
}

/// Returns the time that this thread has used of the processors.
fn processor_time() -> Result<Duration, Failed> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// Opens the device behind a socket.
fn open(arena: &Arena, name: &str) -> Result<Device, Failed> {
    let options = OpenOptions { heartbeat: None, ..OpenOptions::default() };
    Ok(Device::open_vfio_user(arena.socket(name), options)?)
}

/// The ranks of a round.
struct Job<T: Transport> {
    victim: Endpoint<T>,
    friend: Endpoint<T>,
    attacker: T,
    relax: Relax,
    deadline: Instant,
    /// Longest time of a processor in one call of the victim's `progress`.
    longest_call: Duration,
    /// The attacker takes packets from the network whenever the honest ranks make progress.
    takes_packets: bool,
}

impl<T: Transport> Job<T> {
    /// Makes the job of three transports, and waits until all are connected: until the honest ranks
    /// have exchanged a message with each other, and the attacker has sent one to the victim.
    fn new(transports: [T; 3]) -> Result<Self, Failed> {
        let [victim, attacker, friend] = transports;
        let endpoint = |transport| Endpoint::new(transport, Config::default()).map_err(of_library);
        let mut job = Self {
            victim: endpoint(victim)?,
            friend: endpoint(friend)?,
            attacker,
            relax: Relax::new(),
            deadline: Instant::now() + LIMIT,
            longest_call: Duration::ZERO,
            takes_packets: false,
        };

        let greeting = job.victim.irecv(Selector::exact(ATTACKER, CONTEXT, 0), Vec::new(), 0);
        let greeting = greeting.map_err(of_library)?;
        // An eager message without data: context, size, tag.
        let first = wire::First { context: CONTEXT.into(), size: 0.into(), tag: 0.into() };
        while !job.attack_once(wire::FIRST, first.as_bytes())? {
            job.progress("the attacker's connection")?;
        }
        while job.victim.statistics().received == 0 {
            job.attacker.poll(64, &mut |_, _, _| Taken::Yes).map_err(of_library)?;
            job.progress("the attacker's first message")?;
        }
        job.wait(greeting, "the attacker's first message", true)?;
        job.exchange(8)?;
        job.deadline = Instant::now() + LIMIT;
        job.longest_call = Duration::ZERO;
        Ok(job)
    }

    /// Makes progress on the honest ranks.
    fn progress(&mut self, awaited: &str) -> Round {
        let start = processor_time()?;
        let mut steps = self.victim.progress().map_err(of_library)?;
        self.longest_call = self.longest_call.max(processor_time()?.saturating_sub(start));
        steps += self.friend.progress().map_err(of_library)?;
        if self.takes_packets {
            self.attacker.poll(64, &mut |_, _, _| Taken::Yes).map_err(of_library)?;
        }

        if steps > 0 {
            self.relax.reset();
        }
        self.victim.transport_mut().relax(&mut self.relax).map_err(of_library)?;
        if Instant::now() > self.deadline {
            return Err(failed(format!("no {awaited} within {LIMIT:?}")));
        }
        Ok(())
    }

    /// Sends a message of the attacker to the victim. Returns false without room. The attacker
    /// takes nothing but its connection.
    fn attack_once(&mut self, kind: u8, message: &[u8]) -> Result<bool, Failed> {
        let _ = self.attacker.poll_gone();
        self.attacker.poll(64, &mut |_, _, _| Taken::Yes).map_err(of_library)?;
        self.attacker.try_send(VICTIM, kind, message).map_err(of_library)
    }

    /// Waits for a request of the victim, or else of its friend.
    fn wait(&mut self, request: Request, awaited: &str, of_victim: bool) -> Result<Vec<u8>, Failed> {
        loop {
            let endpoint = if of_victim { &mut self.victim } else { &mut self.friend };
            if let Some(completion) = endpoint.test(request).map_err(of_library)? {
                completion.result.map_err(of_library)?;
                return completion.buffer.into_vec().ok_or_else(|| failed("a buffer is lost"));
            }
            self.progress(awaited)?;
        }
    }

    /// Exchanges a message of `length` bytes between the honest ranks, in both directions.
    fn exchange(&mut self, length: usize) -> Round {
        let data: Vec<u8> = (0..length).map(|index| index as u8).collect();
        let pairs = [(true, FRIEND, VICTIM), (false, VICTIM, FRIEND)];
        for (from_victim, to, from) in pairs {
            let (sender, receiver) = if from_victim {
                (&mut self.victim, &mut self.friend)
            } else {
                (&mut self.friend, &mut self.victim)
            };
            let envelope = Envelope::new(to, CONTEXT, 7);
            let send = sender.isend(envelope, Mode::Standard, data.clone(), 0).map_err(of_library)?;
            let selector = Selector::exact(from, CONTEXT, 7);
            let receive = receiver.irecv(selector, vec![0; length], 0).map_err(of_library)?;

            if self.wait(receive, "message between honest ranks", !from_victim)? != data {
                return Err(failed("a message between honest ranks is wrong"));
            }
            self.wait(send, "end of a send between honest ranks", from_victim)?;
        }
        Ok(())
    }

    /// Exchanges short and long messages between the honest ranks.
    fn exchange_all(&mut self) -> Round {
        [8, 1000, LONG].into_iter().try_for_each(|length| self.exchange(length))
    }

    /// Posts receives of the victim for messages of the attacker with tags below `count`.
    fn receive_from_attacker(&mut self, count: u64) -> Round {
        (0..count).try_for_each(|tag| {
            let selector = Selector::exact(ATTACKER, 0, tag);
            self.victim.irecv(selector, vec![0; LONG], 0).map(drop).map_err(of_library)
        })
    }

    /// Announces long messages of the attacker at this offset of its memory, and starts receives of
    /// them.
    fn announce(&mut self, count: u64, offset: u64) -> Round {
        for tag in 0..count {
            let message = wire::Rendezvous {
                context: 0.into(),
                reserved: 0.into(),
                tag: tag.into(),
                size: (LONG as u64).into(),
                key: 0.into(),
                offset: offset.into(),
                request: tag.into(),
            };
            while !self.attack_once(wire::REQUEST, message.as_bytes())? {
                self.progress("room for an announcement")?;
            }
        }
        while self.victim.statistics().rendezvous < count {
            self.attacker.poll(64, &mut |_, _, _| Taken::Yes).map_err(of_library)?;
            self.progress("the announcements")?;
        }
        // The attacker makes no calls from here on.
        self.receive_from_attacker(count)
    }
}

/// Returns the ranks of a job on EXTOLL cards.
fn extoll_job(arena: &Arena) -> Result<[ExtollTransport; 3], Failed> {
    let addresses = [(0, 0), (1, 0), (1, 1)].map(|(node, vpid)| Address { node, vpid });
    let job = ExtollJob::new(addresses.to_vec());
    let rank = |address: Address| {
        let device = open(arena, &format!("ex{}.vpid{}", address.node, address.vpid))?;
        ExtollTransport::open(device, &job, ExtollConfig::default()).map_err(of_library)
    };
    let [victim, attacker, friend] = addresses.map(rank);
    Ok([victim?, attacker?, friend?])
}

/// Attacks by a rank that sends more messages than its window allows, which nothing receives.
///
/// A correct receiver counts the rank as lost, and goes on with the others.
pub(super) fn extoll_window(arena: &Arena) -> Round {
    let messages = arena.size().pick(2000, 20_000);
    arena.repeat(|| {
        let mut job = Job::new(extoll_job(arena)?)?;
        let mut message = [0; size_of::<wire::First>() + 8];
        let first = wire::First { context: 0.into(), size: 8.into(), tag: 9.into() };
        message[..size_of::<wire::First>()].copy_from_slice(first.as_bytes());

        for number in 0..messages {
            // A rank that was given up may get no credit.
            if !job.attack_once(wire::FIRST, &message)? {
                job.progress("a step")?;
            }
            if number % 500 == 499 {
                job.exchange_all()?;
            }
        }
        job.exchange_all()
    })
}

/// Attacks by a rank that announces long messages whose memory it does not have, and makes no calls
/// then. Its unit answers no gets.
///
/// A correct receiver leaves places for gets from other ranks.
pub(super) fn mu_gets(arena: &Arena) -> Round {
    arena.repeat(|| {
        let addresses = [(0, 0), (1, 0), (0, 1)].map(|(node, subgroup)| RankAddress { node, subgroup });
        let job = MuJob::new(addresses.to_vec());
        let rank = |address: RankAddress| {
            let device = open(arena, &format!("bgq{}.s{}", address.node, address.subgroup))?;
            // The attacker is not given up within the round.
            let config = MuConfig { patience: 10 * LIMIT, ..MuConfig::default() };
            MuTransport::open(&device, &job, config).map_err(of_library)
        };
        let [victim, attacker, friend] = addresses.map(rank);
        let mut job = Job::new([victim?, attacker?, friend?])?;

        job.announce(16, (1 << 36) - (1 << 21))?;
        job.exchange_all()
    })
}

/// Returns the ranks of a job on the torus.
fn torus_job(arena: &Arena, config_of_attacker: BglConfig) -> Result<[BglTransport; 3], Failed> {
    let rank = |rank: u32| {
        let device = open(arena, &format!("bgl{rank}.torus.core0"))?;
        let config = if rank == ATTACKER { config_of_attacker } else { BglConfig::default() };
        BglTransport::open(device, &BglJob::of_nodes(3), config).map_err(of_library)
    };
    Ok([rank(VICTIM)?, rank(ATTACKER)?, rank(FRIEND)?])
}

/// Attacks by a rank that announces long messages and makes no calls then, so that it answers no
/// gets.
///
/// A correct receiver leaves places for gets from other ranks.
pub(super) fn torus_gets(arena: &Arena) -> Round {
    arena.repeat(|| {
        let mut job = Job::new(torus_job(arena, BglConfig::default())?)?;
        job.announce(16, 0)?;
        job.exchange_all()
    })
}

/// Attacks by a rank that asks for 8 MiB of the victim's memory as often as it may, by the key that
/// it was told and by others. It takes packets, because a core that takes none stops those behind
/// them in the network, whatever the libraries do.
///
/// A correct rank has few bytes of answers on their way, and answers in short calls.
pub(super) fn torus_answers(arena: &Arena) -> Round {
    let steps = arena.size().pick(100, 500);
    arena.repeat(|| {
        let config = BglConfig { get_bytes: ASKED, gets: 32, ..BglConfig::default() };
        let mut job = Job::new(torus_job(arena, config)?)?;

        let to = Envelope::new(ATTACKER, 0, 0);
        job.victim.isend(to, Mode::Standard, vec![5; ASKED], 0).map_err(of_library)?;
        let mut told = None;
        while told.is_none() {
            let sink = &mut |_, kind, bytes: &[u8]| {
                if let (wire::REQUEST, Ok(request)) = (kind, wire::Rendezvous::read_from_bytes(bytes)) {
                    told = Some(RemoteRegion { key: request.key.get(), offset: request.offset.get() });
                }
                Taken::Yes
            };
            job.attacker.poll(64, sink).map_err(of_library)?;
            job.progress("the victim's announcement")?;
        }
        let Some(told) = told else { return Ok(()) };
        job.takes_packets = true;

        let mut destination = vec![0_u8; ASKED];
        let memory = Memory { start: NonNull::from(&mut destination[..]).cast(), length: ASKED };
        // SAFETY: the memory outlives the registration, which ends below or with the attacker's
        // transport, and nothing else uses it.
        let local = unsafe { job.attacker.register(memory, Access::Destination) };
        let Ok(Some(local)) = local else { return Err(failed("no memory could be registered")) };

        let mut number = 0;
        let result = (0..steps).try_for_each(|_| {
            // Every second get guesses the key of other memory of the victim.
            let key = if number % 2 == 0 { told.key } else { told.key.wrapping_add(number) };
            let remote = RemoteRegion { key, ..told };
            let length = if number % 3 == 0 { 1 << 20 } else { ASKED };
            let get = Get { peer: VICTIM, remote, local, local_offset: 0, length, cookie: number };
            if job.attacker.start_get(&get).map_err(of_library)? {
                number += 1;
            }
            // The results do not matter, but hold places.
            job.attacker.poll_gets(64, &mut |_, _| {}).map_err(of_library)?;
            job.progress("a step")
        });
        let result = result.and_then(|()| job.exchange_all());
        job.attacker.deregister(local);
        result?;

        if job.longest_call > CALL_LIMIT {
            return Err(failed(format!("a call took {:?}", job.longest_call)));
        }
        Ok(())
    })
}

//! The matching library against a hostile rank.
//!
//! The rank sends messages that are too short, too many, out of order or about other ranks'
//! requests. It names memory that it does not have, and ends at any point.
//!
//! Checked: messages between two other ranks arrive unchanged, once and in order. The hostile
//! rank's messages use no more memory than its window allows.

#![allow(unsafe_code, reason = "the hostile rank registers memory by its address")]

use std::{collections::VecDeque, ptr::NonNull};

use nicforge_matching::{
    Access, Config, Endpoint, Envelope, Get, Memory, Message, Mode, Region, RemoteRegion, Request, Selector,
    Taken, Transport,
    memory::{Fabric, FabricConfig, FabricPort},
    wire::{self, Blocked, Finish, First, Full, Grant, Rendezvous},
};
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Input;

/// Maximum number of actions in one input.
const MAX: usize = 200;
/// Number of rounds within which a required event must happen.
const MAX_ROUNDS: usize = 100_000;
/// Bytes of the hostile rank's memory that others get from.
const ROOM: usize = 10_000;
/// The context of the well-behaved ranks. The hostile one uses it too.
const CONTEXT: u32 = 1;

/// The rank that the hostile one attacks.
const VICTIM: u32 = 0;
/// The victim's other peer.
const FRIEND: u32 = 1;
/// The rank that keeps no rule.
const HOSTILE: u32 = 2;
/// The tag of all messages between the well-behaved ranks, which therefore match in the order of
/// their sends.
const TAG: u64 = 7;

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let config = Config {
        eager_threshold: input.pick(&[2048, 0, 100]),
        window: input.pick(&[65_536, 8192]),
        pool: input.pick(&[1 << 20, 0, 20_000]),
        budget: input.pick(&[64, 1]),
        gets_in_flight: input.pick(&[4, 1]),
    };

    let fabric_config = FabricConfig {
        message_bytes: input.pick(&[64, 128]),
        get_bytes: input.pick(&[4096, 500]),
        credits: input.pick(&[64, 1, 1000]),
        gets: input.pick(&[8, 1]),
        regions: input.pick(&[1024, 2]),
        // A rank that shares one ring with the hostile rank is blocked by it while it lives.
        one_ring: false,
        seed: u64::from(input.u8()),
    };

    let mut world = World::new(config, fabric_config);
    for _ in 0..MAX {
        if input.is_empty() {
            break;
        }

        match input.below(16) {
            0..=6 => world.hostile.send_unrequested(&mut input),
            7 => world.hostile.answer_messages(&mut input),
            8 => world.send_to_hostile_rank(&mut input),
            9 => world.receive(&mut input),
            10 => world.claim(&mut input),
            11 => world.end_request(&mut input),
            12..=13 => world.start_message(&mut input),
            _ => world.progress(),
        }

        let kept = world.ranks[0].store_bytes();
        assert!(kept <= 3 * config.window + config.pool, "{kept} bytes are kept");
    }

    world.finish();
}

/// A message between the well-behaved ranks, and its requests.
struct Traffic {
    from: usize,
    send: Request,
    receive: Request,
    data: Vec<u8>,
}

/// Three ranks on a fabric.
struct World {
    /// The victim and its friend.
    ranks: [Endpoint<FabricPort>; 2],
    hostile: HostileRank,
    /// Messages between the well-behaved ranks that are not finished, oldest first.
    traffic: VecDeque<Traffic>,
    /// Number of the next such message.
    next: u64,
    /// The victim's requests to the hostile rank, or to any rank.
    requests: Vec<Request>,
    /// Messages that the victim has claimed, and not received.
    claimed: Vec<Message>,
    fabric: Fabric,
}

impl World {
    /// Creates the ranks. Both well-behaved ones have the same configuration.
    fn new(config: Config, fabric_config: FabricConfig) -> Self {
        let (fabric, ports) = Fabric::new(3, fabric_config);
        let mut ports = ports.into_iter();
        let mut port = || ports.next().unwrap();
        let ranks = [(); 2].map(|()| Endpoint::new(port(), config).unwrap());
        let hostile = HostileRank::new(port());
        let (traffic, requests, claimed) = Default::default();

        Self { ranks, hostile, traffic, next: 0, requests, claimed, fabric }
    }

    /// Lets both well-behaved ranks progress, and checks the oldest message between them if it has
    /// arrived.
    fn progress(&mut self) {
        for rank in &mut self.ranks {
            rank.progress().unwrap();
        }

        let Some(traffic) = self.traffic.front() else { return };
        let (from, to) = (traffic.from, 1 - traffic.from);
        let Some(received) = self.ranks[to].test(traffic.receive).unwrap() else { return };

        assert_eq!(received.result, Ok(()));
        assert!(received.buffer.as_slice() == traffic.data, "the message came as it was sent");
        assert_eq!(received.envelope.peer, from as u32);

        // The send may complete only when the receiver has told the sender of the receipt.
        let send = traffic.send;
        let sent = (0..MAX_ROUNDS).find_map(|_| {
            self.ranks[to].progress().unwrap();
            self.ranks[from].progress().unwrap();
            self.ranks[from].test(send).unwrap()
        });

        assert_eq!(sent.map(|sent| sent.result), Some(Ok(())));

        self.traffic.pop_front();
    }

    /// Starts a message from one well-behaved rank to the other.
    fn start_message(&mut self, input: &mut Input<'_>) {
        let from = usize::from(input.flag());
        let length = input.pick(&[0, 8, 100, 3000, 9000]);
        self.send_message(from, length, if input.flag() { Mode::Standard } else { Mode::Synchronous });
    }

    /// Starts a message of `length` bytes from one well-behaved rank to the other.
    fn send_message(&mut self, from: usize, length: usize, mode: Mode) {
        let to = 1 - from;
        let data: Vec<u8> =
            (0..length as u64).map(|index| (index ^ self.next.wrapping_mul(31)) as u8).collect();

        self.next += 1;
        let selector = Selector::exact(from as u32, CONTEXT, TAG);
        let receive = self.ranks[to].irecv(selector, vec![0; length], 0).unwrap();
        let send =
            self.ranks[from].isend(Envelope::new(to as u32, CONTEXT, TAG), mode, data.clone(), 0).unwrap();

        self.traffic.push_back(Traffic { from, send, receive, data });
    }

    /// Starts a message of the victim to the hostile rank, which learns the request's number.
    fn send_to_hostile_rank(&mut self, input: &mut Input<'_>) {
        let mode = if input.flag() { Mode::Standard } else { Mode::Synchronous };
        let length = input.pick(&[0, 8, 100, 3000, 9000]);
        let envelope = Envelope::new(HOSTILE, input.below(3), input.below(4).into());
        let request = self.ranks[0].isend(envelope, mode, vec![1; length], 0).unwrap();
        self.requests.push(request);
        self.hostile.learnt.push(request.to_bits());
    }

    /// Returns a selector that matches no message of the well-behaved ranks.
    fn selector(input: &mut Input<'_>) -> Selector {
        let (context, tag) = (input.pick(&[0, 2]), input.below(4).into());
        match input.below(4) {
            0 => Selector::exact(HOSTILE, context, tag),
            1 => Selector::any_tag(HOSTILE, context),
            2 => Selector::any(context),
            _ => Selector::any_source(context, tag).ignoring(input.number()),
        }
    }

    /// Starts a receive of the victim.
    fn receive(&mut self, input: &mut Input<'_>) {
        let selector = Self::selector(input);
        let capacity = input.pick(&[0, 8, 100, 5000]);
        self.requests.push(self.ranks[0].irecv(selector, vec![0; capacity], 0).unwrap());
    }

    /// Probes and claims a message of the victim, and checks that both find the same one.
    fn claim(&mut self, input: &mut Input<'_>) {
        let selector = Self::selector(input);
        let probed = self.ranks[0].probe(&selector);
        let claimed = self.ranks[0].claim(&selector);
        assert_eq!(claimed.as_ref().map(|(_, arrived)| *arrived), probed);
        self.claimed.extend(claimed.map(|(message, _)| message));
    }

    /// Discards or receives a claimed message of the victim, cancels one of its requests, or takes
    /// the results of its requests.
    fn end_request(&mut self, input: &mut Input<'_>) {
        let victim = &mut self.ranks[0];
        match input.below(4) {
            // A claimed message of a lost rank may be lost too.
            0 => drop(self.claimed.pop().map(|message| victim.discard(message))),
            1 => {
                let received =
                    self.claimed.pop().map(|message| victim.receive_claimed(message, vec![0; 50], 0));
                self.requests.extend(received.and_then(Result::ok));
            }
            2 if !self.requests.is_empty() => {
                let index = input.below(self.requests.len() as u32) as usize;
                let _ = victim.cancel(self.requests[index]).unwrap();
            }
            _ => self.requests.retain(|request| victim.test(*request).unwrap().is_none()),
        }
    }

    /// Ends the hostile rank, and checks that all requests complete.
    fn finish(mut self) {
        self.fabric.kill(HOSTILE);
        for from in [0, 1] {
            self.send_message(from, 100, Mode::Standard);
            self.send_message(from, 9000, Mode::Synchronous);
        }

        for message in std::mem::take(&mut self.claimed) {
            let _ = self.ranks[0].discard(message);
        }

        for _ in 0..MAX_ROUNDS {
            self.progress();
            let victim = &mut self.ranks[0];
            self.requests.retain(|request| match victim.test(*request).unwrap() {
                Some(_) => false,
                // A receive from any source does not end with the hostile rank.
                None => !victim.cancel(*request).unwrap() || victim.test(*request).unwrap().is_none(),
            });

            if self.traffic.is_empty() && self.requests.is_empty() {
                break;
            }
        }

        assert_eq!((self.traffic.len(), self.requests.len()), (0, 0));
        assert_eq!(self.ranks.each_ref().map(Endpoint::outstanding), [0, 0]);
    }
}

/// A rank that uses its port of the fabric without the library.
struct HostileRank {
    port: FabricPort,
    /// Memory that others may get from.
    source: Region,
    /// Memory that its gets write to.
    destination: Region,
    /// Numbers of requests and keys that it has seen.
    learnt: Vec<u64>,
    /// The memory of both regions. Fields are dropped in order, so the port ends before it.
    _memory: Box<[u8]>,
}

impl HostileRank {
    /// Registers the rank's memory.
    fn new(mut port: FabricPort) -> Self {
        let mut memory = vec![0; 2 * ROOM].into_boxed_slice();
        let (source, destination) = memory.split_at_mut(ROOM);
        let mut register = |part: &mut [u8], access| {
            let memory = Memory { start: NonNull::from(&mut *part).cast(), length: part.len() };
            // SAFETY: no other code uses the memory, and it is freed after the port.
            (0..MAX_ROUNDS).find_map(|_| unsafe { port.register(memory, access) }.unwrap()).unwrap()
        };

        let source = register(source, Access::Source);
        let destination = register(destination, Access::Destination);
        Self { port, source, destination, learnt: vec![source.remote.key], _memory: memory }
    }

    /// Returns a number that names a request or a key, mostly one that the rank has seen.
    fn number(&self, input: &mut Input<'_>) -> u64 {
        match input.below(4) {
            0 => input.number(),
            _ => self.learnt[input.below(self.learnt.len().min(256) as u32) as usize],
        }
    }

    /// Sends a packet of the library's protocol. Returns whether there was room for it.
    fn send(&mut self, to: u32, kind: u8, message: &[u8]) -> bool {
        let length = message.len().min(self.port.max_message_bytes());
        self.port.try_send(to, kind, &message[..length]).unwrap()
    }

    /// Sends a packet of any kind, mostly to the victim, that nothing has asked for.
    fn send_unrequested(&mut self, input: &mut Input<'_>) {
        let to = input.pick(&[VICTIM, VICTIM, VICTIM, FRIEND]);
        match input.below(8) {
            0..=1 => self.send_whole_message(to, input),
            2 => {
                let size = if input.flag() { input.number32() } else { input.below(200) };
                let message = [&first(input, size), input.bytes(20)].concat();
                self.send(to, wire::FIRST, &message);
            }
            3 => {
                let message = input.bytes(64);
                self.send(to, wire::MORE, message);
            }
            4 => {
                let size = if input.below(4) > 0 { input.below(ROOM as u32).into() } else { input.number() };
                let own_region = self.source.remote;
                let remote = if input.below(4) > 0 {
                    own_region
                } else {
                    RemoteRegion {
                        key: self.number(input),
                        offset: own_region.offset.wrapping_add(input.number()),
                    }
                };

                let request = Rendezvous {
                    context: input.below(3).into(),
                    reserved: u32::from(input.below(8) == 1).into(),
                    tag: u64::from(input.below(4)).into(),
                    size: size.into(),
                    key: remote.key.into(),
                    offset: remote.offset.into(),
                    request: self.number(input).into(),
                };

                self.send(to, wire::REQUEST, request.as_bytes());
            }
            5 => {
                let status = input.pick(&[wire::FETCHED, wire::NOT_FETCHED, 2, u32::MAX]);
                let request = self.number(input).into();
                let finish = Finish { request, status: status.into(), reserved: 0.into() };
                self.send(to, wire::FINISH, finish.as_bytes());
            }
            6 => {
                self.send(to, wire::GRANT, Grant { limit: input.number().into() }.as_bytes());
            }
            7 if input.flag() => {
                let other = input.number();
                let (limit, used) = (input.pick(&[64, 512, other]).into(), input.number().into());
                let verdict = input.pick(&[wire::ASK, wire::GIVE_UP, 2]).into();
                self.send(to, wire::FULL, Full { limit, used, verdict, reserved: 0.into() }.as_bytes());
                self.send(to, wire::BLOCKED, Blocked { limit }.as_bytes());
            }
            _ => {
                let (kind, message) = (input.below(9) as u8, input.bytes(128));
                self.send(to, kind, message);
            }
        }
    }

    /// Sends a correct eager message, as far as there is room for it.
    fn send_whole_message(&mut self, to: u32, input: &mut Input<'_>) {
        let size = input.pick(&[0, 8, 100, 2048]);
        let maximum = self.port.max_message_bytes();
        let begins = size.min(maximum - size_of::<First>());
        let mut is_sent = self.send(to, wire::FIRST, &[first(input, size as u32), vec![2; begins]].concat());
        let mut remaining = size - begins;

        while remaining > 0 && is_sent {
            let more = remaining.min(maximum);
            is_sent = self.send(to, wire::MORE, &vec![2; more]);
            remaining -= more;
        }
    }

    /// Takes arrived packets, answers some of them, and starts a get.
    fn answer_messages(&mut self, input: &mut Input<'_>) {
        let mut answers = Vec::new();
        let learnt = &mut self.learnt;
        let mut sink = |from, kind, message: &[u8]| {
            if kind == wire::REQUEST
                && let Ok((request, _)) = Rendezvous::ref_from_prefix(message)
            {
                learnt.extend([request.request.get(), request.key.get(), request.offset.get()]);
                answers.push((from, request.request));
            }
            Taken::Yes
        };

        self.port.poll(64, &mut sink).unwrap();
        for (to, request) in answers {
            if input.flag() {
                let finish = Finish { request, status: wire::FETCHED.into(), reserved: 0.into() };
                self.send(to, wire::FINISH, finish.as_bytes());
            }
        }

        let remote = RemoteRegion { key: self.number(input), offset: self.number(input) };
        let length = 1 + input.below(ROOM as u32) as usize;
        let (peer, local, local_offset) = (input.below(3), self.destination, input.below(100) as usize);

        self.port.start_get(&Get { peer, remote, local, local_offset, length, cookie: 0 }).unwrap();
        self.port.poll_gets(8, &mut |_, _| {}).unwrap();
    }
}

/// Returns the header of the first packet of a message of `size` bytes.
fn first(input: &mut Input<'_>, size: u32) -> Vec<u8> {
    let (context, tag) = (input.below(3).into(), u64::from(input.below(4)).into());
    First { context, size: size.into(), tag }.as_bytes().to_vec()
}

//! Both layers on the emulated torus, in this process.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

mod network;

use std::{sync::Arc, time::Duration};

use nicforge_bgl::{
    Error,
    message::{Config, MessageLayer},
    packet::{Dimension, Direction, InjectionFifo, PacketDevice, Rank, Torus, Verdict},
};
use nicforge_driver::{Deadline, Device, Error as DriverError};
use nicforge_hwi::torus::{MAX_PAYLOAD, PacketHeader};
use nicforge_machine::{build::build, description::parse, in_process::LocalMachine};
use nicforge_nics::families;

use network::{Layout, Policy, Program, Random, filled, information, pattern};

const LIMIT: usize = 200_000;

fn machine(torus: [u8; 3], more: &str) -> Arc<LocalMachine> {
    let text = format!("name = \"t\"\n[[bgl]]\ntorus = {torus:?}\n{more}");
    LocalMachine::new(build(&parse(&text, "t.toml", &families()).unwrap()).unwrap().0)
}

fn device(machine: &Arc<LocalMachine>, node: u16, attachment: &str) -> Device {
    Device::from_backing(machine.open_named(&format!("bgl{node}.torus"), attachment).unwrap()).unwrap()
}

fn torus(machine: &Arc<LocalMachine>, rank: Rank) -> Torus {
    Torus::open(device(machine, rank.node(), &format!("core{}", rank.core()))).unwrap()
}

/// Lets the machine move on.
fn relax(torus: &Torus) {
    let mut relax = torus.device().new_relax();
    torus.device().relax(&mut relax).unwrap();
}

/// The message layers and programs of some ranks.
struct Job {
    ranks: Vec<Rank>,
    layers: Vec<MessageLayer<Torus>>,
    programs: Vec<Program>,
}

impl Job {
    fn new(machine: &Arc<LocalMachine>, ranks: impl IntoIterator<Item = Rank>) -> Self {
        let ranks: Vec<_> = ranks.into_iter().collect();
        let layer = |rank: &Rank| MessageLayer::init(torus(machine, *rank), Config::default()).unwrap();
        let layers = ranks.iter().map(layer).collect();
        let programs = ranks.iter().map(|_| Program::default()).collect();
        Self { ranks, layers, programs }
    }

    fn turn(&mut self) {
        for (layer, program) in self.layers.iter_mut().zip(&mut self.programs) {
            layer.advance(program).unwrap();
        }
        relax(self.layers[0].device());
    }

    fn run_until(&mut self, condition: impl Fn(&Self) -> bool) {
        for _ in 0..LIMIT {
            if condition(self) {
                return;
            }
            self.turn();
        }
        let statistics: Vec<_> = self.layers.iter().map(MessageLayer::statistics).collect();
        panic!("not after {LIMIT} turns: {statistics:?}");
    }
}

#[test]
fn device_of_another_kind_or_attachment_is_refused() {
    let machine = machine([2, 1, 1], "");
    let error = Torus::open(device(&machine, 0, "kernel")).unwrap_err();
    assert_eq!(error, Error::WrongDevice { found: "attachment 2 of a torus".to_owned() });
}

#[test]
fn place_is_read_from_the_mirror() {
    let machine = machine([2, 3, 4], "wrap = [true, false, true]\n");
    let rank = Rank::new(23, 1);
    let torus = torus(&machine, rank);
    let place = torus.place();
    assert_eq!((place.rank, place.coordinates, place.ranks()), (rank, [1, 2, 3], 48));
    assert_eq!((place.shape.last, place.shape.wraps), ([1, 2, 3], [true, false, true]));
    assert!(place.life % 2 == 1);
}

#[test]
fn injected_packets_arrive_with_their_payload() {
    let machine = machine([2, 2, 2], "");
    let (mut from, mut to) = (torus(&machine, Rank::new(0, 0)), torus(&machine, Rank::new(7, 1)));
    let header = PacketHeader { software: [7.into(), 8.into()], ..from.route(Rank::new(7, 1)).unwrap() };
    let sent: Vec<u8> = (0..MAX_PAYLOAD).map(|index| index as u8).collect();
    let pieces = [&sent[..5], &sent[5..]].into_iter();
    for (fifo, header) in
        [(InjectionFifo::Normal1, header), (InjectionFifo::Priority, header.high_priority())]
    {
        assert_eq!(from.inject(fifo, header, pieces.clone()), Ok(true));
    }
    from.publish().unwrap();

    let mut received = Vec::new();
    while received.len() < 2 {
        relax(&from);
        to.receive(|header, payload| {
            let mut bytes = vec![0; payload.len()];
            assert!(payload.copy_to(0, &mut bytes));
            received.push((header.software.map(|word| word.get()), bytes));
            Verdict::Taken
        })
        .unwrap();
    }
    assert!(received.len() == 2 && received.iter().all(|(words, bytes)| *words == [7, 8] && *bytes == sent));
    assert!(from.has_sent_all());
}

#[test]
fn deposit_line_reaches_each_node_of_the_line() {
    let machine = machine([4, 1, 1], "");
    let mut toruses: Vec<_> = (0..4).map(|node| torus(&machine, Rank::new(node, 0))).collect();
    let header = toruses[0].place().deposit_line(Dimension::X, Direction::Plus, 3, 0).unwrap();
    assert_eq!(toruses[0].send(header, [[9; 16].as_slice()].into_iter()), Ok(true));
    toruses[0].publish().unwrap();

    let mut received = [0; 4];
    for _ in 0..1000 {
        relax(&toruses[0]);
        for (torus, received) in toruses.iter_mut().zip(&mut received) {
            *received += torus.receive(|_, _| Verdict::Taken).unwrap();
        }
    }
    assert_eq!(received, [0, 1, 1, 1]);
}

#[test]
fn all_ranks_of_a_cube_exchange_messages_of_all_protocols() {
    let machine = machine([2, 2, 2], "");
    let mut job = Job::new(&machine, (0..16).map(Rank));
    let mut random = Random::new(3);
    let mut expected = vec![0; 16];
    let mut messages = Vec::new();
    for number in 0..400_u32 {
        let (from, to) = (random.below(16), random.below(16));
        let len = [random.below(240), random.below(2000), random.below(20_000), random.below(60_000)]
            [random.below(4)];
        let layout =
            [Layout::At(random.below(20)), Layout::Scattered(1 + random.below(300))][random.below(2)];
        job.programs[to].policies.insert(number, Policy::Receive(layout));
        let buffer = filled(Layout::At(random.below(20)), number, len);
        job.layers[from].postsend(Rank(to as u16), information(number), buffer).unwrap();
        expected[to] += 1;
        messages.push((number, len));
        if random.below(4) == 0 {
            job.turn();
        }
    }

    job.run_until(|job| {
        job.programs.iter().zip(&expected).all(|(program, count)| program.finished.len() == *count)
    });
    job.run_until(|job| job.layers.iter().all(MessageLayer::has_sent_all));
    for message in job.programs.iter().flat_map(|program| &program.finished) {
        let (number, len) =
            messages[messages.iter().position(|(number, _)| *number == message.number).unwrap()];
        assert_eq!((message.length, message.stored), (len, len));
        let bytes = message.bytes.as_ref().unwrap();
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == pattern(number, at)));
    }
    assert!(job.layers.iter().all(|layer| layer.statistics().malformed == 0));
}

#[test]
fn peer_that_dies_ends_its_messages_and_its_successor_gets_new_ones() {
    let machine = machine([2, 1, 1], "");
    for turns in [0, 1, 2, 3, 5, 8, 20] {
        let mut job = Job::new(&machine, [Rank::new(0, 0), Rank::new(1, 0)]);
        for (number, len) in (0..).zip([100, 900, 10_000, 300_000]) {
            job.layers[0]
                .postsend(job.ranks[1], information(number), filled(Layout::At(0), number, len))
                .unwrap();
        }
        for _ in 0..turns {
            job.turn();
        }

        // The process ends, and a new one starts.
        job.layers.pop();
        job.programs.pop();
        while job.layers[0].is_up(job.ranks[1]).unwrap() {
            job.turn();
        }
        let successor = Job::new(&machine, [Rank::new(1, 0)]);
        job.layers.extend(successor.layers);
        job.programs.extend(successor.programs);

        assert_eq!(job.layers[0].check_peers(&mut job.programs[0]), Ok(1), "after {turns} turns");
        let gone = Err(Error::PeerGone { rank: job.ranks[1].0 });
        assert_eq!((job.layers[0].sends_in_progress(), job.programs[0].sent.len()), (0, 4));
        assert_eq!(job.programs[0].sent[3].1, gone);

        for (number, len) in (10..).zip([100, 900, 10_000, 300_000]) {
            job.layers[0]
                .postsend(job.ranks[1], information(number), filled(Layout::At(0), number, len))
                .unwrap();
        }
        job.run_until(|job| job.programs[1].finished.len() == 4);
        assert!(job.programs[1].finished.iter().all(|finished| finished.number >= 10));
    }
}

#[test]
fn flood_at_a_receiver_that_never_decides_leaves_the_network_moving() {
    let machine = machine([2, 2, 1], "");
    let mut job = Job::new(&machine, (0..4).map(|node| Rank::new(node, 0)));
    job.programs[1] = Program::with(Policy::Never);
    for number in 0..300 {
        for from in [0, 2, 3] {
            let buffer = filled(Layout::At(0), number, [200, 900, 5000, 30_000][number as usize % 4]);
            job.layers[from].postsend(job.ranks[1], information(number), buffer).unwrap();
        }
        let buffer = filled(Layout::At(0), number, 5000);
        job.layers[0].postsend(job.ranks[3], information(number), buffer).unwrap();
    }
    job.run_until(|job| job.programs[3].finished.len() == 300);
    assert!(job.programs[1].finished.is_empty());
}

/// Waits for the next rank of a ring of ranks, sends it a message, and waits for one.
fn greet_next(machine: &Arc<LocalMachine>, node: u16, nodes: u16) -> Program {
    let torus = torus(machine, Rank::new(node, 0));
    let next = Rank::new((node + 1) % nodes, 0);
    let deadline = Deadline::after(Duration::from_secs(60));
    torus.wait_for_peer(next, deadline, None).unwrap();

    let mut layer = MessageLayer::init(torus, Config::default()).unwrap();
    let buffer = filled(Layout::At(0), node.into(), 100_000);
    layer.postsend(next, information(node.into()), buffer).unwrap();
    let mut program = Program::default();
    let is_done = |program: &Program| program.finished.len() == 1 && program.sent.len() == 1;
    layer.wait_until(&mut program, deadline, None, is_done).unwrap();
    program
}

#[test]
fn processes_of_a_ring_wait_for_each_other() {
    let machine = machine([4, 1, 1], "");
    std::thread::scope(|scope| {
        let nodes: Vec<_> = (0..4)
            .map(|node| {
                scope.spawn({
                    let machine = &machine;
                    move || greet_next(machine, node, 4)
                })
            })
            .collect();

        for (node, thread) in (0..4).zip(nodes) {
            let program = thread.join().unwrap();
            assert_eq!((program.numbers(), program.errors()), (vec![(node + 3) % 4], 0));
        }
    });
}

#[test]
fn wait_ends_at_its_deadline() {
    let machine = machine([2, 1, 1], "");
    let mut layer = MessageLayer::init(torus(&machine, Rank::new(0, 0)), Config::default()).unwrap();
    let deadline = Deadline::after(Duration::from_millis(5));
    let result = layer.wait_until(&mut Program::default(), deadline, None, |_| false);
    assert!(matches!(result, Err(Error::Device(DriverError::Timeout { what: "a message", .. }))));
}

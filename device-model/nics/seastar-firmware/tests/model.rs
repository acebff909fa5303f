//! The flow control of `protocol` under a model checker: all interleavings of two nodes, the two
//! virtual channels between them, drops, and restarts.
//!
//! The model drives the same transition functions as the firmware. It adds the network, the DMA
//! engines and the restarts. The reference is the book's chapter *The SeaStar's flow control*.

use std::collections::VecDeque;

use nicforge_seastar_firmware::protocol::{
    Answer, Flight, Flights, Outcome, Reaction, Receiver, Response, Sender, Sequence, Slot,
};
use stateright::{Checker, Model, Property};

/// Modulus of the sequence numbers.
const MODULUS: u32 = 5;
/// Maximum number of messages in flight between a pair of nodes.
const WINDOW: u16 = 2;
/// Maximum number of messages that a node sends.
const MESSAGES: usize = 4;

type Number = Sequence<MODULUS>;
type Message = u8;

/// The variant that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// Incarnations are separated, as the firmware does it.
    Fenced,
    /// The paper's protocol: nothing tells incarnations apart but the reserved number.
    Paper,
    /// As `Fenced`; a receiver that expects the initial number takes any other, as in the paper.
    LooseInitial,
    /// A mutant: an acknowledgement counts for the first message in flight, whatever its number.
    UncheckedAck,
    /// A mutant: each negative acknowledgement repeats its message.
    RepeatForEach,
    /// A mutant: the last message in flight is repeated first.
    RepeatLastFirst,
    /// A mutant: the receiver forgets what it expects when it drops a second message.
    ForgetfulReceiver,
    /// A mutant: a message is repeated while the transmit DMA engine still has it.
    RepeatUnsent,
}

/// The protocol's variant and the bounds of a check.
#[derive(Clone, Debug)]
struct Network {
    variant: Variant,
    /// Whether each message of a node is long, in the order in which it is sent.
    messages: [&'static [bool]; 2],
    drops: u8,
    /// Restarts of each node.
    restarts: [u8; 2],
    /// Time-outs of node 0, although node 1 is only slow.
    time_outs: u8,
    /// Whether short messages may be acknowledged implicitly.
    implicit: bool,
    /// Messages of node 0 that need an answer of the target's software, as a bit mask: they are
    /// never implicit, and the target may refuse them although they are short.
    gets: u8,
    /// Whether a transmission starts as soon as it can: fewer interleavings for larger bounds.
    starts_at_once: bool,
}

/// Contents of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Body {
    Header {
        message: Message,
        sequence: Number,
        long: bool,
        resynchronizes: bool,
        implicit: bool,
    },
    Response {
        response: Response,
        sequence: Number,
    },
    /// An incarnation of the sender has ended.
    Down,
    /// An incarnation of the sender has begun.
    Up,
}

/// A packet in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Packet {
    body: Body,
    /// The sender's incarnation.
    incarnation: u8,
    /// The target's incarnation for which the packet is meant. 0: none.
    target_incarnation: u8,
    /// The sender's incarnation has ended before all data were read: the rest does not come.
    cut: bool,
}

/// A packet in the queue of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Arrived {
    packet: Packet,
    /// The hardware had no stream for it, or the target's software no room.
    dropped: bool,
}

/// A message that is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Deposit {
    message: Message,
    cut: bool,
}

/// How a message has ended for its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum End {
    Taken,
    Failed,
    /// The sender itself has restarted.
    Forgotten,
}

/// A breach of safety.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Violation {
    /// A message was taken twice.
    Twice,
    /// A message was taken after a later one of the same sender.
    Order,
    /// The sender completes a message that was not taken.
    FalseCompletion,
    /// The sender completes a message that its DMA engine still reads.
    EarlyCompletion,
    /// A message was taken that was meant for an earlier incarnation, or comes from one that has
    /// ended.
    EarlierIncarnation,
    /// A message was failed although no node has restarted and no time-out has passed.
    NeedlessFailure,
    /// An implicitly acknowledged message was refused, which its sender does not repeat.
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Lines([Option<Flight<MODULUS>>; MESSAGES]);

impl Flights<MODULUS> for Lines {
    fn flight(&self, slot: Slot) -> Option<&Flight<MODULUS>> {
        self.0.get(usize::from(slot.0))?.as_ref()
    }

    fn flight_mut(&mut self, slot: Slot) -> Option<&mut Flight<MODULUS>> {
        self.0.get_mut(usize::from(slot.0))?.as_mut()
    }

    fn find(&self, sequence: Number) -> Option<Slot> {
        let place =
            self.0.iter().position(|flight| flight.is_some_and(|flight| flight.sequence() == sequence));
        place.map(|place| Slot(place as u16))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    incarnation: u8,
    booted: bool,
    /// The peer's incarnation as far as this node sees. 0: none.
    peer_incarnation: u8,

    next_number: Number,
    sender: Sender,
    send_queues: Lines,
    /// Messages in the transmit DMA engine, in its order.
    engine: VecDeque<Message>,
    /// Number of messages that were submitted so far.
    submitted: u8,
    resynchronize: bool,
    ends: [Option<End>; MESSAGES],

    receiver: Receiver<MODULUS>,
    inbox: VecDeque<Arrived>,
    deposits: Vec<Deposit>,
    /// Messages of the peer that were taken, as a bit mask.
    taken: u8,
    restarts_left: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    nodes: [Node; 2],
    /// Packets to a node, on each virtual channel.
    wires: [[VecDeque<Packet>; 2]; 2],
    drops_left: u8,
    time_outs_left: u8,
    violation: Option<Violation>,
    /// A message was complete at the sender before its data were in the receiver's memory.
    completed_before_deposit: bool,
}

/// Virtual channels.
const DATA: usize = 0;
const CONTROL: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The node's software submits its next message.
    Submit(usize),
    /// The node passes its next transmission to the DMA engine. The header is in the network.
    Start(usize),
    /// The DMA engine has sent all of a message.
    Transmitted(usize),
    /// A packet comes to a node on a virtual channel, and joins the queue of both.
    Arrive { node: usize, channel: usize },
    /// The same, but the demultiplexer is full, or a table that a get needs.
    ArriveFull(usize),
    /// The node handles the packet at the head of its queue.
    Handle(usize),
    /// All data of a message are in memory, or were cut.
    Deposit { node: usize, place: usize },
    /// The node's incarnation ends. With `loses`, its queue of packets is lost, and if incarnations
    /// are separated also what it has sent.
    End { node: usize, loses: bool },
    /// The node boots.
    Boot(usize),
    /// Node 0 gives up its messages in flight.
    TimeOut,
}

impl Network {
    fn is_fenced(&self) -> bool {
        self.variant != Variant::Paper
    }

    /// Returns whether a message of a node needs an answer of the target's software.
    fn is_get(&self, node: usize, message: Message) -> bool {
        node == 0 && self.gets & 1 << message != 0
    }

    /// Sends a packet to a node.
    fn send(&self, state: &mut State, node: usize, channel: usize, body: Body) {
        let sender = &state.nodes[1 - node];
        let target_incarnation = if self.is_fenced() { sender.peer_incarnation } else { 0 };
        let packet = Packet { body, incarnation: sender.incarnation, target_incarnation, cut: false };
        state.wires[node][channel].push_back(packet);
    }

    /// Tells the peer that an incarnation of a node has begun or ended, after all that it has sent.
    fn announce(&self, state: &mut State, node: usize, body: Body) {
        if self.is_fenced() {
            for channel in [DATA, CONTROL] {
                self.send(state, 1 - node, channel, body);
            }
        }
    }

    /// Returns the message that a node transmits next.
    fn next(&self, node: &Node) -> Option<Slot> {
        let mut sender = node.sender;
        let slot = sender.next_to_transmit(&node.send_queues);
        match self.variant {
            Variant::RepeatLastFirst if slot.is_some() => {
                let last = node.send_queues.0.iter().rposition(Option::is_some)?;
                let flight = node.send_queues.0[last]?;
                (!flight.is_in_engine()).then_some(Slot(last as u16))
            }
            Variant::RepeatUnsent if slot.is_none() => {
                let mut send_queues = node.send_queues.clone();
                for place in 0..MESSAGES as u16 {
                    sender.transmitted(&mut send_queues, Slot(place));
                }
                sender.next_to_transmit(&send_queues)
            }
            _ => slot,
        }
    }

    /// Passes a node's next transmission to its DMA engine.
    fn start(&self, state: &mut State, node: usize) -> Option<()> {
        let slot = self.next(&state.nodes[node])?;
        let node_state = &mut state.nodes[node];
        node_state.sender.begin_transmission(&mut node_state.send_queues, slot);
        node_state.engine.push_back(slot.0 as Message);

        let flight = node_state.send_queues.flight(slot)?;
        let body = Body::Header {
            message: slot.0 as Message,
            sequence: flight.sequence(),
            long: self.messages[node][usize::from(slot.0)],
            resynchronizes: flight.resynchronizes(),
            implicit: flight.is_implicit(),
        };
        self.send(state, 1 - node, DATA, body);
        Some(())
    }

    /// Takes the messages that have ended out of a node's send queue.
    fn collect(&self, state: &mut State, node: usize) {
        let restarted = (0..2).any(|node| state.nodes[node].restarts_left < self.restarts[node]);
        let undisturbed = !restarted && state.time_outs_left == self.time_outs;
        let peer = state.nodes[1 - node].clone();
        let node_state = &mut state.nodes[node];

        while let Some((slot, outcome)) = node_state.sender.pop_ended(&mut node_state.send_queues) {
            let message = slot.0 as Message;
            node_state.send_queues.0[usize::from(slot.0)] = None;
            let was_taken = peer.taken & 1 << message != 0;

            if node_state.engine.contains(&message) {
                state.violation = Some(Violation::EarlyCompletion);
            }
            let end = match outcome {
                Outcome::Taken => End::Taken,
                Outcome::Failed => End::Failed,
            };
            // An implicitly acknowledged message is complete as soon as it is in the network.
            if end == End::Taken && !was_taken && !self.implicit {
                state.violation = Some(Violation::FalseCompletion);
            }
            if end == End::Failed && undisturbed {
                state.violation = Some(Violation::NeedlessFailure);
            }
            state.completed_before_deposit |=
                end == End::Taken && peer.deposits.iter().any(|deposit| deposit.message == message);
            node_state.ends[usize::from(slot.0)] = Some(end);
        }
    }

    /// Handles a message.
    fn handle_message(&self, state: &mut State, node: usize, arrived: Arrived) {
        let Body::Header { message, sequence, long, resynchronizes, implicit } = arrived.packet.body else {
            return;
        };
        let packet = arrived.packet;
        let sender_incarnation = state.nodes[1 - node].incarnation;
        let node_state = &mut state.nodes[node];

        let stale = self.is_fenced() && packet.target_incarnation != node_state.incarnation;
        let answer = if !node_state.booted || stale {
            Answer::PrebootAck
        } else if arrived.dropped {
            if self.variant == Variant::ForgetfulReceiver {
                node_state.receiver.forget();
            }
            node_state.receiver.judge_dropped(sequence, resynchronizes).answer
        } else {
            let waits_for_initial = node_state.receiver.expected == Some(Number::INITIAL);
            if matches!(self.variant, Variant::LooseInitial) && waits_for_initial {
                node_state.receiver.forget();
            }
            node_state.receiver.judge_header(sequence, resynchronizes).answer
        };

        if matches!(answer, Answer::Ack | Answer::FirstPostbootAck) {
            let ended =
                packet.incarnation < sender_incarnation && node_state.peer_incarnation != packet.incarnation;
            if node_state.taken & 1 << message != 0 {
                state.violation = Some(Violation::Twice);
            } else if node_state.taken >> message != 0 {
                state.violation = Some(Violation::Order);
            } else if self.is_fenced() && ended {
                state.violation = Some(Violation::EarlierIncarnation);
            }
            node_state.taken |= 1 << message;
            if long {
                node_state.deposits.push(Deposit { message, cut: packet.cut });
            }
        }

        let response = match answer {
            Answer::Ack => Response::Ack,
            Answer::Nack => Response::Nack,
            Answer::PrebootAck => Response::PrebootAck,
            Answer::FirstPostbootAck => Response::FirstPostbootAck,
        };
        if !implicit {
            self.send(state, 1 - node, CONTROL, Body::Response { response, sequence });
        } else if answer == Answer::Nack {
            state.violation = Some(Violation::Lost);
        }
    }

    /// Handles a response.
    fn handle_response(&self, state: &mut State, node: usize, packet: Packet) {
        let Body::Response { response, sequence } = packet.body else { return };
        let node_state = &mut state.nodes[node];
        let stale = self.is_fenced() && packet.target_incarnation != node_state.incarnation;
        if !node_state.booted || stale {
            return;
        }

        let first =
            node_state.send_queues.0.iter().flatten().find(|flight| !flight.is_taken()).map(Flight::sequence);
        let sequence = match (self.variant, response, first) {
            (Variant::UncheckedAck, Response::Ack, Some(first)) => first,
            _ => sequence,
        };
        let mut reaction = node_state.sender.respond(&mut node_state.send_queues, response, sequence);
        for _ in 0..2 {
            if self.variant == Variant::RepeatForEach
                && response == Response::Nack
                && reaction == Reaction::Ignored
            {
                reaction = node_state.sender.respond(&mut node_state.send_queues, response, sequence);
            }
        }
    }

    fn end_incarnation(&self, state: &mut State, node: usize, loses: bool) {
        // Data that the DMA engine has not read yet are lost.
        let engine = core::mem::take(&mut state.nodes[node].engine);
        let is_cut = |packet: &Packet| matches!(packet.body, Body::Header { message, .. } if engine.contains(&message));
        for packet in &mut state.wires[1 - node][DATA] {
            packet.cut |= is_cut(packet);
        }
        for arrived in &mut state.nodes[1 - node].inbox {
            arrived.packet.cut |= is_cut(&arrived.packet);
        }
        for deposit in &mut state.nodes[1 - node].deposits {
            deposit.cut |= engine.contains(&deposit.message);
        }

        // The other node's device discards packets of an incarnation that has ended.
        if loses && self.is_fenced() {
            for wire in &mut state.wires[1 - node] {
                wire.retain(|packet| matches!(packet.body, Body::Down | Body::Up));
            }
        }
        self.announce(state, node, Body::Down);
        let node_state = &mut state.nodes[node];
        node_state.restarts_left -= 1;
        node_state.booted = false;
        node_state.sender = Sender::default();
        node_state.send_queues = Lines::default();
        node_state.resynchronize = false;
        node_state.receiver = Receiver::default();
        node_state.deposits.clear();
        node_state.next_number = Number::INITIAL;
        for message in 0..usize::from(node_state.submitted) {
            node_state.ends[message].get_or_insert(End::Forgotten);
        }

        if loses {
            // The device still knows the incarnations of its peers.
            for arrived in node_state.inbox.drain(..) {
                match arrived.packet.body {
                    Body::Down => node_state.peer_incarnation = 0,
                    Body::Up => node_state.peer_incarnation = arrived.packet.incarnation,
                    _ => {}
                }
            }
        }
    }

    /// Returns whether nothing is left to do for the protocol.
    fn is_finished(&self, state: &State) -> bool {
        let sent = |node: usize| {
            let count = self.messages[node].len();
            state.nodes[node].ends[..count].iter().all(Option::is_some)
        };
        // A sender that has given up messages resynchronises the receiver with its next message.
        let normal = (0..2)
            .all(|node| state.nodes[node].receiver.expected.is_none() || state.nodes[1 - node].resynchronize);
        sent(0) && sent(1) && normal && state.nodes.iter().all(|node| node.sender == Sender::default())
    }
}

impl Model for Network {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let node = |restarts_left| Node {
            incarnation: 1,
            booted: true,
            peer_incarnation: 1,
            next_number: Number::INITIAL,
            sender: Sender::default(),
            send_queues: Lines::default(),
            engine: VecDeque::new(),
            submitted: 0,
            resynchronize: false,
            ends: [None; MESSAGES],
            receiver: Receiver::default(),
            inbox: VecDeque::new(),
            deposits: Vec::new(),
            taken: 0,
            restarts_left,
        };
        vec![State {
            nodes: self.restarts.map(node),
            wires: Default::default(),
            drops_left: self.drops,
            time_outs_left: self.time_outs,
            violation: None,
            completed_before_deposit: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violation.is_some() {
            return;
        }
        for (node, node_state) in state.nodes.iter().enumerate() {
            let is_left = usize::from(node_state.submitted) < self.messages[node].len();
            if node_state.booted && is_left && node_state.sender.count() < WINDOW {
                actions.push(Action::Submit(node));
            }
            if node_state.booted && !self.starts_at_once && self.next(node_state).is_some() {
                actions.push(Action::Start(node));
            }
            if !node_state.engine.is_empty() {
                actions.push(Action::Transmitted(node));
            }

            let heads = [DATA, CONTROL].map(|channel| state.wires[node][channel].front());
            for (channel, head) in heads.into_iter().enumerate() {
                match head.map(|packet| packet.body) {
                    // A change of incarnations is seen after all packets of both channels.
                    Some(Body::Down | Body::Up) if channel == DATA && heads[DATA] == heads[CONTROL] => {
                        actions.push(Action::Arrive { node, channel });
                    }
                    Some(Body::Down | Body::Up) => {}
                    Some(Body::Header { message, long, .. }) => {
                        actions.push(Action::Arrive { node, channel });
                        let may_be_refused = long || self.is_get(1 - node, message);
                        if may_be_refused && state.drops_left > 0 {
                            actions.push(Action::ArriveFull(node));
                        }
                    }
                    Some(Body::Response { .. }) => actions.push(Action::Arrive { node, channel }),
                    None => {}
                }
            }
            if !node_state.inbox.is_empty() {
                actions.push(Action::Handle(node));
            }

            for (place, deposit) in node_state.deposits.iter().enumerate() {
                if deposit.cut || !state.nodes[1 - node].engine.contains(&deposit.message) {
                    actions.push(Action::Deposit { node, place });
                }
            }
            if node_state.booted && node_state.restarts_left > 0 {
                actions.push(Action::End { node, loses: true });
                if !node_state.inbox.is_empty() {
                    actions.push(Action::End { node, loses: false });
                }
            }
            if !node_state.booted {
                actions.push(Action::Boot(node));
            }
        }
        if state.time_outs_left > 0 && state.nodes[0].sender.count() > 0 {
            actions.push(Action::TimeOut);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Submit(node) => {
                let node_state = &mut state.nodes[node];
                let message = node_state.submitted;
                let long = self.messages[node][usize::from(message)];
                let may_be_implicit = self.implicit && !self.is_get(node, message);
                let resynchronize = core::mem::take(&mut node_state.resynchronize);
                node_state.send_queues.0[usize::from(message)] =
                    Some(Flight::new(node_state.next_number, long));
                node_state.sender.push(
                    &mut node_state.send_queues,
                    Slot(message.into()),
                    may_be_implicit,
                    resynchronize,
                );
                node_state.next_number = node_state.next_number.next();
                node_state.submitted += 1;
            }
            Action::Start(node) => {
                self.start(&mut state, node)?;
            }
            Action::Transmitted(node) => {
                let node_state = &mut state.nodes[node];
                let message = node_state.engine.pop_front()?;
                node_state.sender.transmitted(&mut node_state.send_queues, Slot(message.into()));
                self.collect(&mut state, node);
            }
            Action::Arrive { node, channel } => {
                let packet = state.wires[node][channel].pop_front()?;
                if matches!(packet.body, Body::Down | Body::Up) {
                    state.wires[node][1 - channel].pop_front()?;
                }
                state.nodes[node].inbox.push_back(Arrived { packet, dropped: false });
            }
            Action::ArriveFull(node) => {
                let packet = state.wires[node][DATA].pop_front()?;
                state.drops_left -= 1;
                state.nodes[node].inbox.push_back(Arrived { packet, dropped: true });
            }
            Action::Handle(node) => {
                let arrived = state.nodes[node].inbox.pop_front()?;
                let node_state = &mut state.nodes[node];
                match arrived.packet.body {
                    Body::Header { .. } => self.handle_message(&mut state, node, arrived),
                    Body::Response { .. } => self.handle_response(&mut state, node, arrived.packet),
                    Body::Down => {
                        node_state.peer_incarnation = 0;
                        node_state.sender.fail_all(&mut node_state.send_queues);
                        node_state.receiver.forget();
                    }
                    Body::Up => node_state.peer_incarnation = arrived.packet.incarnation,
                }
                self.collect(&mut state, node);
            }
            Action::Deposit { node, place } => {
                state.nodes[node].deposits.remove(place);
            }
            Action::End { node, loses } => self.end_incarnation(&mut state, node, loses),
            Action::Boot(node) => {
                state.nodes[node].booted = true;
                state.nodes[node].incarnation += 1;
                self.announce(&mut state, node, Body::Up);
            }
            Action::TimeOut => {
                let node_state = &mut state.nodes[0];
                state.time_outs_left -= 1;
                node_state.sender.fail_all(&mut node_state.send_queues);
                node_state.resynchronize = true;
                self.collect(&mut state, 0);
            }
        }

        if self.starts_at_once {
            for node in 0..2 {
                while state.nodes[node].booted && self.start(&mut state, node).is_some() {}
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("safe", |_: &Self, state: &State| state.violation.is_none()),
            Property::always("never stuck", |network: &Self, state: &State| {
                let mut actions = Vec::new();
                network.actions(state, &mut actions);
                let ends = |action: &Action| matches!(action, Action::End { .. } | Action::TimeOut);
                state.violation.is_some() || network.is_finished(state) || !actions.iter().all(ends)
            }),
            Property::sometimes("finished", |network: &Self, state: &State| network.is_finished(state)),
            Property::sometimes("complete before the deposit", |_: &Self, state: &State| {
                state.completed_before_deposit
            }),
        ]
    }
}

const LONG: bool = true;
const SHORT: bool = false;

/// Four messages, one of them in the other direction, and two drops.
fn network(variant: Variant) -> Network {
    Network {
        variant,
        messages: [&[LONG, SHORT, LONG], &[LONG]],
        drops: 2,
        restarts: [0, 0],
        time_outs: 0,
        implicit: false,
        gets: 0,
        starts_at_once: false,
    }
}

/// Checks all states of a network. Prints their number, and the counterexamples.
fn check(name: &str, network: &Network) -> impl Checker<Network> + use<> {
    let start = std::time::Instant::now();
    let checker = network.clone().checker().threads(1).spawn_bfs().join();
    println!(
        "{name}: {} states, {} transitions, depth {}, {:.1?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        start.elapsed()
    );

    for property in ["safe", "never stuck"] {
        if let Some(path) = checker.discovery(property) {
            println!("  not {property} ({:?}):", path.last_state().violation);
            for action in path.into_actions() {
                println!("    {action:?}");
            }
        }
    }
    checker
}

/// Checks that a network holds all properties, and can finish.
fn check_good(name: &str, network: &Network) {
    let checker = check(name, network);
    checker.assert_no_discovery("safe");
    checker.assert_no_discovery("never stuck");
    checker.assert_any_discovery("finished");
}

/// Checks that a network can violate safety. Returns how, and the steps.
fn check_bad(name: &str, network: &Network) -> (Option<Violation>, Vec<Action>) {
    let path = check(name, network).assert_any_discovery("safe");
    (path.last_state().violation, path.into_actions())
}

#[test]
fn drops_without_restarts_break_no_property() {
    let bounds = network(Variant::Fenced);

    check_good("no restart", &bounds);
    check_good("no restart, as in the paper", &Network { variant: Variant::Paper, ..bounds });
}

#[test]
fn sender_completes_before_the_deposit() {
    let checker = check("completion", &network(Variant::Fenced));

    checker.assert_any_discovery("complete before the deposit");
}

#[test]
fn restarts_break_no_property_if_incarnations_are_separated() {
    let bounds = Network { restarts: [1, 1], starts_at_once: true, ..network(Variant::Fenced) };

    check_good("restarts", &Network { messages: [&[LONG, SHORT, LONG, LONG], &[]], ..bounds.clone() });
    check_good("restarts, both directions", &Network { messages: [&[LONG], &[LONG]], ..bounds });
}

#[test]
fn time_out_of_a_slow_node_breaks_no_property() {
    let bounds =
        Network { time_outs: 1, messages: [&[LONG, SHORT, LONG, LONG], &[]], ..network(Variant::Fenced) };

    check_good("time-out", &bounds);
}

#[test]
fn implicit_acknowledgements_break_no_property_within_an_incarnation() {
    let messages: [&[bool]; 2] = [&[SHORT, LONG, SHORT, SHORT], &[]];

    check_good("implicit", &Network { implicit: true, messages, ..network(Variant::Fenced) });

    // The first two messages are gets: short ones that the target may refuse.
    let messages: [&[bool]; 2] = [&[SHORT, SHORT, SHORT, SHORT], &[]];
    let gets = Network { implicit: true, gets: 0b0011, messages, ..network(Variant::Fenced) };
    check_good("implicit, with gets", &gets);
}

#[test]
fn paper_completes_a_lost_message_after_a_restart_of_the_sender() {
    let messages: [&[bool]; 2] = [&[LONG, LONG], &[]];
    let bounds = Network { restarts: [1, 0], drops: 1, messages, ..network(Variant::Paper) };

    let (violation, _) = check_bad("paper, the sender restarts", &bounds);
    assert_eq!(violation, Some(Violation::FalseCompletion));
    check_good("fenced, the sender restarts", &Network { variant: Variant::Fenced, ..bounds });
}

#[test]
fn paper_breaks_the_order_after_a_restart_of_the_receiver() {
    let messages: [&[bool]; 2] = [&[LONG, LONG], &[]];
    let bounds = Network { restarts: [0, 1], drops: 1, messages, ..network(Variant::Paper) };

    let (violation, _) = check_bad("paper, the receiver restarts", &bounds);
    assert_eq!(violation, Some(Violation::Order));
    check_good("fenced, the receiver restarts", &Network { variant: Variant::Fenced, ..bounds });
}

#[test]
fn paper_rule_of_the_initial_number_breaks_the_order() {
    let messages: [&[bool]; 2] = [&[LONG, SHORT], &[]];
    let bounds = Network { drops: 1, messages, ..network(Variant::LooseInitial) };

    let (violation, _) = check_bad("initial number", &bounds);
    assert_eq!(violation, Some(Violation::Order));
}

#[test]
fn mutants_are_caught() {
    let messages: [&[bool]; 2] = [&[LONG, LONG, LONG], &[]];
    let mutant = |variant| Network { messages, ..network(variant) };

    check_bad("acknowledgement without check", &Network { time_outs: 1, ..mutant(Variant::UncheckedAck) });
    check_bad("repetition for each refusal", &mutant(Variant::RepeatForEach));
    check_bad("last one repeated first", &mutant(Variant::RepeatLastFirst));
    check_bad("forgetful receiver", &mutant(Variant::ForgetfulReceiver));
    check_bad("repetition of an unsent message", &mutant(Variant::RepeatUnsent));
}

//! Families and devices of a user's own: in machine files, in process, on sockets, and in a program
//! of their own.
#![allow(clippy::unwrap_used, reason = "all of this file is tests")]

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use nicforge::{
    cli::{EventLoop, ServeOptions},
    serve::Served,
};
use nicforge_core::machine::Machine;
use nicforge_driver::{Deadline, Device, OpenOptions};
use nicforge_family::{DeviceSource, LinkSpec, Plan};
use nicforge_machine::{
    build::{Built, build},
    description::parse,
    in_process::LocalMachine,
};
use nicforge_tests::own_devices::{self, HUB, Hub, LAST, RECEIVED, SEED, SEND, STATION, Station, families};

/// The longest wait for anything in these tests.
const LIMIT: Duration = Duration::from_secs(60);

/// A machine file of two stations at a hub, in three nodes.
const HUB_AND_STATIONS: &str = r#"
name = "hub"
[[function]]
name = "hub0"
kind = "hub"
[[function]]
name = "nic0"
kind = "station"
seed = 7
[[function]]
name = "nic1"
node = "host1"
kind = "station"
seed = 8
[[link]]
a = "nic0:0"
b = "hub0:0"
[[link]]
a = "host1.nic1:0"
b = "hub0:5"
packet_bytes = 64
credits = 2
"#;

/// Returns the plan of an accepted machine file.
fn plan(text: &str) -> Plan {
    parse(text, "m.toml", &families()).unwrap()
}

/// Returns the error of a refused machine file.
fn error(text: &str) -> String {
    parse(text, "m.toml", &families()).unwrap_err().to_string()
}

/// Returns the name, the role and the rank of each node.
fn names_roles_and_ranks(plan: &Plan) -> Vec<(&str, &str, u32)> {
    plan.nodes().iter().map(|node| (node.name.as_str(), node.role.name(), node.rank)).collect()
}

/// Sends a word from one station, and waits until the other has it.
fn send(from: &Device, to: &Device, value: u64) {
    from.bar(0).unwrap().write64(SEND, value).unwrap();
    let registers = to.bar(0).unwrap();
    to.wait_until(Deadline::after(LIMIT), None, || registers.read64(LAST) == Ok(value)).unwrap();
}

#[test]
fn sections_of_a_family_become_nodes_in_its_roles() {
    let plan = plan("name = \"m\"\n[[star]]\nstations = 2\n[[star]]\nstations = 1\n");

    let expected = [
        ("hub0", "hub", 0),
        ("star0-0", "station", 0),
        ("star0-1", "station", 1),
        ("hub1", "hub", 1),
        ("star1-0", "station", 2),
    ];
    assert_eq!(names_roles_and_ranks(&plan), expected);
    assert_eq!(plan.links().len(), 3);
    assert_eq!(plan.nodes()[4].environment, [("STAR".to_owned(), "1".to_owned())]);
}

#[test]
fn a_family_and_a_kind_refuse_values_with_their_line() {
    let machine = "name = \"m\"\n[[star]]\nstations = 1\n";
    let cases = [
        ("name = \"m\"\n[[star]]\nstations = 61\n", "m.toml, line 3: stations is 61; expected 1 to 60"),
        ("name = \"m\"\n[[star]]\n\nsize = 1\n", "m.toml, line 4: unknown field `size`"),
        ("name = \"m\"\n[[star]]\n", "m.toml, line 2: missing field `stations`"),
        ("name = \"m\"\n[star]\nstations = 1\n", "m.toml, line 2: expected tables [[star]]"),
        (&format!("{machine}[star.link]\ncredits = 0\n"), "m.toml, line 5: credits is 0; expected 1 to 1024"),
        (
            &format!("{machine}[[function]]\nname = \"a\"\nkind = \"station\"\nseed = 0\n"),
            "m.toml, line 7: seed is 0; expected 1 to 1000",
        ),
        (
            &format!("{machine}[[function]]\nname = \"a\"\nkind = \"station\"\n"),
            "m.toml, line 4: missing field `seed`",
        ),
        (
            &format!("{machine}[[function]]\nname = \"a\"\nkind = \"hub\"\nseed = 1\n"),
            "m.toml, line 7: unknown field `seed`",
        ),
        (
            &format!("{machine}[[function]]\nname = \"a\"\nkind = \"slot-fifo\"\n"),
            "m.toml, line 6: kind is slot-fifo; expected one of station, hub",
        ),
        (
            &format!("{machine}[[function]]\nname = \"hub0\"\nkind = \"hub\"\n"),
            "m.toml, line 5: name is hub0; expected a name that no other node has",
        ),
        (
            &format!("{machine}[[function]]\nname = \"card\"\nnode = \"star0-0\"\nkind = \"hub\"\n"),
            "m.toml, line 5: name is card; expected a name that no other function of node star0-0 has",
        ),
        (
            &format!("{machine}\n[[pset]]\ncompute_nodes = 1\n"),
            "m.toml, line 5: unknown field `pset`, expected one of `name`, `star`, `function`, `link`",
        ),
    ];

    for (text, expected) in cases {
        let message = error(text);
        assert!(message.starts_with(expected), "{message}\ninstead of\n{expected}");
    }
}

#[test]
fn a_link_between_impossible_ends_is_refused_with_its_line() {
    let ends = |a: &str, b: &str| {
        error(&format!("{HUB_AND_STATIONS}[[link]]\na = \"{a}\"\n# b follows\nb = \"{b}\"\n"))
    };
    let (line_of_a, line_of_b) = ("m.toml, line 24: ", "m.toml, line 26: ");

    let message = ends("nic9:0", "hub0:1");
    let names = "expected one of this machine: hub0, nic0, host1.nic1";
    assert_eq!(message, format!("{line_of_a}the function is nic9; {names}"));
    assert!(ends("hub0:1", "host1:0").starts_with(&format!("{line_of_b}the function is host1;")));

    let message = ends("hub0:1", "nic0:0");
    assert_eq!(message, format!("{line_of_b}a port is nic0:0; expected a port that has no link yet"));
    let message = ends("hub0:1", "hub0:1");
    assert_eq!(
        message,
        format!("{line_of_b}the other end is hub0:1; expected another port than the first end")
    );

    let message = ends("hub0:64", "hub0:1");
    assert_eq!(message, format!("{line_of_a}a port is hub0:64; expected a number of 0 to 63 behind the ':'"));
    for end in ["hub0", "hub0:", "hub0:x", "hub0:256", ""] {
        assert!(
            ends(end, "hub0:1").starts_with(&format!("{line_of_a}a is {end}; expected a function's name"))
        );
    }
}

#[test]
fn a_links_values_are_checked_and_reach_the_plan() {
    let link =
        |values: &str| format!("{HUB_AND_STATIONS}[[link]]\na = \"hub0:1\"\nb = \"hub0:2\"\n{values}\n");
    let cases = [
        ("channels = 17", "channels is 17; expected 1 to 16"),
        ("credits = 0", "credits is 0; expected 1 to 1024"),
        ("packet_bytes = 65537", "packet_bytes is 65537; expected 1 to 65536"),
        ("cut_through_bytes = 0", "cut_through_bytes is 0; expected 1 to 65536"),
        ("delay_ns = 1000000001", "delay_ns is 1000000001; expected 0 to 1000000000"),
        ("gbit_s = -1.0", "gbit_s is -1; expected 0 (no limit), or 1e-9 to 10000"),
        ("width = 4", "unknown field `width`"),
    ];
    for (values, expected) in cases {
        let message = error(&link(values));
        assert!(message.starts_with(&format!("m.toml, line 26: {expected}")), "{message}");
    }

    let cutting = plan(&link("cut_through_bytes = 32"));
    assert_eq!(cutting.links()[2].link.cut_through, Some(32));
    let plan = plan(&link("channels = 2\ndelay_ns = 30\ngbit_s = 2.5\ncredits = 9\npacket_bytes = 100"));
    let added = &plan.links()[2].link;
    assert_eq!((added.delay, added.bits_per_second), (30, 2_500_000_000));
    assert_eq!((added.credits.as_slice(), added.max_packet), ([9, 9].as_slice(), 100));
    assert_eq!(added.cut_through, None);
    let defaults = &plan.links()[0].link;
    assert_eq!((defaults.credits.as_slice(), defaults.max_packet), ([16].as_slice(), 2048));
}

#[test]
fn stations_talk_through_a_hub_that_no_client_reaches() {
    let (machine, built) = build(&plan(HUB_AND_STATIONS)).unwrap();
    assert_eq!(built.node("hub0").unwrap().attachments.len(), 0);

    let machine = LocalMachine::new(machine);
    let open = |name| Device::from_backing(machine.open_named(name, "user0").unwrap()).unwrap();
    let (first, second) = (open("nic0"), open("host1.nic1"));
    assert_eq!(second.bar(0).unwrap().read64(SEED), Ok(8));

    send(&first, &second, 41);
    send(&second, &first, 42);

    assert_eq!(first.bar(0).unwrap().read64(RECEIVED), Ok(1));
}

#[test]
fn a_node_with_two_functions_is_served_and_its_parts_are_shown() {
    let mut plan = Plan::new("node").unwrap();
    let node = plan.node("n0", STATION).unwrap();
    let left = plan.function(node, "left", DeviceSource::new(|| Station::new(1))).unwrap();
    let right = plan.function(node, "right", DeviceSource::new(|| Station::new(2))).unwrap();
    plan.link((left, 0), (right, 0), LinkSpec::new(1, 4, 8)).unwrap();

    let folder = tempfile::tempdir().unwrap();
    let options = ServeOptions::new(Some(folder.path().join("m")), EventLoop::Auto);
    let served = Served::start_plan(&plan, &options).unwrap();
    let open =
        |name| Device::open_vfio_user(folder.path().join("m").join(name), OpenOptions::default()).unwrap();
    let (left, right) = (open("n0.left.user0"), open("n0.right.user0"));
    send(&left, &right, 5);

    let snapshot = served.snapshot().unwrap();
    let [node] = snapshot.nodes.as_slice() else { panic!("{snapshot:?}") };
    let names: Vec<_> = node.attachments.iter().map(|attachment| attachment.name.as_str()).collect();
    assert_eq!(
        (node.functions.as_slice(), names),
        (["left", "right"].map(String::from).as_slice(), vec!["left.user0", "right.user0"])
    );
    assert!(node.counters.contains(&("left.station_sent".into(), 1)), "{node:?}");
    assert!(node.counters.contains(&("right.received".into(), 1)), "{node:?}");
    assert_eq!(node.counter("received"), 1);

    drop((left, right));
    served.stop().unwrap();
}

#[test]
fn a_machine_without_a_plan_is_served_by_the_names_of_its_functions() {
    let mut machine = Machine::new();
    let hub = machine.add_function("middle", Box::<Hub>::default()).unwrap();
    for (name, port) in [("a", 0), ("b", 1)] {
        let station = machine.add_function(name, Box::new(Station::new(3))).unwrap();
        machine.fabric().connect((station, 0), (hub, port), LinkSpec::new(1, 4, 8)).unwrap();
    }
    let built = Built::of_machine("by-hand", &machine);

    let folder = tempfile::tempdir().unwrap();
    let options = ServeOptions::new(Some(folder.path().join("m")), EventLoop::Auto);
    let served = Served::start_built(machine, built, &options).unwrap();
    let open =
        |name| Device::open_vfio_user(folder.path().join("m").join(name), OpenOptions::default()).unwrap();
    let (first, second) = (open("a.user0"), open("b.user0"));
    send(&first, &second, 6);

    let counters = &served.snapshot().unwrap().nodes[0].counters;
    assert_eq!(counters[0], ("repeated".to_owned(), 1));
    drop((first, second));
    served.stop().unwrap();
}

#[test]
fn a_plan_refuses_names_and_keys_that_it_does_not_have() {
    let mut plan = Plan::new("m").unwrap();
    let node = plan.node("n0", HUB).unwrap();
    let other = {
        let mut other = Plan::new("other").unwrap();
        other.single("x", HUB, DeviceSource::new(Hub::default)).unwrap()
    };

    assert!(Plan::new("a b").is_err());
    assert!(plan.node("n0", HUB).is_err());
    assert!(plan.check_port((other, 0)).is_err());
    for name in ["NICFORGE_NODE", "1A", "A=B", ""] {
        assert!(plan.environment(node, name, "1").is_err(), "{name}");
    }
    assert!(plan.environment(node, "A", "\0").is_err());
}

#[test]
fn the_families_of_a_list_replace_earlier_ones() {
    fn kinds(families: &nicforge::Families) -> Vec<&'static str> {
        families.kinds().iter().map(|kind| kind.name()).collect()
    }

    let families = nicforge_nics::families().and(own_devices::families()).device(own_devices::station());
    let mut expected = kinds(&nicforge_nics::families());
    expected.extend(["station", "hub"]);
    let mut roles: Vec<_> = families.roles().iter().map(|role| role.name()).collect();
    let number = roles.len();
    roles.sort_unstable();
    roles.dedup();

    assert_eq!(kinds(&families), expected);
    assert_eq!(roles.len(), number, "a role is there twice: {roles:?}");
    assert!(["compute", "device", "hub", "station"].iter().all(|role| roles.contains(role)), "{roles:?}");
}

/// A process that is killed on drop.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a command of the program `own-devices`.
fn own_devices_program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_own-devices"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs the program `own-devices`. Returns its exit status, its output, and its errors.
fn output(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = own_devices_program(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// Writes a star of two stations, and returns the path of the file.
fn star(folder: &Path) -> String {
    let path = folder.join("star.toml");
    std::fs::write(&path, "name = \"star\"\n[[star]]\nstations = 2\n").unwrap();
    path.display().to_string()
}

#[test]
fn own_program_serves_its_devices_and_shows_them() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("m").display().to_string();
    let mut server = KilledOnDrop(
        own_devices_program(&["serve", &star(folder.path()), "--dir", &directory])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );

    // The server prints a line once its sockets exist.
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("serving star (3 nodes)"));
    assert_eq!(lines.next().unwrap().unwrap(), "  hub0   hub, without user sockets");
    let open =
        |name| Device::open_vfio_user(folder.path().join("m").join(name), OpenOptions::default()).unwrap();
    let (first, second) = (open("star0-0.card.user0"), open("star0-1.card.user0"));
    send(&first, &second, 99);

    let (code, table, _) = output(&["stat", &directory]);
    assert_eq!(code, Some(0));
    // The line above the table also names nodes.
    let rows: Vec<_> = table.lines().skip(1).collect();
    let row = |name: &str| rows.iter().copied().find(|line| line.contains(name)).unwrap();
    assert!(row("node").contains("repeated") && row("hub0").contains("0/0"), "{table}");
    assert!(row("star0-0").contains("1/1") && row("  card").contains("1/1"), "{table}");

    let json = || output(&["stat", &directory, "--json"]).1;
    let before = json();
    assert!(before.contains(r#"["repeated",1]"#) && before.contains(r#"["card.received",1]"#), "{before}");
    assert!(!before.contains("columns"), "{before}");

    for node in ["star0-1", "hub0"] {
        assert_eq!(output(&["reset", &directory, node]).0, Some(0));
    }
    assert!(!json().contains(r#"["card.received",1]"#), "{}", json());
}

#[test]
fn own_program_runs_programs_on_nodes_with_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let file = star(folder.path());
    let directory = folder.path().join("m").display().to_string();

    let script = "echo $NICFORGE_ROLE $NICFORGE_SIZE star $STAR";
    let (code, out, err) = output(&["run", &file, "--dir", &directory, "--", "sh", "-c", script]);
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        (code, lines),
        (Some(0), vec!["star0-0 | station 2 star 0", "star0-1 | station 2 star 0"]),
        "{err}"
    );

    let (code, _, err) = output(&["run", &file, "--dir", &directory, "--", "--hub", "true"]);
    assert_eq!(code, Some(2));
    assert!(err.starts_with("own-devices: --hub has no user attachments"), "{err}");
    let (code, _, err) = output(&["run", &file, "--dir", &directory, "--", "--io", "true"]);
    assert_eq!(code, Some(2));
    assert!(err.starts_with("own-devices: --io is no role (hub, station) of this machine"), "{err}");
}

#[test]
fn own_program_has_its_name_and_only_its_devices() {
    assert_eq!(output(&["--version"]).1, "own-devices 7.8.9\n");
    let (_, help, _) = output(&["run", "--help"]);
    assert!(
        help.contains("--station ./a : --hub ./b 2") && help.contains("own-devices run MACHINE"),
        "{help}"
    );
    assert_eq!(output(&["demo"]).0, Some(2));

    let (code, _, err) = output(&["stat", "/nowhere/at/all"]);
    assert_eq!(code, Some(3));
    assert!(err.starts_with("own-devices: no machine is served in /nowhere/at/all"), "{err}");
    assert!(err.contains("start one with `own-devices serve`"), "{err}");
}

//! Machine files that are accepted, and what the others are refused for.

use nicforge_nics::families;

use super::*;

/// Returns the error text of a machine file that must be refused.
fn refusal(text: &str) -> String {
    parse(text, "m.toml", &families()).unwrap_err().to_string()
}

#[test]
fn a_pset_with_defaults_is_accepted() {
    let plan = parse("name = \"p\"\n[[pset]]\ncompute_nodes = 4\n", "m.toml", &families()).unwrap();
    assert_eq!(plan.nodes().iter().filter(|node| node.role.name() == "compute").count(), 4);
}

#[test]
fn a_value_out_of_range_is_refused_with_its_line_and_the_expected_range() {
    let message = refusal("name = \"p\"\n[[pset]]\ncompute_nodes = 4\nfifo_depth = 0\n");
    assert_eq!(message, "m.toml, line 4: fifo_depth is 0; expected a power of two, at most 256");
}

#[test]
fn an_unknown_field_is_refused_with_its_line() {
    let message = refusal("name = \"p\"\n[[pset]]\ncompute_nodes = 4\ncores = 4\n");
    assert!(message.starts_with("m.toml, line 4: unknown field `cores`"), "{message}");
}

#[test]
fn text_that_is_no_toml_is_refused_with_its_line() {
    let message = refusal("name = \"p\"\n[[pset\n");
    assert!(message.starts_with("m.toml, line 2: "), "{message}");
}

#[test]
fn a_path_that_is_no_regular_file_is_refused_unread() {
    for path in ["/dev/zero", "/"] {
        let refusal = read(Path::new(path), &families()).unwrap_err();
        assert!(matches!(refusal, DescriptionError::NoFile { .. }), "{refusal}");
    }
}

#[test]
fn a_machine_without_devices_is_refused() {
    assert!(refusal("name = \"p\"\n").contains("expected at least one [[pset]], "));
}

#[test]
fn a_network_needs_exactly_one_possible_shape() {
    let network = |shape: &str| refusal(&format!("name = \"p\"\n[[extoll]]\n{shape}\n"));
    let message = network("vpids = 4");
    assert!(message.contains("shape is none or several; expected one of torus"), "{message}");
    let message = network("mesh = 2\nhypercube = 1");
    assert!(message.contains("shape is none or several"), "{message}");
    let message = network("mesh = 8");
    assert!(message.contains("a full mesh needs 7 links a node, and a card has 6"), "{message}");
    let message = network("torus = [4000000000, 4000000000]");
    assert!(message.contains("16000000000000000000 nodes"), "{message}");
    let message = network("mesh = 2\nvpids = 257");
    assert_eq!(message, "m.toml, line 4: vpids is 257; expected 1 to 256");
}

#[test]
fn two_functions_of_one_name_are_refused() {
    let function = "[[function]]\nname = \"a\"\nkind = \"slot-fifo\"\n";
    let message = refusal(&format!("name = \"p\"\n{function}{function}"));
    assert_eq!(message, "m.toml, line 6: name is a; expected a name that no other node has");
}

#[test]
fn a_function_with_the_name_of_a_psets_node_is_refused() {
    let message = refusal(
        "name = \"p\"\n[[pset]]\ncompute_nodes = 2\n[[function]]\nname = \"cn1\"\nkind = \"slot-fifo\"\n",
    );
    assert_eq!(message, "m.toml, line 5: name is cn1; expected a name that no other node has");
}

#[test]
fn a_bandwidth_that_is_no_number_is_refused() {
    let message = refusal("name = \"p\"\n[[pset]]\ncompute_nodes = 1\n[pset.link]\ngbit_s = nan\n");
    assert!(message.starts_with("m.toml, line 5: gbit_s is NaN"), "{message}");
}

#[test]
fn a_bandwidth_of_less_than_a_bit_a_second_is_refused_and_not_taken_for_no_limit() {
    let message = refusal("name = \"p\"\n[[pset]]\ncompute_nodes = 1\n[pset.link]\ngbit_s = 1e-10\n");
    assert!(message.ends_with("expected 0 (no limit), or 1e-9 to 10000"), "{message}");
}

#[test]
fn an_ethernet_has_stations_at_a_switch() {
    let text = "name = \"e\"\n[[ethernet]]\nstations = 3\n[[ethernet]]\nstations = 2\nswitch = false\n";
    let plan = parse(text, "m.toml", &families()).unwrap();

    let names: Vec<_> = plan.nodes().iter().map(|node| (node.name.as_str(), node.role.name())).collect();
    let stations = ["en0", "en1", "en2"].map(|name| (name, "station"));
    assert_eq!(names[..3], stations);
    assert_eq!(names[3..], [("sw0", "switch"), ("en3", "station"), ("en4", "station")]);

    let ends: Vec<_> =
        plan.links().iter().map(|link| (link.a.0.index(), link.b.0.index(), link.b.1)).collect();
    assert_eq!(ends, [(0, 3, 0), (1, 3, 1), (2, 3, 2), (4, 5, 0)]);
    assert!(plan.links().iter().all(|link| link.link.max_packet == 1518 && link.link.credits == [256]));
    crate::build::build(&plan).unwrap();
}

#[test]
fn an_ethernet_refuses_impossible_values_with_their_lines() {
    let network = |values: &str| refusal(&format!("name = \"e\"\n[[ethernet]]\nstations = 2\n{values}\n"));

    for (values, message) in [
        ("mtu = 67", "mtu is 67; expected 68 to 9000"),
        ("addresses = 0", "addresses is 0; expected 1 to 65536"),
        (
            "macs = [\"52:54:00:00:00:01\"]",
            "the number of macs is 1; expected 2, one for each station, or none",
        ),
        (
            "macs = [\"52:54:00:00:00:01\", \"53:54:00:00:00:01\"]",
            "macs is 53:54:00:00:00:01; expected an address of one station, as in 52:54:01:00:00:01",
        ),
        (
            "macs = [\"52:54:00:00:00:01\", \"52:54:00:00:00:01\"]",
            "the address is 52:54:00:00:00:01; expected addresses that all differ",
        ),
    ] {
        assert_eq!(network(values), format!("m.toml, line 4: {message}"));
    }
    for (stations, message) in [
        ("1", "m.toml, line 3: stations is 1; expected 2 to 64"),
        ("65", "m.toml, line 3: stations is 65; expected 2 to 64"),
        ("3\nswitch = false", "m.toml, line 4: switch is false; expected true, unless there are 2 stations"),
    ] {
        assert_eq!(refusal(&format!("name = \"e\"\n[[ethernet]]\nstations = {stations}\n")), message);
    }
}

#[test]
fn single_network_devices_are_linked_by_the_file() {
    let nic = |number: u32| {
        format!(
            "[[function]]\nname = \"nic{number}\"\nkind = \"virtio-net\"\nmac = \"52:54:00:00:01:0{number}\"\n"
        )
    };
    let hub = "[[function]]\nname = \"hub0\"\nkind = \"ethernet-switch\"\naddresses = 16\n";
    let link = |number: u32| format!("[[link]]\na = \"nic{number}:0\"\nb = \"hub0:{number}\"\n");
    let text = format!("name = \"e\"\n{}{}{hub}{}{}", nic(0), nic(1), link(0), link(1));

    let plan = parse(&text, "m.toml", &families()).unwrap();

    assert_eq!((plan.functions().len(), plan.links().len()), (3, 2));
    crate::build::build(&plan).unwrap();
    let message = refusal("name = \"e\"\n[[function]]\nname = \"n\"\nkind = \"virtio-net\"\nmac = \"1\"\n");
    assert!(message.starts_with("m.toml, line 5: mac is 1; expected an address of one station"), "{message}");
}

#[test]
fn virtio_devices_name_files_of_the_host() {
    let function = |kind: &str, values: &str| {
        format!("name = \"e\"\n[[function]]\nname = \"n\"\nkind = \"virtio-{kind}\"\n{values}")
    };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("disk"), [0; 1024]).unwrap();

    for (kind, values) in [
        ("rng", String::new()),
        ("blk", format!("file = {:?}\n", path("disk"))),
        ("blk", format!("file = {:?}\naccess = \"copy-on-write\"\nchanges_mib = 1\n", path("disk"))),
        ("console", format!("socket = {:?}\n", path("line"))),
        ("console", format!("file = {:?}\n", path("log"))),
    ] {
        let plan = parse(&function(kind, &values), "m.toml", &families()).unwrap();
        crate::build::build(&plan).unwrap();
    }

    for (kind, values, message) in [
        ("blk", "", "missing field `file`"),
        ("blk", "file = \"d\"\naccess = \"all\"\n", "expected \"read-only\" or \"copy-on-write\""),
        ("blk", "file = \"d\"\nchanges_mib = 1\n", "or access = \"copy-on-write\""),
        ("blk", "file = \"d\"\nserial = \"123456789012345678901\"\n", "expected at most 20 bytes"),
        ("console", "", "a console needs `socket` or `file`"),
        ("console", "socket = \"s\"\nfile = \"f\"\n", "expected no value, because there is a socket"),
    ] {
        let found = refusal(&function(kind, values));
        assert!(found.contains(message), "{found}");
    }

    let plan =
        parse(&function("blk", &format!("file = {:?}\n", path("none"))), "m.toml", &families()).unwrap();
    let found = crate::build::build(&plan).err().unwrap().to_string();
    assert!(found.contains("none") && found.contains("may read"), "{found}");
}

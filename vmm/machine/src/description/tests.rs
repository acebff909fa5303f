//! Machine files that are accepted, and what the others are refused for.

use nicforge_nics::families;

use super::*;

fn error(text: &str) -> String {
    parse(text, "m.toml", &families()).unwrap_err().to_string()
}

#[test]
fn a_pset_with_defaults_is_accepted() {
    let plan = parse("name = \"p\"\n[[pset]]\ncompute_nodes = 4\n", "m.toml", &families()).unwrap();
    assert_eq!(plan.nodes().iter().filter(|node| node.role.name() == "compute").count(), 4);
}

#[test]
fn a_value_out_of_range_names_line_and_expectation() {
    let message = error("name = \"p\"\n[[pset]]\ncompute_nodes = 4\nfifo_depth = 0\n");
    assert_eq!(message, "m.toml, line 4: fifo_depth is 0; expected a power of two, at most 256");
}

#[test]
fn an_unknown_field_names_its_line() {
    let message = error("name = \"p\"\n[[pset]]\ncompute_nodes = 4\ncores = 4\n");
    assert!(message.starts_with("m.toml, line 4: unknown field `cores`"), "{message}");
}

#[test]
fn text_that_is_no_toml_names_its_line() {
    let message = error("name = \"p\"\n[[pset\n");
    assert!(message.starts_with("m.toml, line 2: "), "{message}");
}

#[test]
fn a_path_that_is_no_regular_file_is_refused_unread() {
    for path in ["/dev/zero", "/"] {
        let error = read(Path::new(path), &families()).unwrap_err();
        assert!(matches!(error, DescriptionError::NoFile { .. }), "{error}");
    }
}

#[test]
fn a_machine_without_devices_is_refused() {
    assert!(error("name = \"p\"\n").contains("expected at least one [[pset]], [[extoll]] or [[function]]"));
}

#[test]
fn a_network_needs_exactly_one_possible_shape() {
    let network = |shape: &str| error(&format!("name = \"p\"\n[[extoll]]\n{shape}\n"));
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
    let one = "[[function]]\nname = \"a\"\nkind = \"slot-fifo\"\n";
    let message = error(&format!("name = \"p\"\n{one}{one}"));
    assert_eq!(message, "m.toml, line 6: name is a; expected a name that no other node has");
}

#[test]
fn a_function_with_the_name_of_a_psets_node_is_refused() {
    let message = error(
        "name = \"p\"\n[[pset]]\ncompute_nodes = 2\n[[function]]\nname = \"cn1\"\nkind = \"slot-fifo\"\n",
    );
    assert_eq!(message, "m.toml, line 5: name is cn1; expected a name that no other node has");
}

#[test]
fn an_infinite_bandwidth_is_refused() {
    let message = error("name = \"p\"\n[[pset]]\ncompute_nodes = 1\n[pset.link]\ngbit_s = nan\n");
    assert!(message.starts_with("m.toml, line 5: gbit_s is NaN"), "{message}");
}

#[test]
fn a_bandwidth_of_less_than_a_bit_a_second_is_refused_and_not_taken_for_no_limit() {
    let message = error("name = \"p\"\n[[pset]]\ncompute_nodes = 1\n[pset.link]\ngbit_s = 1e-10\n");
    assert!(message.ends_with("expected 0 (no limit), or 1e-9 to 10000"), "{message}");
}

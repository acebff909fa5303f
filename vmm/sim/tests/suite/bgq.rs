//! Programs of Blue Gene/Q nodes in virtual time.

use nicforge_sim::{
    bgq::{BlueGene, BlueGeneError, all_to_all::SUBGROUPS},
    interrupted::Interrupted,
    world::{Profile, WorldError},
};

/// Returns a torus with links of 2 GB/s, and 64 bytes of framing and header with each packet.
fn torus(shape: [u32; 5]) -> BlueGene<'static> {
    BlueGene {
        shape,
        wraps: shape.map(|length| length > 1),
        subgroups: SUBGROUPS,
        unit: "mu_mhz = 800\nnetwork_mhz = 500\nlatency_ns = 500".into(),
        link: "delay_ns = 29\ngbit_s = 16.0\ncut_through_bytes = 32".into(),
        profile: Profile::default(),
        seed: 1,
        interrupted: Interrupted::default(),
    }
}

#[test]
fn an_all_to_all_needs_the_time_of_its_busiest_links() {
    // 64 nodes: a link along A to C carries 32 messages of 4 KB, each 8 packets of 288 ns.
    let time = torus([4, 4, 4, 1, 1]).all_to_all(4096).unwrap().as_nanos();
    let of_links = f64::from(32 * 8 * 288);
    assert!((1.0..1.5).contains(&(time / of_links)), "{time} ns, where the links need {of_links}");
}

#[test]
fn the_same_seed_gives_the_same_all_to_all() {
    let time = |seed| BlueGene { seed, ..torus([2, 2, 2, 1, 2]) }.all_to_all(2048).unwrap();
    assert_eq!(time(1), time(1));
    assert_ne!(time(1), time(2));
}

#[test]
fn an_all_to_all_of_uneven_rounds_ends_with_any_number_of_subgroups() {
    let time = |subgroups, bytes| {
        BlueGene { subgroups, ..torus([2, 2, 1, 1, 2]) }.all_to_all(bytes).unwrap().as_nanos()
    };
    for subgroups in [1, 3, SUBGROUPS] {
        // A round of 2 KB, and one of 1 byte and of 1 KB.
        let times = [2048, 2049, 3072].map(|bytes| time(subgroups, bytes));
        assert!(times.is_sorted(), "{subgroups} subgroups: {times:?} ns");
    }
}

#[test]
fn a_message_to_a_node_farther_away_takes_longer() {
    let times = torus([4, 2, 1, 1, 1]).ping_pong(&[1, 5, 6], 2).unwrap();
    assert!(times.is_sorted() && times[0] < times[1] && times[1] < times[2], "{times:?}");
}

#[test]
fn a_stopped_run_has_no_result() {
    let stopped = || true;
    let machine = BlueGene { interrupted: Interrupted::new(&stopped), ..torus([4, 4, 1, 1, 1]) };
    let ended = machine.all_to_all(1 << 16);
    assert!(matches!(ended, Err(BlueGeneError::World(WorldError::Stopped))), "{ended:?}");
}

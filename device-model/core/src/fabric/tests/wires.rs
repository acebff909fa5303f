//! Global interrupt wires.

use super::*;

fn members(count: u32) -> Fabric {
    let mut fabric = Fabric::new();
    for function in 0..count {
        fabric.ports(FunctionId(function), Nanos(0)).join_wire(0, true);
    }
    while fabric.pop_woken().is_some() {}
    fabric
}

#[test]
fn the_and_of_a_wire_rises_when_the_last_member_fires_and_falls_for_all() {
    let mut fabric = members(3);
    for function in 0..3 {
        assert_eq!(fabric.ports(A, Nanos(0)).wire(0).and_rises, 0);
        fabric.ports(FunctionId(function), Nanos(0)).fire_wire(0, Combine::And);
    }

    let state = fabric.ports(A, Nanos(0)).wire(0);

    assert_eq!(state, WireState { and: false, or: false, and_rises: 1, or_rises: 1 });
    assert_eq!((0..4).filter_map(|_| fabric.pop_woken()).count(), 3);
}

#[test]
fn members_see_a_wire_after_its_delay() {
    let mut fabric = members(2);
    fabric.set_wire_delay(1300);
    fabric.ports(A, Nanos(0)).drive_wire(0, true);
    fabric.ports(B, Nanos(100)).drive_wire(0, true);

    fabric.advance(Nanos(1299));

    assert_eq!(fabric.ports(A, Nanos(1299)).wire(0), WireState::default());

    fabric.advance(Nanos(1300));
    assert!(fabric.ports(A, Nanos(1300)).wire(0).or);
    assert!(!fabric.ports(A, Nanos(1300)).wire(0).and);

    fabric.advance(Nanos(1400));

    assert!(fabric.ports(A, Nanos(1400)).wire(0).and);
    assert_eq!(fabric.next_event(), Nanos::NEVER);
}

#[test]
fn a_barrier_does_not_wait_for_a_former_member() {
    let mut fabric = members(2);
    fabric.ports(A, Nanos(0)).fire_wire(0, Combine::And);

    fabric.ports(B, Nanos(0)).join_wire(0, false);

    assert_eq!(fabric.ports(A, Nanos(0)).wire(0).and_rises, 1);

    fabric.ports(B, Nanos(0)).drive_wire(0, true);
    assert!(!fabric.ports(A, Nanos(0)).wire(0).or);
}

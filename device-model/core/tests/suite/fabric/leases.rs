//! Tests of packets that refer to leased memory.

use std::sync::Arc;

use nicforge_core::dma::{DmaLease, Term};
use nicforge_shm::SharedMemory;

use super::*;

/// Returns a lease with a term.
fn lease(term: Term) -> Arc<DmaLease> {
    let window = SharedMemory::create("leased", 4096).unwrap().window(0, 4096).unwrap();
    Arc::new(DmaLease::new(window, term))
}

/// Sends a packet that refers to a lease from A to B.
fn send_reference(fabric: &mut Fabric, lease: &Arc<DmaLease>) {
    let mut ports = ports(fabric, A, 0);
    let mut packet = ports.new_packet(8).unwrap();
    packet.memory = Some(Arc::clone(lease));
    ports.send(0, 0, packet).unwrap();
}

/// Has B take and recycle a packet. Returns the functions that are woken.
fn recycle_one(fabric: &mut Fabric) -> Vec<FunctionId> {
    assert!(take(fabric, B, 0, 0).is_some());
    woken(fabric)
}

#[test]
fn last_packet_that_refers_to_a_lease_wakes_its_function() {
    let (mut fabric, _) = pair(LinkSpec::new(1, 8, 512));
    let (waking, other) = (lease(Term::waking(A)), lease(Term::default()));
    for lease in [&waking, &other, &waking] {
        send_reference(&mut fabric, lease);
    }
    assert_eq!(woken(&mut fabric), [B]);

    assert_eq!(recycle_one(&mut fabric), []);
    assert_eq!(recycle_one(&mut fabric), []);
    assert_eq!(recycle_one(&mut fabric), [A]);
    assert_eq!(Arc::strong_count(&waking), 1);
}

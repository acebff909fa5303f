//! Tests of one attachment's interrupts: binding, masking, holding.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::spec::{AttachmentSpec, FunctionSpec, Identity, NicSizes};

/// Number of MSI-X vectors. [`bound`] binds vector `i` to the sink named `i`.
const VECTORS: u16 = 4;
/// Name of the sink to which [`bound`] binds INTx.
const INTX_SINK: u32 = 100;

/// Returns a function with [`VECTORS`] vectors, and with an INTx line or without.
fn function(intx: bool) -> FunctionSpec {
    let identity =
        Identity { vendor: 1, device: 2, subsystem_vendor: 3, subsystem: 4, class: 0x02_80_00, revision: 0 };
    let attachments = vec![AttachmentSpec { name: "only".into(), group: 0 }];
    FunctionSpec {
        intx,
        ..FunctionSpec::nic(
            identity,
            attachments,
            NicSizes { register_bytes: 0x1000, vectors: VECTORS, ring_cells: 64, ..NicSizes::default() },
        )
    }
}

/// Names of the signalled sinks, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u32>>>);

impl Log {
    /// Returns a sink that adds `name` to the log at each signal.
    fn sink(&self, name: u32) -> Sink {
        Some(Arc::new(Named { name, log: self.clone() }))
    }

    fn sinks(&self, names: impl IntoIterator<Item = u32>) -> Vec<Sink> {
        names.into_iter().map(|name| self.sink(name)).collect()
    }

    /// Returns the names since the last call, and removes them.
    fn take(&self) -> Vec<u32> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// A sink of [`Log::sink`].
struct Named {
    name: u32,
    log: Log,
}

impl InterruptSink for Named {
    fn signal(&self) {
        self.log.0.lock().unwrap().push(self.name);
    }
}

/// Returns interrupts whose vectors and INTx line are bound to sinks of the log.
fn bound() -> (Interrupts, Log) {
    let mut interrupts = Interrupts::new(&function(true));
    let log = Log::default();
    interrupts.bind(MSIX, 0, log.sinks(0..VECTORS.into())).unwrap();
    interrupts.bind(INTX, 0, log.sinks([INTX_SINK])).unwrap();
    (interrupts, log)
}

#[test]
fn info_has_five_indices_as_vfio_numbers_them() {
    let interrupts = Interrupts::new(&function(true));

    let info: Vec<_> =
        (0..6).map(|index| interrupts.info(index).map(|info| (info.count, info.flags))).collect();

    let eventfd = 1;
    let (maskable, automasked, noresize) = (2, 4, 8);

    assert_eq!(
        info,
        [
            Some((1, eventfd | maskable | automasked)),
            Some((0, eventfd | noresize)),
            Some((u32::from(VECTORS), eventfd)),
            Some((1, eventfd | noresize)),
            Some((1, eventfd | noresize)),
            None,
        ]
    );
}

#[test]
fn info_of_a_function_without_interrupts_counts_none() {
    let interrupts = Interrupts::new(&FunctionSpec { msix: None, ..function(false) });

    assert_eq!(interrupts.info(INTX).map(|info| info.count), Some(0));
    assert_eq!(interrupts.info(MSIX).map(|info| info.count), Some(0));
}

#[test]
fn raise_of_a_bound_vector_signals_its_sink() {
    let (mut interrupts, log) = bound();

    assert_eq!(interrupts.raise_msix(2), Raised::Delivered);

    assert_eq!(log.take(), [2]);
    assert_eq!(interrupts.counters(), InterruptCounters { delivered: 1, pending: 0, spurious: 0 });
}

#[test]
fn raise_of_an_unbound_vector_is_pending() {
    let mut interrupts = Interrupts::new(&function(true));

    assert_eq!(interrupts.raise_msix(0), Raised::Pending);

    assert_eq!(interrupts.counters().pending, 1);
}

#[test]
fn raise_of_a_missing_vector_is_spurious() {
    let (mut interrupts, log) = bound();

    let raised = [interrupts.raise_msix(VECTORS), interrupts.raise_msix(u16::MAX)];

    assert_eq!(raised, [Raised::Spurious; 2]);
    assert_eq!((log.take().len(), interrupts.counters().spurious), (0, 2));
}

#[test]
fn bind_in_chunks_binds_each_where_it_belongs() {
    let mut interrupts = Interrupts::new(&function(true));
    let log = Log::default();

    interrupts.bind(MSIX, 2, log.sinks([12, 13])).unwrap();
    interrupts.bind(MSIX, 0, vec![log.sink(10), None]).unwrap();

    let raised: Vec<_> = (0..VECTORS).map(|vector| interrupts.raise_msix(vector)).collect();

    assert_eq!(raised, [Raised::Delivered, Raised::Pending, Raised::Delivered, Raised::Delivered]);
    assert_eq!(log.take(), [10, 12, 13]);
}

#[test]
fn bind_of_no_sink_unbinds() {
    let (mut interrupts, _log) = bound();

    interrupts.bind(MSIX, 1, vec![None]).unwrap();

    assert_eq!(interrupts.raise_msix(1), Raised::Pending);
    assert_eq!(interrupts.raise_msix(2), Raised::Delivered);
}

#[test]
fn bind_past_the_end_is_refused_and_binds_nothing() {
    let mut interrupts = Interrupts::new(&function(true));
    let log = Log::default();

    let refused = interrupts.bind(MSIX, 3, log.sinks([1, 2]));

    assert_eq!(refused, Err(IrqError::Range { index: MSIX, start: 3, count: 2, available: 4 }));
    assert_eq!(interrupts.raise_msix(3), Raised::Pending);
}

#[test]
fn invalid_requests_are_refused() {
    let (mut interrupts, log) = bound();

    let range = |index, start, count, available| Err(IrqError::Range { index, start, count, available });

    assert_eq!(interrupts.bind(5, 0, log.sinks([1])), Err(IrqError::Index { index: 5 }));
    assert_eq!(interrupts.bind(MSIX, 0, Vec::new()), Err(IrqError::Empty { index: MSIX }));
    assert_eq!(interrupts.bind(MSI, 0, log.sinks([1])), range(MSI, 0, 1, 0));
    assert_eq!(interrupts.bind(INTX, 1, log.sinks([1])), range(INTX, 1, 1, 1));
    assert_eq!(interrupts.disable(u32::MAX), Err(IrqError::Index { index: u32::MAX }));
    assert_eq!(interrupts.disable_range(MSIX, u32::MAX, 1), range(MSIX, u32::MAX, 1, 4));
    assert_eq!(interrupts.disable_range(MSIX, 1, u32::MAX), range(MSIX, 1, u32::MAX, 4));
    assert_eq!(interrupts.trigger(MSIX, 4, 1), range(MSIX, 4, 1, 4));
    assert_eq!(interrupts.mask(MSIX, 0, 1), Err(IrqError::NotMaskable { index: MSIX }));
    assert_eq!(interrupts.unmask(REQUEST, 0, 1), Err(IrqError::NotMaskable { index: REQUEST }));
    assert!(log.take().is_empty());
}

#[test]
fn disable_range_unbinds_only_the_given_vectors() {
    let (mut interrupts, log) = bound();

    interrupts.disable_range(MSIX, 1, 2).unwrap();

    let raised: Vec<_> = (0..VECTORS).map(|vector| interrupts.raise_msix(vector)).collect();
    assert_eq!(raised, [Raised::Delivered, Raised::Pending, Raised::Pending, Raised::Delivered]);
    assert_eq!(log.take(), [0, 3]);
}

#[test]
fn disable_unbinds_all_vectors_of_its_index_and_no_others() {
    let (mut interrupts, log) = bound();

    interrupts.disable(MSIX).unwrap();
    interrupts.disable(MSI).unwrap();
    interrupts.set_intx(true);

    assert_eq!(interrupts.raise_msix(0), Raised::Pending);
    assert_eq!(log.take(), [INTX_SINK]);
}

#[test]
fn intx_fires_once_until_unmasked() {
    let (mut interrupts, log) = bound();

    interrupts.set_intx(true);
    interrupts.set_intx(true);
    interrupts.set_intx(false);
    interrupts.set_intx(true);

    assert_eq!(log.take(), [INTX_SINK]);
    assert_eq!(interrupts.counters(), InterruptCounters { delivered: 1, pending: 1, spurious: 0 });
}

#[test]
fn intx_unmasked_while_asserted_fires_again() {
    let (mut interrupts, log) = bound();

    interrupts.set_intx(true);
    interrupts.unmask(INTX, 0, 1).unwrap();

    assert_eq!(log.take(), [INTX_SINK, INTX_SINK]);
}

#[test]
fn intx_unmasked_while_not_asserted_waits_for_the_next_assertion() {
    let (mut interrupts, log) = bound();
    interrupts.set_intx(true);
    interrupts.set_intx(false);
    log.take();

    interrupts.unmask(INTX, 0, &[true][..]).unwrap();
    let after_unmask = log.take();
    interrupts.set_intx(true);

    assert!(after_unmask.is_empty());
    assert_eq!(log.take(), [INTX_SINK]);
}

#[test]
fn intx_masked_by_the_client_does_not_fire() {
    let (mut interrupts, log) = bound();

    interrupts.mask(INTX, 0, 1).unwrap();
    interrupts.unmask(INTX, 0, &[false][..]).unwrap();
    interrupts.set_intx(true);

    assert!(log.take().is_empty());
}

#[test]
fn intx_bound_while_asserted_fires() {
    let mut interrupts = Interrupts::new(&function(true));
    let log = Log::default();

    interrupts.set_intx(true);
    interrupts.bind(INTX, 0, log.sinks([7])).unwrap();

    assert_eq!(log.take(), [7]);
}

#[test]
fn intx_of_a_function_without_one_is_spurious() {
    let mut interrupts = Interrupts::new(&function(false));

    interrupts.set_intx(true);
    interrupts.set_intx(false);

    assert_eq!(interrupts.counters(), InterruptCounters { delivered: 0, pending: 0, spurious: 1 });
}

#[test]
fn trigger_signals_the_selected_sinks_and_passes_over_the_unbound() {
    let (mut interrupts, log) = bound();
    interrupts.disable_range(MSIX, 3, 1).unwrap();

    interrupts.trigger(MSIX, 1, &[true, false, true][..]).unwrap();
    interrupts.trigger(MSIX, 0, 2).unwrap();
    interrupts.trigger(INTX, 0, 1).unwrap();

    assert_eq!(log.take(), [1, 0, 1, INTX_SINK]);
    assert_eq!(interrupts.counters(), InterruptCounters::default());
}

#[test]
fn a_request_reaches_its_bound_sink() {
    let (mut interrupts, log) = bound();
    let before_binding = interrupts.raise_request();

    interrupts.bind(ERROR, 0, log.sinks([50])).unwrap();
    interrupts.bind(REQUEST, 0, log.sinks([60])).unwrap();
    let after_binding = interrupts.raise_request();

    assert_eq!((before_binding, after_binding), (false, true));
    assert_eq!(log.take(), [60]);
}

#[test]
fn held_interrupts_are_delivered_in_order_at_release() {
    let (mut interrupts, log) = bound();

    interrupts.hold();
    interrupts.hold();
    let raised = [interrupts.raise_msix(3), interrupts.raise_msix(0), interrupts.raise_msix(3)];
    interrupts.set_intx(true);
    interrupts.raise_msix(1);
    let before = log.take();
    let unbound = interrupts.release().to_vec();

    assert_eq!((raised, before), ([Raised::Held; 3], vec![]));
    assert_eq!((log.take(), unbound), (vec![3, 0, INTX_SINK, 1], vec![]));
    assert!(!interrupts.is_holding());
    assert_eq!(interrupts.raise_msix(3), Raised::Delivered);
}

#[test]
fn release_returns_the_held_vectors_without_a_sink() {
    let (mut interrupts, log) = bound();
    interrupts.disable_range(MSIX, 0, 1).unwrap();

    interrupts.hold();
    interrupts.raise_msix(0);
    interrupts.raise_msix(1);
    interrupts.raise_msix(2);
    interrupts.disable_range(MSIX, 2, 1).unwrap();

    assert_eq!(interrupts.release(), [0, 2]);
    assert!(interrupts.release().is_empty(), "the second release delivers nothing");
    assert_eq!(log.take(), [1]);
    assert_eq!(interrupts.counters(), InterruptCounters { delivered: 1, pending: 2, spurious: 0 });
}

#[test]
fn held_intx_that_is_deasserted_does_not_fire_at_release() {
    let (mut interrupts, log) = bound();

    interrupts.hold();
    interrupts.set_intx(true);
    interrupts.set_intx(false);
    interrupts.release();

    assert!(log.take().is_empty());
}

#[test]
fn held_vector_raised_again_after_a_release_is_held_again() {
    let (mut interrupts, log) = bound();

    for _ in 0..2 {
        interrupts.hold();
        interrupts.raise_msix(1);
        interrupts.release();
    }

    assert_eq!(log.take(), [1, 1]);
}

#[test]
fn clear_drops_held_and_asserted_interrupts_and_keeps_bindings_and_masks() {
    let (mut interrupts, log) = bound();
    interrupts.set_intx(true);
    interrupts.hold();
    interrupts.raise_msix(0);
    log.take();

    interrupts.clear();
    interrupts.release();
    let after_clear = log.take();
    interrupts.set_intx(true);
    let still_masked = log.take();
    interrupts.raise_msix(0);

    assert_eq!((after_clear, still_masked, log.take()), (vec![], vec![], vec![0]));
}

#[test]
fn reset_unbinds_everything_and_releases_the_sinks() {
    let (mut interrupts, log) = bound();
    interrupts.bind(ERROR, 0, log.sinks([50])).unwrap();
    interrupts.bind(REQUEST, 0, log.sinks([60])).unwrap();
    interrupts.mask(INTX, 0, 1).unwrap();

    interrupts.reset();

    assert_eq!(Arc::strong_count(&log.0), 1);
    assert_eq!(interrupts.raise_msix(0), Raised::Pending);
    assert!(!interrupts.raise_request());

    interrupts.set_intx(true);
    interrupts.bind(INTX, 0, log.sinks([9])).unwrap();
    assert_eq!(log.take(), [9], "the next client finds the line unmasked");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// After each request, exactly the vectors are delivered that an array of flags calls bound.
    #[test]
    fn random_requests_keep_bindings_exact(
        requests in prop::collection::vec((0_u32..7, 0_u32..6, 0_u32..6, any::<bool>()), 1..60),
    ) {
        let mut interrupts = Interrupts::new(&function(true));
        let log = Log::default();
        let mut is_bound = [false; VECTORS as usize];

        for (index, start, count, bind) in requests {
            let sinks = log.sinks(start..start + count);
            let result = if bind {
                interrupts.bind(index, start, sinks)
            } else {
                interrupts.disable_range(index, start, count)
            };
            let available = interrupts.info(index).map_or(0, |info| info.count);
            prop_assert_eq!(result.is_ok(), count > 0 && start + count <= available);
            if index == MSIX && result.is_ok() {
                is_bound[start as usize..(start + count) as usize].fill(bind);
            }
            let delivered: Vec<bool> =
                (0..VECTORS).map(|vector| interrupts.raise_msix(vector) == Raised::Delivered).collect();
            prop_assert_eq!(&delivered[..], &is_bound[..]);
        }
    }
}

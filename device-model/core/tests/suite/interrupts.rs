//! Tests of interrupts, from a client's view of the machine.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::Arc;

use crate::common::*;
use nicforge_core::{
    context::Context,
    dma::DmaError,
    ids::AttachmentId,
    interrupt::{INTX, MSIX},
    machine::{Machine, region},
    spec::FunctionSpec,
    time::Nanos,
};
use nicforge_test_kit::LogLines;

/// Runs an action with the device's context in a step.
fn act(machine: &mut Machine, probe: &Probe, action: impl FnOnce(&mut Context<'_>) + Send + 'static) {
    probe.queue_action(action);
    machine.wake(F);
    machine.step(Nanos(0), 64);
}

/// Returns the pending bits of MSI-X of the first attachment.
fn pending_bits(machine: &mut Machine) -> u64 {
    u64::from_le_bytes(read(machine, A, 0, PENDING_BITS))
}

/// Id of the MSI-X capability, and bits of its message control word.
const MSIX_CAPABILITY: u8 = 0x11;
const MSIX_ENABLE: u16 = 1 << 15;
const MSIX_FUNCTION_MASK: u16 = 1 << 14;

/// Sets the message control word of MSI-X of the first attachment.
fn set_msix_control(machine: &mut Machine, value: u16) {
    let [mut at] = read(machine, A, region::CONFIG, 0x34);
    while at != 0 {
        let [id, next] = read(machine, A, region::CONFIG, at.into());
        if id == MSIX_CAPABILITY {
            return write(machine, A, region::CONFIG, u64::from(at) + 2, &value.to_le_bytes());
        }
        at = next;
    }
    panic!("the function has MSI-X");
}

/// Answers DMA writes by message, as the client does.
fn answer_writes(machine: &mut Machine, ids: &[u64]) {
    for &id in ids {
        machine.dma_write_done(F, A, id, Ok(())).unwrap();
    }
}

#[test]
fn bound_vector_fires_and_is_counted() {
    let (mut machine, probe) = attached();
    let sink = bind(&mut machine, A, MSIX, 2);

    act(&mut machine, &probe, |context| context.interrupt(A, 2));

    assert_eq!((sink.get(), pending_bits(&mut machine)), (1, 0));
    assert_eq!(machine.attachment_counters(F, A).unwrap().interrupts, 1);
}

#[test]
fn bound_vector_fires_whatever_the_table_and_its_masks_say() {
    let (mut machine, probe) = attached();
    let sink = bind(&mut machine, A, MSIX, 2);
    let entry_mask = MSIX_TABLE + 2 * 16 + 12;

    // MSI-X off and on, the mask of the function, and that of the entry.
    let mut fired = 0;
    for control in [0, MSIX_ENABLE, MSIX_ENABLE | MSIX_FUNCTION_MASK] {
        for masked in [0_u32, 1] {
            set_msix_control(&mut machine, control);
            write(&mut machine, A, 0, entry_mask, &masked.to_le_bytes());
            act(&mut machine, &probe, |context| context.interrupt(A, 2));
            fired += 1;
            assert_eq!((sink.get(), pending_bits(&mut machine)), (fired, 0), "{control:#x} {masked}");
        }
    }
}

#[test]
fn client_uses_msix_by_its_bit_or_by_vectors_alone() {
    let (mut machine, probe) = attached();
    let check = |machine: &mut Machine, uses| {
        act(machine, &probe, move |context| {
            assert_eq!((context.uses_msix(A), context.uses_msix(B)), (uses, false));
        });
    };

    check(&mut machine, false);
    set_msix_control(&mut machine, MSIX_ENABLE);
    check(&mut machine, true);
    set_msix_control(&mut machine, 0);
    check(&mut machine, false);

    let _vector = bind(&mut machine, A, MSIX, 3);
    check(&mut machine, true);
    // The bit decides for a client that has both.
    let _line = bind(&mut machine, A, INTX, 0);
    check(&mut machine, false);
    set_msix_control(&mut machine, MSIX_ENABLE);
    check(&mut machine, true);
    machine.interrupts(F, A).unwrap().disable(MSIX).unwrap();
    set_msix_control(&mut machine, 0);
    check(&mut machine, false);
}

#[test]
fn line_is_counted_each_time_it_rises() {
    let (mut machine, probe) = attached();

    act(&mut machine, &probe, |context| {
        for asserted in [false, true, true, false, true] {
            context.set_intx(A, asserted);
        }
    });

    assert_eq!(machine.attachment_counters(F, A).unwrap().interrupts, 2);
}

#[test]
fn line_of_a_function_without_a_pin_is_refused() {
    let mut machine = Machine::new();
    let (_, probe) = add(&mut machine, "node0", FunctionSpec { intx: false, ..spec() });
    attach(&mut machine, A);

    let lines = LogLines::of(|| {
        act(&mut machine, &probe, |context| {
            context.set_intx(A, false);
            context.set_intx(A, true);
        });
    });

    let rule = "a device that calls set_intx has an INTx pin: set `intx` in its FunctionSpec";
    assert_eq!(lines, [format!("refused node=node0 attachment=a rule={rule}")]);
    assert_eq!(machine.attachment_counters(F, A).unwrap().interrupts, 0);
}

#[test]
fn unbound_vector_is_pending_until_it_is_bound() {
    let (mut machine, probe) = attached();
    act(&mut machine, &probe, |context| {
        context.interrupt(A, 1);
        context.interrupt(A, 1);
    });

    let pending = pending_bits(&mut machine);

    let other = bind(&mut machine, A, MSIX, 0);
    let sink = bind(&mut machine, A, MSIX, 1);

    assert_eq!((pending, pending_bits(&mut machine)), (0b10, 0));
    assert_eq!((sink.get(), other.get()), (1, 0));
}

#[test]
fn unbinding_a_pending_vector_leaves_it_pending() {
    let (mut machine, probe) = attached();
    act(&mut machine, &probe, |context| context.interrupt(A, 1));

    machine.bind_interrupts(F, A, MSIX, 0, vec![None, None]).unwrap();

    assert_eq!(pending_bits(&mut machine), 0b10);
}

#[test]
fn vectors_and_attachments_that_do_not_exist_raise_nothing() {
    let (mut machine, probe) = attached();

    act(&mut machine, &probe, |context| {
        context.interrupt(A, VECTORS);
        context.interrupt(A, u16::MAX);
        context.interrupt(B, 0);
        context.interrupt(AttachmentId(99), 0);
        context.set_intx(B, true);
        context.set_intx(AttachmentId(99), true);
    });

    attach(&mut machine, B);
    let intx = bind(&mut machine, B, INTX, 0);

    assert_eq!((pending_bits(&mut machine), intx.get()), (0, 0));
    assert!(machine.bind_interrupts(F, A, MSIX, u32::MAX, vec![None, None]).is_err());
    assert!(machine.bind_interrupts(F, A, MSIX, 0, vec![None; 5]).is_err());
    assert!(machine.bind_interrupts(F, C, MSIX, 0, vec![None]).is_err());
}

#[test]
fn interrupt_does_not_overtake_remote_writes() {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);
    let sink = bind(&mut machine, A, MSIX, 0);
    act(&mut machine, &probe, |context| {
        context.dma_write(A, 0x1000, &[1]).unwrap();
        context.dma_write(A, 0x1001, &[2]).unwrap();
        context.interrupt(A, 0);
        context.interrupt(A, 3);
    });

    let ids: Vec<_> = outgoing(&mut machine).iter().map(id_of).collect();

    // The second write is answered first.
    answer_writes(&mut machine, &ids[1..]);
    let after_one = (sink.get(), pending_bits(&mut machine));
    answer_writes(&mut machine, &ids[..1]);

    assert_eq!(after_one, (0, 0));
    assert_eq!((sink.get(), pending_bits(&mut machine)), (1, 0b1000));
}

#[test]
fn remote_writes_wait_for_an_interrupt_that_waits_for_remote_writes() {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);
    let sink = bind(&mut machine, A, MSIX, 0);
    act(&mut machine, &probe, |context| {
        context.dma_write(A, 0x1000, &[1]).unwrap();
        context.interrupt(A, 0);
        assert_eq!(context.dma_write(A, 0x1000, &[2]), Err(DmaError::Busy));
    });

    let ids: Vec<_> = outgoing(&mut machine).iter().map(id_of).collect();

    answer_writes(&mut machine, &ids);
    act(&mut machine, &probe, |context| context.dma_write(A, 0x1000, &[2]).unwrap());

    assert_eq!((ids.len(), sink.get(), outgoing(&mut machine).len()), (1, 1, 1));
    assert!(probe.script().actions.is_empty());
}

#[test]
fn intx_does_not_overtake_remote_writes_and_they_wait_for_it() {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);
    let sink = bind(&mut machine, A, INTX, 0);
    act(&mut machine, &probe, |context| {
        context.dma_write(A, 0x1000, &[1]).unwrap();
        context.set_intx(A, true);
        assert_eq!(context.dma_write(A, 0x1000, &[2]), Err(DmaError::Busy));
    });

    let ids: Vec<_> = outgoing(&mut machine).iter().map(id_of).collect();
    let early = sink.get();

    answer_writes(&mut machine, &ids);

    assert_eq!((ids.len(), early, sink.get()), (1, 0, 1));
}

/// Raises an interrupt that can't be delivered yet, and starts two DMA writes. Then the client
/// makes the interrupt deliverable. The next write must wait for the interrupt: otherwise a device
/// that always has a write in flight would delay the interrupt without end. `prepare` or
/// `make_deliverable` returns the count of the interrupt.
fn check_next_write_waits(
    prepare: impl FnOnce(&mut Machine) -> Option<Arc<Count>>,
    raise: impl FnOnce(&mut Context<'_>) + Send + 'static,
    make_deliverable: impl FnOnce(&mut Machine) -> Option<Arc<Count>>,
) {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);
    let prepared = prepare(&mut machine);
    act(&mut machine, &probe, |context| {
        raise(context);
        context.dma_write(A, 0x1000, &[1]).unwrap();
        context.dma_write(A, 0x1000, &[2]).unwrap();
    });

    let sink = make_deliverable(&mut machine).or(prepared).unwrap();
    act(&mut machine, &probe, |context| {
        assert_eq!(context.dma_write(A, 0x1000, &[3]), Err(DmaError::Busy));
    });

    let ids: Vec<_> = outgoing(&mut machine).iter().map(id_of).collect();
    let early = sink.get();

    answer_writes(&mut machine, &ids);

    assert_eq!((ids.len(), early, sink.get()), (2, 0, 1));
}

#[test]
fn remote_writes_wait_for_a_line_that_is_unmasked() {
    check_next_write_waits(
        |machine| {
            let sink = bind(machine, A, INTX, 0);
            machine.interrupts(F, A).unwrap().mask(INTX, 0, 1).unwrap();
            Some(sink)
        },
        |context| context.set_intx(A, true),
        |machine| {
            machine.interrupts(F, A).unwrap().unmask(INTX, 0, 1).unwrap();
            None
        },
    );
}

#[test]
fn remote_writes_wait_for_a_line_that_is_enabled() {
    check_next_write_waits(
        |machine| {
            write(machine, A, region::CONFIG, 0x04, &0x0406u16.to_le_bytes());
            Some(bind(machine, A, INTX, 0))
        },
        |context| context.set_intx(A, true),
        |machine| {
            set_bus_master(machine, A);
            None
        },
    );
}

#[test]
fn remote_writes_wait_for_a_line_or_a_vector_that_is_bound() {
    check_next_write_waits(
        |_| None,
        |context| context.set_intx(A, true),
        |machine| Some(bind(machine, A, INTX, 0)),
    );
    check_next_write_waits(
        |_| None,
        |context| context.interrupt(A, 1),
        |machine| Some(bind(machine, A, MSIX, 1)),
    );
}

#[test]
fn interrupt_held_at_a_reset_is_dropped() {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);
    let sink = bind(&mut machine, A, MSIX, 0);
    act(&mut machine, &probe, |context| {
        context.dma_write(A, 0x1000, &[1]).unwrap();
        context.interrupt(A, 0);
    });

    let ids: Vec<_> = outgoing(&mut machine).iter().map(id_of).collect();

    machine.reset_attachment(F, A).unwrap();
    answer_writes(&mut machine, &ids);
    let dropped = sink.get();
    act(&mut machine, &probe, |context| context.interrupt(A, 0));

    assert_eq!((dropped, sink.get()), (0, 1));
}

#[test]
fn intx_is_a_level_that_fires_again_when_unmasked() {
    let (mut machine, probe) = attached();
    let sink = bind(&mut machine, A, INTX, 0);

    act(&mut machine, &probe, |context| context.set_intx(A, true));
    let status = read::<1>(&mut machine, A, region::CONFIG, 0x06)[0] & 8;
    act(&mut machine, &probe, |context| context.set_intx(A, true));
    let masked_by_delivery = sink.get();
    machine.interrupts(F, A).unwrap().unmask(INTX, 0, 1).unwrap();
    let still_asserted = sink.get();
    act(&mut machine, &probe, |context| context.set_intx(A, false));
    machine.interrupts(F, A).unwrap().unmask(INTX, 0, 1).unwrap();

    assert_eq!((status, masked_by_delivery, still_asserted, sink.get()), (8, 1, 2, 2));
    assert_eq!(read::<1>(&mut machine, A, region::CONFIG, 0x06)[0] & 8, 0);
}

#[test]
fn intx_that_is_disabled_comes_when_it_is_enabled() {
    let (mut machine, probe) = attached();
    let sink = bind(&mut machine, A, INTX, 0);
    write(&mut machine, A, region::CONFIG, 0x04, &0x0406u16.to_le_bytes());

    act(&mut machine, &probe, |context| context.set_intx(A, true));
    let disabled = (sink.get(), read::<1>(&mut machine, A, region::CONFIG, 0x06)[0] & 8);
    set_bus_master(&mut machine, A);
    let enabled = sink.get();
    write(&mut machine, A, region::CONFIG, 0x04, &0x0406u16.to_le_bytes());
    machine.interrupts(F, A).unwrap().unmask(INTX, 0, 1).unwrap();

    assert_eq!((disabled, enabled, sink.get()), ((0, 8), 1, 1));
}

#[test]
fn intx_is_not_used_while_msix_is_enabled() {
    let (mut machine, probe) = attached();
    let sink = bind(&mut machine, A, INTX, 0);
    let msix = msix_control(&mut machine);
    write(&mut machine, A, region::CONFIG, msix, &0x8000u16.to_le_bytes());

    act(&mut machine, &probe, |context| context.set_intx(A, true));
    let with_msix = sink.get();
    write(&mut machine, A, region::CONFIG, msix, &0u16.to_le_bytes());

    assert_eq!((with_msix, sink.get()), (0, 1));
}

/// Returns the offset of MSI-X message control, found by walking the capability list.
fn msix_control(machine: &mut Machine) -> u64 {
    let [mut at] = read::<1>(machine, A, region::CONFIG, 0x34);
    loop {
        let [id, next] = read::<2>(machine, A, region::CONFIG, at.into());
        if id == 0x11 {
            return u64::from(at) + 2;
        }
        assert_ne!(next, 0, "no MSI-X capability");
        at = next;
    }
}

#[test]
fn reset_deasserts_the_line_and_keeps_bindings() {
    let (mut machine, probe) = attached();
    let (intx, vector) = (bind(&mut machine, A, INTX, 0), bind(&mut machine, A, MSIX, 0));
    act(&mut machine, &probe, |context| context.set_intx(A, true));

    machine.reset_attachment(F, A).unwrap();
    machine.interrupts(F, A).unwrap().unmask(INTX, 0, 1).unwrap();
    let after_reset = intx.get();
    act(&mut machine, &probe, |context| {
        context.set_intx(A, true);
        context.interrupt(A, 0);
    });

    assert_eq!((after_reset, intx.get(), vector.get()), (1, 2, 1));
}

/// A guest's kernel does not take part in an operator's reset of the function, so it sets nothing
/// up again afterwards.
#[test]
fn an_operators_reset_leaves_what_the_system_has_set_up() {
    let (mut machine, probe) = attached();
    let control = msix_control(&mut machine);
    write(&mut machine, A, region::CONFIG, 0x04, &0x0006u16.to_le_bytes());
    write(&mut machine, A, region::CONFIG, control, &0x8000u16.to_le_bytes());
    write(&mut machine, A, 0, MSIX_TABLE, &0xfee0_1000u64.to_le_bytes());
    write(&mut machine, A, 0, MSIX_TABLE + 12, &[0; 4]);
    map_remote(&mut machine, A, 0x1000, 0x1000);
    act(&mut machine, &probe, |context| {
        context.interrupt(A, 1);
        context.set_intx(A, true);
    });

    let pending = pending_bits(&mut machine);

    machine.reset_function(F).unwrap();

    let [status] = read::<1>(&mut machine, A, region::CONFIG, 0x06);

    assert_eq!((pending, pending_bits(&mut machine), status & 0x08), (0b10, 0, 0));
    assert_eq!(read::<2>(&mut machine, A, region::CONFIG, 0x04), [6, 0]);
    assert_eq!(read::<2>(&mut machine, A, region::CONFIG, control)[1] & 0x80, 0x80);
    assert_eq!(read(&mut machine, A, 0, MSIX_TABLE), 0xfee0_1000u64.to_le_bytes());
    assert_eq!(read(&mut machine, A, 0, MSIX_TABLE + 12), [0; 4]);

    let sink = bind(&mut machine, A, MSIX, 0);
    act(&mut machine, &probe, |context| {
        context.dma_write(A, 0x1000, &[1]).unwrap();
        context.interrupt(A, 0);
    });

    let ids: Vec<_> = outgoing(&mut machine).iter().map(id_of).collect();
    answer_writes(&mut machine, &ids);

    assert_eq!((ids.len(), sink.get()), (1, 1));
}

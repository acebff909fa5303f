//! Tests of DMA reads that a device forgets.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::{common::*, dma::in_step};
use nicforge_core::{
    context::{Context, MAX_REMOTE},
    dma::DmaError,
    ids::{AttachmentId, DmaToken},
};

/// Starts as many reads as the limit permits. Returns their number.
fn start_reads(context: &mut Context<'_>, attachment_id: AttachmentId) -> usize {
    (0..1000)
        .take_while(|&token| {
            context.dma_read(attachment_id, 0x1000, 4, DmaToken(token)) != Err(DmaError::Busy)
        })
        .count()
}

#[test]
fn reads_of_mapped_memory_are_forgotten_and_their_room_is_free() {
    let (mut machine, probe) = attached();
    attach(&mut machine, B);
    map_local(&mut machine, A, 0x1000, 0x1000);
    map_local(&mut machine, B, 0x1000, 0x1000);
    probe.calls();

    let started = in_step(&mut machine, &probe, |context| {
        context.dma_read(B, 0x1000, 4, DmaToken(77)).unwrap();
        let first = start_reads(context, A);
        context.forget_reads(A);
        let second = start_reads(context, A);
        context.forget_reads(A);
        context.dma_read(A, 0x1000, 4, DmaToken(5)).unwrap();
        (first, second)
    });
    step_until_idle(&mut machine, 0);

    assert_eq!(started, (MAX_REMOTE, MAX_REMOTE));
    assert_eq!(probe.done(), [(77, Ok(vec![0; 4])), (5, Ok(vec![0; 4]))]);
}

#[test]
fn one_token_is_forgotten_alone() {
    let (mut machine, probe) = attached();
    map_local(&mut machine, A, 0x1000, 0x1000);
    map_remote(&mut machine, A, 0x2000, 0x1000);

    in_step(&mut machine, &probe, |context| {
        for token in [1, 2, 1] {
            context.dma_read(A, 0x1000, 4, DmaToken(token)).unwrap();
            context.dma_read(A, 0x2000, 4, DmaToken(token)).unwrap();
        }
        context.forget_read(A, DmaToken(1));
    });
    let messages = outgoing(&mut machine);
    assert_eq!(messages.len(), 1);
    machine.dma_read_done(F, A, id_of(&messages[0]), Ok(b"data")).unwrap();
    step_until_idle(&mut machine, 0);

    assert_eq!(probe.done(), [(2, Ok(vec![0; 4])), (2, Ok(b"data".to_vec()))]);
}

#[test]
fn messages_that_have_not_left_are_not_sent() {
    let (mut machine, probe) = attached();
    attach(&mut machine, B);
    map_remote(&mut machine, A, 0x1000, 0x1000);
    map_remote(&mut machine, B, 0x1000, 0x1000);

    let started = in_step(&mut machine, &probe, |context| {
        context.dma_read(B, 0x1000, 4, DmaToken(1)).unwrap();
        context.dma_write(A, 0x1000, &[1]).unwrap();
        let first = start_reads(context, A);
        context.forget_reads(A);
        let second = start_reads(context, A);
        context.forget_reads(A);
        (first, second)
    });

    assert_eq!(started, (MAX_REMOTE, MAX_REMOTE));
    assert_eq!(outgoing(&mut machine).len(), 2, "those of B and the write stay");
}

#[test]
fn replies_to_forgotten_reads_are_dropped_and_free_their_room() {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);
    in_step(&mut machine, &probe, |context| start_reads(context, A));
    let sent = outgoing(&mut machine);

    let while_sent = in_step(&mut machine, &probe, |context| {
        context.forget_reads(A);
        context.dma_read(A, 0x1000, 4, DmaToken(9))
    });
    machine.dma_read_done(F, A, id_of(&sent[0]), Ok(b"late")).unwrap();
    machine.dma_read_done(F, A, id_of(&sent[1]), Err(DmaError::Refused { errno: 14 })).unwrap();
    let after_replies = in_step(&mut machine, &probe, |context| start_reads(context, A));
    assert_eq!(outgoing(&mut machine).len(), 2);
    step_until_idle(&mut machine, 0);

    assert_eq!((while_sent, after_replies), (Err(DmaError::Busy), 2));
    assert_eq!(probe.done(), []);
    let counters = machine.attachment_counters(F, A).unwrap();
    assert_eq!((counters.dma_read_bytes, counters.dma_errors), (0, 0));
}

/// A client that does not reply, and resets its device again and again.
#[test]
fn forgetting_does_not_lift_the_limit_of_messages() {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);
    let mut sent = 0;
    for _ in 0..100 {
        in_step(&mut machine, &probe, |context| {
            context.forget_reads(A);
            start_reads(context, A);
        });
        sent += outgoing(&mut machine).len();
    }

    assert_eq!(sent, MAX_REMOTE);
}

#[test]
fn attachments_without_a_client_have_nothing_to_forget() {
    let (mut machine, probe) = attached();
    in_step(&mut machine, &probe, |context| {
        for attachment_id in [B, AttachmentId(77)] {
            context.dma_read(attachment_id, 0, 4, DmaToken(1)).unwrap();
            context.forget_reads(attachment_id);
        }
    });
    step_until_idle(&mut machine, 0);

    assert_eq!(probe.done(), []);
}

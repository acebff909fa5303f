//! The proof devices, through every door.

use nicforge_engine::EventLoopKind;
use nicforge_tests::{
    backing::{InProcess, Served},
    proof_body::{self, addressed_send, dma_engine, slot_fifo},
};

/// Each body as a test of its own, behind each door.
macro_rules! through_every_door {
    ($($device:ident: $($body:ident)+;)+) => {
        mod in_process {
            $(mod $device {
                $(#[test]
                fn $body() {
                    crate::$device::$body(&crate::InProcess::new(crate::proof_body::machine()));
                })+
            })+
        }

        mod served {
            $(mod $device {
                $(#[test]
                fn $body() {
                    crate::$device::$body(&crate::Served::new(crate::proof_body::machine(), crate::EventLoopKind::Auto));
                })+
            })+
        }

        mod served_by_epoll {
            $(mod $device {
                $(#[test]
                fn $body() {
                    crate::$device::$body(&crate::Served::new(crate::proof_body::machine(), crate::EventLoopKind::Epoll));
                })+
            })+
        }
    };
}

through_every_door! {
    slot_fifo:
        messages_come_back_in_order
        a_held_device_fills_up_and_goes_on_when_released
        a_reader_that_returns_nothing_fills_everything
        port_and_slots_share_a_queue
        port_read_while_empty_sets_the_error
        port_write_while_full_sets_the_error_and_loses_that_word_only
        port_access_of_another_width_sets_the_error
        register_access_of_another_width_reads_ones_and_writes_nothing
        a_bad_read_pointer_sets_the_error_and_frees_nothing
        the_receive_interrupt_says_that_the_slots_are_not_empty_any_more
        intx_fires_again_until_the_error_is_cleared
        a_masked_intx_fires_when_it_is_unmasked
        two_clients_have_nothing_in_common
        a_second_client_is_refused
        reattachment_sees_fresh_memory
        a_reset_starts_anew
        an_evicted_client_is_told
        any_sequence_behaves_like_queues;
    dma_engine:
        copies_within_mapped_memory
        copies_from_private_memory
        copies_to_private_memory
        copies_within_private_memory
        the_end_can_be_polled_for
        a_list_of_all_descriptors_is_copied_in_order
        a_descriptor_that_is_too_long_is_refused
        a_descriptor_with_reserved_bits_is_refused
        an_unmapped_source_ends_the_list_with_an_error
        an_unmapped_destination_ends_the_list_with_an_error
        a_source_that_leaves_its_buffer_ends_the_list_with_an_error
        a_source_that_wraps_ends_the_list_with_an_error
        a_destination_that_wraps_ends_the_list_with_an_error
        a_read_only_destination_ends_the_list_with_an_error
        an_unmapped_or_wrapping_list_ends_with_an_error
        a_bad_start_is_refused
        a_start_while_busy_is_refused_and_disturbs_nothing
        a_function_without_bus_mastering_reaches_nothing
        an_unbound_vector_leaves_its_pending_bit
        clients_have_address_spaces_of_their_own
        dropped_memory_is_out_of_reach
        a_reset_ends_a_list_and_the_next_one_is_copied
        any_list_does_what_copies_in_order_do;
    addressed_send:
        every_client_reaches_every_client
        every_length_arrives
        a_bad_length_or_address_is_refused
        a_send_to_nobody_is_refused
        a_send_without_credits_stalls_until_one_is_returned
        a_full_ring_holds_the_sender
        a_bad_read_pointer_returns_no_credits
        a_reset_of_the_target_lets_a_stalled_send_pass
        a_reset_of_the_sender_drops_a_stalled_send
        a_target_that_leaves_lets_a_stalled_send_go
        an_operators_reset_clears_a_stall
        a_trapped_read_waits_behind_a_stalled_send
        a_half_written_record_wedges_nothing
        malformed_records_are_skipped
        the_receive_interrupt_says_that_the_mailbox_is_not_empty_any_more
        a_full_ring_times_out
        any_sequence_arrives_in_order;
}

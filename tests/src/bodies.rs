//! The names of all test bodies, in one place. A body listed here runs through every door, guests
//! included, except for those that [`crate::guest_bodies`] excludes with a reason.

/// Passes the names of a module's bodies to another macro: `bodies_of!(slots => [listed] some
/// tokens)` is `listed! { some tokens names of slots' bodies }`.
#[macro_export]
macro_rules! bodies_of {
    (slot_fifo => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
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
            the_receive_interrupt_is_enough_to_receive_by
            intx_fires_again_until_the_error_is_cleared
            a_masked_intx_fires_when_it_is_unmasked
            two_clients_have_nothing_in_common
            a_second_client_is_refused
            reattachment_sees_fresh_memory
            a_reset_starts_anew
            an_evicted_client_is_told
            any_sequence_behaves_like_queues
        }
    };
    (dma_engine => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            copies_within_mapped_memory
            copies_from_private_memory
            copies_to_private_memory
            copies_within_private_memory
            copies_across_buffers_side_by_side
            the_end_can_be_polled_for
            a_list_of_all_descriptors_is_copied_in_order
            more_pieces_than_messages_under_way_are_all_copied
            a_descriptor_that_is_too_long_is_refused
            a_descriptor_with_reserved_bits_is_refused
            an_unmapped_source_ends_the_list_with_an_error
            an_unmapped_destination_ends_the_list_with_an_error
            a_source_that_leaves_its_buffer_ends_the_list_with_an_error
            a_source_that_wraps_ends_the_list_with_an_error
            a_destination_that_wraps_ends_the_list_with_an_error
            a_destination_that_wraps_behind_its_buffer_is_not_begun
            a_read_only_destination_ends_the_list_with_an_error
            an_unmapped_or_wrapping_list_ends_with_an_error
            a_bad_start_is_refused
            a_start_while_busy_is_refused_and_disturbs_nothing
            a_function_without_bus_mastering_reaches_nothing
            an_unbound_vector_leaves_its_pending_bit
            clients_have_address_spaces_of_their_own
            dropped_memory_is_out_of_reach
            a_reset_ends_a_list_and_the_next_one_is_copied
            any_list_does_what_copies_in_order_do
        }
    };
    (addressed_send => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
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
            the_receive_interrupt_is_enough_to_receive_by
            a_full_ring_times_out
            any_sequence_arrives_in_order
        }
    };
    (slots => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            every_node_reaches_every_node_in_order
            all_nodes_at_once_reach_one_each_in_its_order
            the_irq_bit_is_counted_while_its_packet_waits
            a_receiver_that_does_not_read_fills_everything_and_loses_nothing
            a_pointer_over_many_packets_frees_them_all
            a_blocked_node_holds_up_only_what_is_for_it
            a_blocked_channel_leaves_the_other_alone
            packets_on_their_way_leave_the_nodes_between_alone
            a_bad_read_pointer_is_noted_and_ignored
            a_packet_for_nobody_is_discarded_and_noted
            the_mirror_says_where_the_node_is
            a_core_reaches_the_user_channel_only
        }
    };
    (port => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            a_pushed_packet_is_popped
            two_halves_make_a_quad
            halves_of_two_cores_stay_apart
            halves_out_of_turn_are_alignment_errors
            an_upper_half_that_is_not_read_is_lost_and_noted
            the_header_may_come_at_any_time
            headers_and_quads_are_queues_of_their_own
            a_partial_packet_waits_for_its_last_quad
            bad_widths_and_alignments_set_the_bit_of_the_processor_port
            addresses_without_a_register_are_address_errors
            reading_an_empty_fifo_is_an_under_run
            writing_a_full_fifo_loses_what_was_written
            port_and_slots_send_into_one_queue
            port_and_slots_receive_from_one_queue
            status_word_and_mirror_agree
            the_status_leaves_out_what_the_port_has_popped
            the_error_word_shows_the_exception_registers
            a_core_cannot_write_control_registers
            a_node_in_manual_mode_stands_still
            a_soft_reset_empties_the_node
        }
    };
    (interrupts => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            an_irq_packet_interrupts_who_enabled_it_before
            enabling_while_an_irq_packet_waits_interrupts
            a_packet_read_before_its_interrupt_leaves_no_second_one
            a_second_irq_packet_interrupts_again
            a_disabled_vector_stays_silent
            each_core_enables_for_itself
            a_posted_enable_looks_at_the_read_pointer_afresh
            a_sleeping_reader_is_woken
            an_error_interrupts_once_until_it_was_read
            a_disabled_exception_raises_nothing
            a_disabled_watermark_raises_nothing
            the_receive_watermark_interrupts_when_it_is_passed
            the_send_watermark_interrupts_when_the_fifo_has_drained
            a_channel_interrupts_its_own_clients_only
            a_presence_change_interrupts
            a_global_interrupt_interrupts
        }
    };
    (lifecycle => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            a_core_counts_its_generation_up_at_every_node
            presence_changes_are_counted
            a_node_that_comes_late_knows_who_is_up
            the_news_of_a_death_comes_behind_what_was_sent
            the_next_tenants_packets_come_behind_its_news
            a_node_without_cores_takes_packets_and_drops_them
            packets_wait_for_the_first_core_of_a_node
            the_next_tenant_has_fresh_windows
            the_cores_that_stay_keep_the_nodes_fifos
            a_killed_cores_lock_boxes_are_freed
            data_for_a_dead_reader_is_discarded_until_the_next_one_comes
            a_dead_core_without_the_receive_lock_costs_no_packet
            a_core_that_resets_itself_spares_its_node
            an_operators_reset_clears_a_blocked_node
            a_reset_node_loses_packets_but_no_order
        }
    };
    (barrier => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            a_barrier_completes_with_the_last_node
            a_thousand_barriers_let_nobody_through_early
            an_early_node_waits_for_the_slow
            an_io_node_takes_part_when_it_says_so
            a_dead_node_has_not_entered
            a_notification_reaches_who_is_armed
            a_direct_channel_shows_the_or_of_all_levels
            a_core_cannot_use_the_systems_channels
        }
    };
    (collective => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            reductions_over_all_nodes_equal_big_arithmetic
            reductions_over_the_compute_nodes_equal_big_arithmetic
            a_class_set_up_by_the_admins_reduces_over_its_nodes
            a_broadcast_from_anywhere_reaches_every_node_once
            a_slow_receiver_loses_no_broadcast
            a_reduction_waits_for_its_last_contribution
            reductions_in_a_row_keep_their_order
            an_unfinished_reduction_leaves_the_other_channel_alone
            the_irq_bit_of_one_contribution_is_in_the_result
            contributions_that_do_not_match_hold_nobody_up
            contributions_of_different_classes_wait_for_their_own
            a_two_phase_floating_point_sum_is_exact
        }
    };
    (tree_hostile => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            a_hostile_node_breaks_no_other
            a_node_that_sends_nothing_disturbs_nobody
            a_flood_ends_with_a_reset_of_its_target
            the_mirror_cannot_be_written
        }
    };
    (fcnp_body => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            every_size_arrives_unchanged
            every_alignment_arrives_unchanged
            unequal_sizes_transfer_the_lesser
            all_cores_at_once_get_their_own_messages
            interrupt_mode_wakes_the_daemon_and_the_call
            deadlines_before_the_transfer_change_nothing
            cancelled_calls_end
            calls_that_could_not_be_withdrawn_are_by_the_next_one
            calls_that_are_over_before_they_begin_take_nothing
            a_read_that_gets_no_data_serves_the_other_cores
            data_of_a_read_that_was_given_up_stop_no_neighbour
            withdrawn_requests_leave_the_queue
            soft_reset_of_the_io_node_ends_its_calls
            read_cancelled_in_the_middle_aborts_the_write
            write_cancelled_in_the_middle_aborts_the_read
            io_write_cancelled_in_the_middle_aborts_the_read
            io_read_cancelled_in_the_middle_discards_the_rest
            core_that_dies_in_its_write_frees_the_read
            core_that_dies_in_its_read_leaves_its_node_working
            core_that_dies_without_a_request_ends_the_wait
            io_node_that_dies_is_found_again_by_the_cores
            io_node_that_dies_between_calls_is_told_once_a_direction
            core_reset_in_its_write_ends_both_calls
            core_reset_in_its_read_ends_both_calls
            io_node_reset_in_transfers_ends_all_calls
            core_waits_for_the_io_node
            core_without_an_io_node_times_out
            impossible_calls_are_refused
            wild_packets_are_discarded
            data_for_nobody_are_discarded
            packets_arrive_in_order
        }
    };
    (velo_body => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            messages_of_every_length_and_tag_arrive_in_order
            a_port_sends_to_itself
            both_directions_at_once_keep_their_order
            impossible_messages_are_refused
            messages_of_other_tags_are_kept_in_order
            waits_end
            interrupts_wake_who_waits
            a_peer_that_goes_is_an_error_and_its_successor_is_new
            an_evicted_port_says_so
            a_port_is_opened_again
            a_reset_asks_to_open_again
            a_reset_by_the_admin_asks_to_open_again
            a_successor_gets_nothing_of_its_predecessor
            link_errors_are_repaired
        }
    };
    (velo_flow => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            credits_stop_the_sender_of_one_that_does_not_read
            promises_end_and_come_back
            what_nobody_has_taken_is_not_promised_again
            a_send_says_that_what_it_waits_for_is_behind_what_is_kept
            the_watchdog_reports_a_receiver_that_does_not_read
            a_wait_ends_while_the_card_waits_for_a_receiver
        }
    };
    (velo_hostile => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            a_hostile_process_deceives_nobody
            who_connects_all_the_time_and_never_reads_stops_nobody
            who_ends_and_connects_all_the_time_is_answered_no_more
            a_flood_without_a_connection_holds_no_call
            nobody_writes_the_mirror_or_the_directory
        }
    };
    (rma_body => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            puts_and_gets_of_all_sizes_arrive
            an_immediate_put_wakes_who_sleeps
            sleepers_of_two_libraries_do_not_disturb_each_other
            a_long_transfer_is_several_commands
            a_stream_of_small_puts_goes_round_the_queue
            what_is_refused_says_why
            nobody_and_the_admin_are_no_partners
            a_region_of_scattered_pages_is_one
            waits_end
            lost_notifications_are_told
            private_memory_is_transferred_by_messages
            a_deregistered_region_is_not_touched
            a_partner_that_goes_ends_commands
            an_eviction_ends_a_wait
            a_target_that_never_answers_ends_commands
            a_reset_asks_to_open_anew
            a_reset_by_the_admin_ends_waits
            what_was_before_a_reset_by_the_admin_can_be_dropped_later
            a_vpid_leaves_others_their_part_of_the_table
        }
    };
    (velo_torn => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            torn_messages_arrive_once_and_in_order
            a_message_that_is_torn_each_time_is_an_error
        }
    };
    (matching_body => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            every_size_arrives_on_every_path
            the_threshold_is_a_parameter
            a_standard_send_of_a_short_message_does_not_wait_for_its_receive_and_a_synchronous_one_does
            messages_of_a_pair_match_in_the_order_of_their_sends
            a_longer_message_fills_the_buffer_and_tells_its_length
            wildcards_and_ignored_bits_take_what_they_should
            a_probe_sees_a_message_and_leaves_it
            a_claimed_message_is_received_by_nobody_else
            a_discarded_message_counts_as_received_for_its_sender
            a_cancelled_receive_takes_no_message
            a_send_that_has_not_begun_can_be_cancelled_and_one_that_has_cannot
            handles_of_completed_requests_find_nothing
            the_completion_queue_has_each_completion_once_in_their_order
            waits_end_by_deadline_and_by_token_and_the_request_lives_on
            ranks_in_threads_of_their_own_exchange_messages_in_memory_of_their_own
        }
    };
    (over_extoll => [$($then:tt)+] $($head:tt)*) => {
        $crate::bodies_of! { matching_body => [$($then)+] $($head)* }
    };
    (extoll_body => [$($then:tt)+] $($head:tt)*) => {
        $($then)+! { $($head)*
            ranks_find_each_other
            long_messages_share_what_there_is
            what_is_deregistered_is_out_of_reach
            a_rank_that_goes_ends_what_waits_for_it
            an_evicted_rank_says_so
            a_rank_whose_device_is_reset_says_so
            why_a_rank_is_gone_is_said
            what_a_rank_that_was_given_up_may_still_fetch_stays
            a_stranger_takes_no_rank_s_room
            a_hostile_rank_harms_itself_alone
        }
    };
}

/// Makes a test of each body behind each door: `device(machine): body body ...;`, or
/// `device(machine);` for all bodies that [`bodies_of`] lists. `device` is a module of bodies in
/// scope. `machine` is an expression that makes a machine.
#[macro_export]
macro_rules! through_every_door {
    ($($devices:tt)+) => {
        $crate::devices! { [] [$($devices)+] }
    };
}

/// Adds the names of bodies to each device, from left to right, and then makes the tests. The
/// arguments are the finished devices, the remaining ones, and the result of [`bodies_of`] for the
/// current one.
#[doc(hidden)]
#[macro_export]
macro_rules! devices {
    ([$($done:tt)*] []) => {
        $crate::tests_of_devices! { $($done)* }
    };
    ([$($done:tt)*] [$device:ident($($machine:tt)+); $($rest:tt)*]) => {
        $crate::bodies_of! { $device => [$crate::devices] [$($done)*] [$($rest)*] $device($($machine)+): }
    };
    ([$($done:tt)*] [$device:ident($($machine:tt)+): $($body:ident)+; $($rest:tt)*]) => {
        $crate::devices! { [$($done)* $device($($machine)+): $($body)+;] [$($rest)*] }
    };
    ([$($done:tt)*] [$($rest:tt)*] $device:ident($($machine:tt)+): $($body:ident)+) => {
        $crate::devices! { [$($done)* $device($($machine)+): $($body)+;] [$($rest)*] }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! tests_of_devices {
    ($($device:ident($machine:expr): $($body:ident)+;)+) => {
        mod in_process {
            $(mod $device {
                use super::super::*;

                $(#[test]
                fn $body() {
                    $device::$body(&$crate::backing::InProcess::new($machine));
                })+
            })+
        }

        mod served {
            $(mod $device {
                use super::super::*;

                $(#[test]
                fn $body() {
                    $device::$body(&$crate::backing::Served::new($machine, $crate::backing::EventLoopKind::Auto));
                })+
            })+
        }

        mod served_by_epoll {
            $(mod $device {
                use super::super::*;

                $(#[test]
                fn $body() {
                    $device::$body(&$crate::backing::Served::new($machine, $crate::backing::EventLoopKind::Epoll));
                })+
            })+
        }
    };
}

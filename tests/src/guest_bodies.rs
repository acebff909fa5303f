//! The bodies that run in guests: the same as through every other door, in a table, since one boot runs many.
//!
//! [`HOST_ONLY`] has those that cannot, and why.

use crate::{
    backing::{Rig, Served},
    fcnp_body,
    proof_body::{self, addressed_send, dma_engine, slot_fifo},
    rma_body,
    tree_body::{self, barrier, collective, hostile as tree_hostile, interrupts, lifecycle, port, slots},
    velo_body::{self, flow as velo_flow, hostile as velo_hostile},
};

/// A door in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Linux's VFIO, behind a virtual IOMMU.
    Vfio,
    /// The kernel shim, without an IOMMU.
    Shim,
}

/// A body.
pub struct Body {
    /// Of which machine ([`machine`]).
    pub machine: &'static str,
    /// As in `slot_fifo::messages_come_back_in_order`.
    pub name: &'static str,
    /// It.
    pub run: fn(&dyn Rig),
}

impl Body {
    /// Why it does not run through a door.
    pub fn reason_not_to_run(&self, door: Door) -> Option<&'static str> {
        let found =
            HOST_ONLY.iter().find(|(_, doors, names)| doors.contains(&door) && names.contains(&self.name));
        found.map(|(reason, _, _)| *reason)
    }
}

/// Bodies of a machine.
pub struct MachineOfBodies {
    /// Makes it.
    pub make: fn() -> nicforge_core::machine::Machine,
    /// Functions with their attachments, those that its bodies use.
    pub attachments: &'static [(&'static [&'static str], &'static [&'static str])],
}

const USERS: &[&str] = &["user0", "user1", "user2", "user3"];
const CORES: &[&str] = &["core0", "core1", "core2", "core3"];
const VPIDS: &[&str] = &["vpid0", "vpid1", "vpid2", "vpid3"];

/// The machine of this name.
pub fn machine(name: &str) -> MachineOfBodies {
    match name {
        "proof" => MachineOfBodies {
            make: proof_body::machine,
            attachments: &[(&["fifo0", "dma0", "send0"], USERS)],
        },
        "tree" => MachineOfBodies {
            make: || tree_body::machine(4, 8),
            // The admins are the operator's.
            attachments: &[(&["io0", "cn0", "cn1", "cn2", "cn3"], CORES)],
        },
        "fcnp" => MachineOfBodies {
            make: || fcnp_body::machine(fcnp_body::DEPTH),
            attachments: &[(&["io0"], &["core0", "core1", "core2"]), (&["cn0", "cn1"], CORES)],
        },
        "velo" => {
            MachineOfBodies { make: || velo_body::machine(500), attachments: &[(&["ex0", "ex1"], VPIDS)] }
        }
        "rma" => MachineOfBodies { make: rma_body::machine, attachments: &[(&["ex0", "ex1"], VPIDS)] },
        _ => panic!("there are no bodies of a machine {name}"),
    }
}

impl MachineOfBodies {
    /// Names and sockets of the attachments.
    pub fn sockets(&self, served: &Served) -> Vec<(String, std::path::PathBuf)> {
        let all = self.attachments.iter().flat_map(|(functions, attachments)| {
            functions.iter().flat_map(|function| attachments.iter().map(move |name| (*function, *name)))
        });
        all.map(|(function, name)| (format!("{function}.{name}"), served.socket(function, name))).collect()
    }
}

const BOTH: &[Door] = &[Door::Vfio, Door::Shim];
const SHIM: &[Door] = &[Door::Shim];
const VFIO: &[Door] = &[Door::Vfio];

/// Bodies that do not run through some doors: why, through which, and their names.
pub const HOST_ONLY: &[(&str, &[Door], &[&str])] = &[
    (
        "hands the operator code of its own, or asks what no counter tells",
        BOTH,
        &[
            "addressed_send::malformed_records_are_skipped",
            "addressed_send::a_half_written_record_wedges_nothing",
            "velo_body::link_errors_are_repaired",
        ],
    ),
    (
        "makes accesses of widths that reach a card in pieces",
        BOTH,
        &[
            "port::bad_widths_and_alignments_set_the_bit_of_the_processor_port",
            "port::reading_an_empty_fifo_is_an_under_run",
            "slot_fifo::port_access_of_another_width_sets_the_error",
            "addressed_send::a_bad_length_or_address_is_refused",
        ],
    ),
    (
        "the kernel has a function end with its last mapping",
        BOTH,
        &["slot_fifo::reattachment_sees_fresh_memory"],
    ),
    (
        "QEMU never gets an attachment back that was taken away from it",
        BOTH,
        &[
            "slot_fifo::an_evicted_client_is_told",
            "fcnp_body::core_that_dies_in_its_write_frees_the_read",
            "fcnp_body::core_that_dies_in_its_read_leaves_its_node_working",
            "fcnp_body::io_node_that_dies_is_found_again_by_the_cores",
            "velo_body::an_evicted_port_says_so",
            "rma_body::an_eviction_ends_a_wait",
            "lifecycle::the_news_of_a_death_comes_behind_what_was_sent",
            "lifecycle::the_next_tenants_packets_come_behind_its_news",
            "lifecycle::a_node_without_cores_takes_packets_and_drops_them",
            "lifecycle::a_killed_cores_lock_boxes_are_freed",
            "lifecycle::data_for_a_dead_reader_is_discarded_until_the_next_one_comes",
            "lifecycle::a_dead_core_without_the_receive_lock_costs_no_packet",
            "barrier::a_dead_node_has_not_entered",
            "tree_hostile::a_flood_ends_with_a_reset_of_its_target",
        ],
    ),
    (
        "a guest does not know that its configuration space was reset from outside",
        BOTH,
        &[
            "addressed_send::an_operators_reset_clears_a_stall",
            "lifecycle::an_operators_reset_clears_a_blocked_node",
            "lifecycle::a_reset_node_loses_packets_but_no_order",
        ],
    ),
    (
        "somebody comes or goes: QEMU has all attachments, whatever its guest's programs do",
        BOTH,
        &[
            "addressed_send::a_send_to_nobody_is_refused",
            "addressed_send::a_target_that_leaves_lets_a_stalled_send_go",
            "fcnp_body::io_node_that_dies_between_calls_is_told_once_a_direction",
            "lifecycle::a_node_that_comes_late_knows_who_is_up",
            "lifecycle::packets_wait_for_the_first_core_of_a_node",
            "lifecycle::presence_changes_are_counted",
            "lifecycle::the_cores_that_stay_keep_the_nodes_fifos",
            "interrupts::a_presence_change_interrupts",
        ],
    ),
    (
        "counts from the start of a machine, or needs one that nobody used",
        BOTH,
        &[
            "lifecycle::a_core_that_resets_itself_spares_its_node",
            "addressed_send::a_trapped_read_waits_behind_a_stalled_send",
            "barrier::a_barrier_completes_with_the_last_node",
            "barrier::an_io_node_takes_part_when_it_says_so",
        ],
    ),
    (
        "the admin is the operator's",
        BOTH,
        &[
            "slots::a_blocked_channel_leaves_the_other_alone",
            "slots::a_core_reaches_the_user_channel_only",
            "port::status_word_and_mirror_agree",
            "port::the_status_leaves_out_what_the_port_has_popped",
            "port::the_error_word_shows_the_exception_registers",
            "port::a_core_cannot_write_control_registers",
            "port::a_node_in_manual_mode_stands_still",
            "port::a_soft_reset_empties_the_node",
            "interrupts::a_disabled_exception_raises_nothing",
            "interrupts::a_disabled_watermark_raises_nothing",
            "interrupts::the_receive_watermark_interrupts_when_it_is_passed",
            "interrupts::the_send_watermark_interrupts_when_the_fifo_has_drained",
            "interrupts::a_channel_interrupts_its_own_clients_only",
            "lifecycle::a_core_counts_its_generation_up_at_every_node",
            "lifecycle::the_next_tenant_has_fresh_windows",
            "barrier::a_core_cannot_use_the_systems_channels",
            "collective::reductions_over_all_nodes_equal_big_arithmetic",
            "collective::reductions_over_the_compute_nodes_equal_big_arithmetic",
            "collective::a_class_set_up_by_the_admins_reduces_over_its_nodes",
            "collective::an_unfinished_reduction_leaves_the_other_channel_alone",
            "tree_hostile::a_hostile_node_breaks_no_other",
            "velo_body::impossible_messages_are_refused",
        ],
    ),
    (
        "its times are not those of an emulated processor",
        BOTH,
        &[
            "fcnp_body::io_read_cancelled_in_the_middle_discards_the_rest",
            "fcnp_body::deadlines_before_the_transfer_change_nothing",
            "dma_engine::a_start_while_busy_is_refused_and_disturbs_nothing",
        ],
    ),
    (
        "QEMU does not survive stores of its guest to memory that it may only read",
        BOTH,
        &[
            "velo_hostile::a_hostile_process_deceives_nobody",
            "velo_hostile::nobody_writes_the_mirror_or_the_directory",
            "tree_hostile::the_mirror_cannot_be_written",
        ],
    ),
    (
        "an interrupt is a bus master's write, too",
        BOTH,
        &["dma_engine::a_function_without_bus_mastering_reaches_nothing"],
    ),
    (
        "chooses an address that no IOMMU translates",
        BOTH,
        &["dma_engine::a_destination_that_wraps_behind_its_buffer_is_not_begun"],
    ),
    (
        "without an IOMMU a card reaches all of the guest's memory",
        SHIM,
        &[
            "dma_engine::copies_across_buffers_side_by_side",
            "dma_engine::a_source_that_leaves_its_buffer_ends_the_list_with_an_error",
            "dma_engine::a_read_only_destination_ends_the_list_with_an_error",
            "dma_engine::an_unmapped_or_wrapping_list_ends_with_an_error",
            "dma_engine::clients_have_address_spaces_of_their_own",
            "dma_engine::dropped_memory_is_out_of_reach",
            "rma_body::what_is_refused_says_why",
        ],
    ),
    (
        "without an IOMMU the kernel has no such piece of memory",
        SHIM,
        &[
            "rma_body::a_long_transfer_is_several_commands",
            "rma_body::a_deregistered_region_is_not_touched",
            "rma_body::a_partner_that_goes_ends_commands",
        ],
    ),
    (
        "the shim keeps the MSI-X table and its pending bits to itself",
        SHIM,
        &["dma_engine::an_unbound_vector_leaves_its_pending_bit"],
    ),
    (
        "VFIO's trapped accesses are of 4 bytes at most, those of quads are in pieces",
        VFIO,
        &[
            "port::a_pushed_packet_is_popped",
            "port::headers_and_quads_are_queues_of_their_own",
            "port::port_and_slots_receive_from_one_queue",
        ],
    ),
    (
        "registers regions in pages larger than those that an IOMMU maps memory in",
        VFIO,
        &[
            "rma_body::a_long_transfer_is_several_commands",
            "rma_body::what_is_refused_says_why",
            "rma_body::a_deregistered_region_is_not_touched",
            "rma_body::a_partner_that_goes_ends_commands",
        ],
    ),
];

macro_rules! bodies {
    ($($machine:ident $module:ident: $($body:ident)+;)+) => {
        /// All bodies.
        pub const BODIES: &[Body] = &[
            $($(Body {
                machine: stringify!($machine),
                name: concat!(stringify!($module), "::", stringify!($body)),
                run: $module::$body,
            },)+)+
        ];
    };
}

bodies! {
    proof slot_fifo:
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
    proof dma_engine:
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
        any_list_does_what_copies_in_order_do;
    proof addressed_send:
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
    tree slots:
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
        a_core_reaches_the_user_channel_only;
    tree port:
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
        a_soft_reset_empties_the_node;
    tree interrupts:
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
        a_global_interrupt_interrupts;
    tree lifecycle:
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
        a_reset_node_loses_packets_but_no_order;
    tree barrier:
        a_barrier_completes_with_the_last_node
        a_thousand_barriers_let_nobody_through_early
        an_early_node_waits_for_the_slow
        an_io_node_takes_part_when_it_says_so
        a_dead_node_has_not_entered
        a_notification_reaches_who_is_armed
        a_direct_channel_shows_the_or_of_all_levels
        a_core_cannot_use_the_systems_channels;
    tree collective:
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
        a_two_phase_floating_point_sum_is_exact;
    tree tree_hostile:
        a_hostile_node_breaks_no_other
        a_node_that_sends_nothing_disturbs_nobody
        a_flood_ends_with_a_reset_of_its_target
        the_mirror_cannot_be_written;
    fcnp fcnp_body:
        every_size_arrives_unchanged
        every_alignment_arrives_unchanged
        unequal_sizes_transfer_the_lesser
        all_cores_at_once_get_their_own_messages
        interrupt_mode_wakes_the_daemon_and_the_call
        deadlines_before_the_transfer_change_nothing
        cancelled_calls_end
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
        packets_arrive_in_order;
    velo velo_body:
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
        link_errors_are_repaired;
    velo velo_flow:
        credits_stop_the_sender_of_one_that_does_not_read
        promises_end_and_come_back
        the_watchdog_reports_a_receiver_that_does_not_read;
    velo velo_hostile:
        a_hostile_process_deceives_nobody
        nobody_writes_the_mirror_or_the_directory;
    rma rma_body:
        puts_and_gets_of_all_sizes_arrive
        an_immediate_put_wakes_who_sleeps
        a_long_transfer_is_several_commands
        a_stream_of_small_puts_goes_round_the_queue
        what_is_refused_says_why
        waits_end
        lost_notifications_are_told
        private_memory_is_transferred_by_messages
        a_deregistered_region_is_not_touched
        a_partner_that_goes_ends_commands
        an_eviction_ends_a_wait;
}

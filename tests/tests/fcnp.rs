//! FCNP between the cores of a pset, through every door.

use nicforge_tests::{fcnp_body, through_every_door};

through_every_door! {
    fcnp_body(crate::fcnp_body::machine(crate::fcnp_body::DEPTH)):
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
}

mod depth_1 {
    use super::*;
    through_every_door! {
        fcnp_body(nicforge_tests::fcnp_body::machine(1)):
            messages_arrive_unchanged;
    }
}

mod depth_2 {
    use super::*;
    through_every_door! {
        fcnp_body(nicforge_tests::fcnp_body::machine(2)):
            messages_arrive_unchanged;
    }
}

mod depth_256 {
    use super::*;
    through_every_door! {
        fcnp_body(nicforge_tests::fcnp_body::machine(256)):
            messages_arrive_unchanged;
    }
}

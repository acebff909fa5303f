//! The RMA library, through every door.

use nicforge_tests::{rma_body as rma, through_every_door};

through_every_door! {
    rma(crate::rma::machine()):
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
        an_eviction_ends_a_wait
        a_target_that_never_answers_ends_commands
        a_reset_asks_to_open_anew
        a_reset_by_the_admin_ends_waits
        a_vpid_leaves_others_their_part_of_the_table;
}

//! VELO between processes of two EXTOLL cards, through every door.

use nicforge_tests::{
    through_every_door,
    velo_body::{self, flow, hostile, machine, torn},
};

through_every_door! {
    velo_body(crate::machine(500)):
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
        link_errors_are_repaired;
    flow(crate::machine(500)):
        credits_stop_the_sender_of_one_that_does_not_read
        promises_end_and_come_back
        the_watchdog_reports_a_receiver_that_does_not_read;
    hostile(crate::machine(500)):
        a_hostile_process_deceives_nobody
        nobody_writes_the_mirror_or_the_directory;
    torn(crate::machine(500)):
        torn_messages_arrive_once_and_in_order
        a_message_that_is_torn_each_time_is_an_error;
}

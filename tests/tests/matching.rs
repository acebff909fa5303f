//! Matching's protocols: over the transport between ranks of one process, and over the EXTOLL card, through every door.

use nicforge_matching::memory::{Fabric, Port, Terms};
use nicforge_tests::{
    extoll_body::{self, machine},
    matching_body::{self, Network},
    through_every_door,
};

/// Ranks of this process, without a device.
struct Memory(Terms);

impl Network for Memory {
    type Transport = Port;

    fn ranks(&self, size: u32) -> Vec<Port> {
        Fabric::new(size, self.0).1
    }
}

/// What that transport may be like: messages of all kinds of sizes, shortages and delays, one ring for all and one each.
fn terms() -> Vec<Terms> {
    let sizes = [48, 64, 65, 120, 4096].into_iter();
    let of_size = |message_bytes| {
        [0, 1].map(|seed| Terms { message_bytes, get_bytes: 1000, credits: 4, seed, ..Terms::default() })
    };
    let of_seed = |seed| Terms { seed, one_ring: seed % 2 == 0, ..Terms::default() };
    sizes.flat_map(of_size).chain((2..20).map(of_seed)).collect()
}

macro_rules! everywhere {
    ($($body:ident)+) => {
        mod in_memory {
            $(#[test]
            fn $body() {
                for terms in crate::terms() {
                    crate::matching_body::$body(&crate::Memory(terms));
                }
            })+
        }

        mod over_extoll {
            $(pub(crate) fn $body(rig: &dyn nicforge_tests::backing::Rig) {
                crate::matching_body::$body(&crate::extoll_body::Extoll::new(rig));
            })+
        }

        through_every_door! {
            over_extoll(crate::machine()): $($body)+;
            extoll_body(crate::machine()):
                ranks_find_each_other
                long_messages_share_what_there_is
                what_is_deregistered_is_out_of_reach
                a_rank_that_goes_ends_what_waits_for_it
                an_evicted_rank_says_so
                a_hostile_rank_harms_itself_alone;
        }
    };
}

everywhere! {
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

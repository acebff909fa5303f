//! The PCI-IDIO-16, through every door.

use nicforge_tests::{idio16_body as idio16, through_every_door};

through_every_door! {
    idio16(idio16::machine()):
        it_is_a_plain_card_of_another_vendor
        outputs_come_back_at_the_inputs
        a_change_interrupts_until_it_is_cleared
        a_masked_change_interrupts_when_it_is_unmasked
        without_leave_it_does_not_interrupt
        wide_accesses_are_those_of_their_bytes
        a_filtered_change_interrupts_later
        a_reset_switches_everything_off
        the_next_client_finds_nothing_of_the_last
        a_second_client_is_refused;
}

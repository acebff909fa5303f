//! The tree NIC, through every door, and the time its packets take.
#![allow(clippy::unwrap_used, reason = "all of this file is tests")]

use std::sync::atomic::Ordering;

use nicforge_core::{
    device::{AttachmentId, FunctionId},
    machine::{Machine, Next},
    time::Nanos,
};
use nicforge_hwi::tree::{BAR_MIRROR, BAR_WINDOW, Header, SLOT, SLOT_CONTROL, mirror, window};
use nicforge_shm::SharedMemory;
use nicforge_tests::{
    through_every_door,
    tree_body::{
        barrier, collective, collective as two_psets, described, hostile, interrupts, lifecycle, machine,
        port, psets, slots, slots as slots_of_depth_1, slots as slots_of_depth_256,
    },
};

through_every_door! {
    slots(crate::machine(4, 8)):
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
    port(crate::machine(4, 8)):
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
    interrupts(crate::machine(4, 8)):
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
    lifecycle(crate::machine(4, 8)):
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
    collective(crate::machine(4, 8)):
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
    barrier(crate::machine(4, 8)):
        a_barrier_completes_with_the_last_node
        a_thousand_barriers_let_nobody_through_early
        an_early_node_waits_for_the_slow
        an_io_node_takes_part_when_it_says_so
        a_dead_node_has_not_entered
        a_notification_reaches_who_is_armed
        a_direct_channel_shows_the_or_of_all_levels
        a_core_cannot_use_the_systems_channels;
    hostile(crate::machine(4, 8)):
        a_hostile_node_breaks_no_other
        a_node_that_sends_nothing_disturbs_nobody
        a_flood_ends_with_a_reset_of_its_target
        the_mirror_cannot_be_written;
    slots_of_depth_1(crate::machine(4, 1)):
        every_node_reaches_every_node_in_order
        a_receiver_that_does_not_read_fills_everything_and_loses_nothing
        a_pointer_over_many_packets_frees_them_all;
    slots_of_depth_256(crate::machine(4, 256)):
        every_node_reaches_every_node_in_order
        a_receiver_that_does_not_read_fills_everything_and_loses_nothing
        a_pointer_over_many_packets_frees_them_all;
    two_psets(crate::psets(&[2, 3])):
        psets_reduce_on_their_own;
}

/// Links that take time, in a machine whose clock is stepped by hand from event to event.
mod virtual_time {
    use super::*;

    /// Bytes of a packet on the wire: header and payload.
    const PACKET: u64 = 256 + 4;
    /// What a packet takes at 6.8 Gb/s.
    const NANOSECONDS: f64 = PACKET as f64 * 8.0 / 6.8;

    /// The time after which the last bit of `count` packets has left, in nanoseconds, rounded up.
    fn transmission(count: u32) -> u64 {
        (f64::from(count) * NANOSECONDS).ceil() as u64
    }

    /// A pset of two compute nodes (1 and 2), both below the I/O node (0), with links of 6.8 Gb/s.
    struct Clocked {
        machine: Machine,
        now: Nanos,
    }

    /// A core's mapped memory.
    struct Slots {
        window: SharedMemory,
        mirror: SharedMemory,
    }

    impl Clocked {
        fn new(delay: u64) -> Self {
            let link = format!("delay_ns = {delay}\ngbit_s = 6.8\n");
            let machine = described(&format!("[[pset]]\ncompute_nodes = 2\n[pset.link]\n{link}"));
            Self { machine, now: Nanos::ZERO }
        }

        /// Core 0 of the node with this address, when the news of it has arrived everywhere.
        fn core(&mut self, address: u32) -> Slots {
            let (function, who) = (FunctionId(address), AttachmentId(0));
            self.machine.attach(function, who).unwrap();
            while self.next() {}
            let memory = |bar: u8| self.machine.region(function, who, bar.into()).unwrap().memory.unwrap();
            Slots { window: memory(BAR_WINDOW), mirror: memory(BAR_MIRROR) }
        }

        /// Does all that can be done at this time.
        fn settle(&mut self) {
            self.machine.rescan();
            let rests = (0..100_000).any(|_| self.machine.step(self.now, 64) != Next::Now);
            assert!(rests, "the machine does not come to rest");
        }

        /// Goes on to the next event of the fabric. False if there is none.
        fn next(&mut self) -> bool {
            self.settle();
            let next = self.machine.fabric().next_event();
            if next != Nanos::NEVER {
                self.now = next;
                self.settle();
            }
            next != Nanos::NEVER
        }

        /// Sends packets, {sender, target, how many}, while everybody reads; the time until `arrivals`, {receiver, how many},
        /// are there.
        fn run(&mut self, packets: &[(&Slots, u32, u32)], arrivals: &[(&Slots, u32)]) -> u64 {
            let start = self.now;
            while arrivals.iter().any(|(to, count)| to.received() < *count) {
                for (from, target, count) in packets {
                    while from.sent() < *count && from.try_send(*target) {}
                }
                arrivals.iter().for_each(|(to, _)| to.read_all());
                assert!(self.next(), "packets are missing and nothing is under way");
            }
            self.now.0 - start.0
        }
    }

    impl Slots {
        fn word(memory: &SharedMemory, offset: u64) -> u32 {
            memory.u32(offset).unwrap().load(Ordering::Acquire)
        }

        fn store(&self, offset: u64, value: u32) {
            self.window.u32(offset).unwrap().store(value, Ordering::Release);
        }

        fn sent(&self) -> u32 {
            Self::word(&self.window, window::SEND_TAIL)
        }

        fn received(&self) -> u32 {
            Self::word(&self.mirror, mirror::RECV_TAIL)
        }

        fn read_all(&self) {
            self.store(window::RECV_HEAD, self.received());
        }

        fn try_send(&self, target: u32) -> bool {
            let (tail, depth) = (self.sent(), Self::word(&self.mirror, mirror::SEND_DEPTH));
            if tail - Self::word(&self.mirror, mirror::SEND_HEAD) >= depth {
                return false;
            }
            let header = Header::point_to_point(0, target, false);
            let control =
                self.window.u64(window::SEND + u64::from(tail % depth) * SLOT + SLOT_CONTROL).unwrap();
            control.store(u64::from(tail + 1) | u64::from(header.0) << 32, Ordering::Release);
            self.store(window::SEND_TAIL, tail + 1);
            true
        }
    }

    #[test]
    fn a_packet_takes_its_260_bytes_at_6_8_gbit_a_second() {
        let mut machine = Clocked::new(0);
        let (io, node) = (machine.core(0), machine.core(1));

        assert_eq!(machine.run(&[(&node, 0, 1)], &[(&io, 1)]), 306);
    }

    #[test]
    fn the_delay_of_each_link_comes_on_top() {
        let mut machine = Clocked::new(100);
        let (first, second) = (machine.core(1), machine.core(2));

        assert_eq!(machine.run(&[(&first, 2, 1)], &[(&second, 1)]), 2 * (306 + 100));
    }

    #[test]
    fn packets_in_a_row_keep_the_link_busy() {
        let mut machine = Clocked::new(0);
        let (io, node) = (machine.core(0), machine.core(1));

        let time = machine.run(&[(&node, 0, 1000)], &[(&io, 1000)]);

        assert_eq!(time, transmission(1000));
        // The payload's share of the link.
        let payload_rate = 1000.0 * 256.0 * 8.0 / time as f64;
        assert!((payload_rate - 6.695).abs() < 0.001, "{payload_rate} Gb/s");
    }

    #[test]
    fn both_directions_are_as_fast_as_one() {
        let mut machine = Clocked::new(0);
        let (io, node) = (machine.core(0), machine.core(1));

        let time = machine.run(&[(&node, 0, 500), (&io, 1, 500)], &[(&io, 500), (&node, 500)]);

        assert_eq!(time, transmission(500));
    }

    #[test]
    fn senders_on_different_links_take_no_time_from_each_other() {
        let mut machine = Clocked::new(0);
        let (io, first, second) = (machine.core(0), machine.core(1), machine.core(2));

        let time = machine.run(&[(&first, 0, 200), (&second, 0, 200)], &[(&io, 400)]);

        assert_eq!(time, transmission(200));
    }
}

//! The bodies that run in guests: the same as through every other door, as a table, since many run
//! in one boot.
//!
//! [`HOST_ONLY`] lists those that cannot, with the reasons.

use crate::{
    backing::{Rig, Served},
    extoll_body::{self, over_extoll},
    fcnp_body,
    proof_body::{self, addressed_send, dma_engine, slot_fifo},
    rma_body,
    tree_body::{self, barrier, collective, hostile as tree_hostile, interrupts, lifecycle, port, slots},
    velo_body::{self, flow as velo_flow, hostile as velo_hostile, torn as velo_torn},
};

/// A door in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Linux's VFIO, behind a virtual IOMMU.
    Vfio,
    /// The kernel shim, without an IOMMU.
    Shim,
    /// The kernel shim, behind a virtual IOMMU.
    ShimIommu,
}

impl Door {
    const ALL: [Self; 3] = [Self::Vfio, Self::Shim, Self::ShimIommu];

    /// Returns its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vfio => "vfio",
            Self::Shim => "shim",
            Self::ShimIommu => "shim-iommu",
        }
    }

    /// Returns the door of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|door| door.name() == name)
    }
}

/// A test body.
pub struct Body {
    /// The name of its machine ([`machine`]).
    pub machine: &'static str,
    /// Its name, as in `slot_fifo::messages_come_back_in_order`.
    pub name: &'static str,
    /// The function.
    pub run: fn(&dyn Rig),
}

impl Body {
    /// Returns why it does not run through a door, or `None` if it does.
    pub fn reason_not_to_run(&self, door: Door) -> Option<&'static str> {
        let found =
            HOST_ONLY.iter().find(|(_, doors, names)| doors.contains(&door) && names.contains(&self.name));
        found.map(|(reason, _, _)| *reason)
    }
}

/// The machine that some bodies run on.
pub struct MachineOfBodies {
    /// Makes the machine.
    pub make: fn() -> nicforge_core::machine::Machine,
    /// The functions with the attachments that its bodies use.
    pub attachments: &'static [(&'static [&'static str], &'static [&'static str])],
}

const USERS: &[&str] = &["user0", "user1", "user2", "user3"];
const CORES: &[&str] = &["core0", "core1", "core2", "core3"];
const VPIDS: &[&str] = &["vpid0", "vpid1", "vpid2", "vpid3"];

/// Returns the machine of this name.
pub fn machine(name: &str) -> MachineOfBodies {
    match name {
        "proof" => MachineOfBodies {
            make: proof_body::machine,
            attachments: &[(&["fifo0", "dma0", "send0"], USERS)],
        },
        "tree" => MachineOfBodies {
            make: || tree_body::machine(4, 8),
            // The admin attachments are the operator's.
            attachments: &[(&["io0", "cn0", "cn1", "cn2", "cn3"], CORES)],
        },
        "fcnp" => MachineOfBodies {
            make: || fcnp_body::machine(fcnp_body::DEPTH),
            attachments: &[(&["io0"], &["core0", "core1", "core2"]), (&["cn0", "cn1"], CORES)],
        },
        "velo" => {
            MachineOfBodies { make: || velo_body::machine(500), attachments: &[(&["ex0", "ex1"], VPIDS)] }
        }
        "transport" => {
            MachineOfBodies { make: extoll_body::machine, attachments: &[(&["ex0", "ex1"], VPIDS)] }
        }
        "rma" => MachineOfBodies { make: rma_body::machine, attachments: &[(&["ex0", "ex1"], VPIDS)] },
        _ => panic!("there are no bodies of a machine {name}"),
    }
}

impl MachineOfBodies {
    /// Returns names and sockets of the attachments.
    pub fn sockets(&self, served: &Served) -> Vec<(String, std::path::PathBuf)> {
        let all = self.attachments.iter().flat_map(|(functions, attachments)| {
            functions.iter().flat_map(|function| attachments.iter().map(move |name| (*function, *name)))
        });
        all.map(|(function, name)| (format!("{function}.{name}"), served.socket(function, name))).collect()
    }
}

/// Every door: VFIO, and the shim with or without an IOMMU.
const BOTH: &[Door] = &Door::ALL;
const SHIM: &[Door] = &[Door::Shim];
const VFIO: &[Door] = &[Door::Vfio];

/// Bodies that do not run through some doors: the reason, the doors, and the bodies' names.
pub const HOST_ONLY: &[(&str, &[Door], &[&str])] = &[
    (
        "hands the operator code of its own, or asks what no counter tells",
        BOTH,
        &[
            "addressed_send::malformed_records_are_skipped",
            "addressed_send::a_half_written_record_wedges_nothing",
            "velo_body::link_errors_are_repaired",
            "rma_body::a_reset_by_the_admin_ends_waits",
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
            "extoll_body::an_evicted_rank_says_so",
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
        "somebody comes or goes: QEMU has all attachments, whatever its guest's programs do",
        BOTH,
        &[
            "addressed_send::a_send_to_nobody_is_refused",
            "rma_body::nobody_and_the_admin_are_no_partners",
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
            "addressed_send::a_trapped_read_waits_behind_a_stalled_send",
            "barrier::a_barrier_completes_with_the_last_node",
            "barrier::an_io_node_takes_part_when_it_says_so",
        ],
    ),
    (
        "the admin is the operator's",
        BOTH,
        &[
            "velo_body::a_reset_by_the_admin_asks_to_open_again",
            "extoll_body::a_rank_whose_device_is_reset_says_so",
            "extoll_body::why_a_rank_is_gone_is_said",
            "extoll_body::what_a_rank_that_was_given_up_may_still_fetch_stays",
            "fcnp_body::soft_reset_of_the_io_node_ends_its_calls",
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
            "rma_body::a_target_that_never_answers_ends_commands",
            "rma_body::what_was_before_a_reset_by_the_admin_can_be_dropped_later",
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
        "goes round the library: VFIO lets any program store to what only the device writes, which QEMU does not survive",
        VFIO,
        &["tree_hostile::the_mirror_cannot_be_written"],
    ),
    (
        "an interrupt is a bus master's write, too",
        BOTH,
        &["dma_engine::a_function_without_bus_mastering_reaches_nothing"],
    ),
    (
        "chooses addresses itself, and without an IOMMU the kernel does",
        SHIM,
        &[
            "velo_torn::torn_messages_arrive_once_and_in_order",
            "velo_torn::a_message_that_is_torn_each_time_is_an_error",
        ],
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
        ],
    ),
    (
        "the kernel chooses the addresses, and puts no two mappings side by side",
        &[Door::Shim, Door::ShimIommu],
        &["rma_body::a_region_of_scattered_pages_is_one"],
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
        &[Door::Shim, Door::ShimIommu],
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
];

/// Lists the bodies of a module, on a machine.
#[doc(hidden)]
#[macro_export]
macro_rules! listed {
    ($machine:literal $module:ident: $($body:ident)+) => {
        &[$($crate::guest_bodies::Body {
            machine: $machine,
            name: concat!(stringify!($module), "::", stringify!($body)),
            run: $module::$body,
        },)+]
    };
}

macro_rules! bodies {
    ($($machine:literal: $($module:ident)+;)+) => {
        /// All bodies, by modules.
        pub const BODIES: &[&[Body]] = &[$($($crate::bodies_of!($module => [$crate::listed] $machine $module:),)+)+];
    };
}

bodies! {
    "proof": slot_fifo dma_engine addressed_send;
    "tree": slots port interrupts lifecycle barrier collective tree_hostile;
    "fcnp": fcnp_body;
    "velo": velo_body velo_flow velo_hostile velo_torn;
    "rma": rma_body;
    "transport": over_extoll extoll_body;
}

#[cfg(test)]
mod tests {
    use super::{BODIES, HOST_ONLY};

    #[test]
    fn reasons_are_given_for_bodies_that_there_are() {
        let there = |name: &&str| BODIES.iter().copied().flatten().any(|body| body.name == *name);
        let unknown: Vec<_> =
            HOST_ONLY.iter().flat_map(|(.., names)| *names).filter(|name| !there(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}

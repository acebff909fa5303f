//! The side queue of a send FIFO.

use std::collections::VecDeque;

use nicforge_core::fabric::{Packet, Ports};

/// An item that the NIC put into the send FIFO: a packet, or the new generation of one of the
/// node's cores.
pub(crate) enum SideItem {
    Packet(Packet),
    Presence { core: u8, generation: u8 },
}

/// An item with its position.
struct Positioned {
    /// Number of the slot that the item goes in front of.
    slot: u32,
    item: SideItem,
}

/// Items that the NIC put between the slots of a send FIFO, in the order in which they leave.
///
/// The slot numbers never decrease from one item to the next. `packets` counts the packets among
/// the items. There is at most one presence symbol for each core, which bounds the rest.
#[derive(Default)]
pub(super) struct SideQueue {
    items: VecDeque<Positioned>,
    packets: u32,
}

impl SideQueue {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the number of packets in the queue.
    #[inline]
    pub(super) fn packets(&self) -> u32 {
        self.packets
    }

    /// Returns the first item if it goes in front of `slot`.
    #[inline]
    pub(super) fn before(&self, slot: u32) -> Option<&SideItem> {
        self.items.front().filter(|first| first.slot == slot).map(|first| &first.item)
    }

    /// Returns how many of `maximum` slots from `slot` on leave before the first item.
    #[inline]
    pub(super) fn slots_before(&self, slot: u32, maximum: u32) -> u32 {
        self.items.front().map_or(maximum, |first| maximum.min(first.slot.wrapping_sub(slot)))
    }

    /// Adds an item after all other items. It leaves before the packet in slot number `slot`.
    pub(super) fn push(&mut self, slot: u32, item: SideItem) {
        match &item {
            SideItem::Packet(_) => self.packets += 1,
            // An older symbol for the same core is superseded.
            SideItem::Presence { core, .. } => self.items.retain(
                |other| !matches!(&other.item, SideItem::Presence { core: other, .. } if other == core),
            ),
        }

        self.items.push_back(Positioned { slot, item });
    }

    /// Removes the first item.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<SideItem> {
        let item = self.items.pop_front()?.item;
        if matches!(item, SideItem::Packet(_)) {
            self.packets -= 1;
        }
        Some(item)
    }

    /// Makes all items go in front of `slot`.
    pub(super) fn move_in_front_of(&mut self, slot: u32) {
        for item in &mut self.items {
            item.slot = slot;
        }
    }

    /// Drops all items.
    pub(super) fn clear(&mut self, ports: &mut Ports<'_>) {
        while let Some(item) = self.pop() {
            if let SideItem::Packet(packet) = item {
                ports.recycle(packet);
            }
        }
    }
}

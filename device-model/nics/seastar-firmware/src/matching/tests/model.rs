//! A process as the standard describes it, without tables, handles, or counts kept in advance.

use alloc::{collections::BTreeMap, vec::Vec};

use nicforge_hwi::seastar::{THRESHOLD_INFINITE, event, option};

/// An event as the model sees it: kind, descriptor, offset, moved bytes, whether it is the last.
pub(super) type ExpectedEvent = (u8, u32, u64, u32, bool);

/// Values of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    pub(super) length: u64,
    pub(super) threshold: i32,
    pub(super) max_size: u64,
    pub(super) options: u16,
}

#[derive(Clone, Debug)]
struct ModelDescriptor {
    values: Values,
    offset: u64,
    used_up: bool,
}

#[derive(Clone, Debug)]
struct ModelEntry {
    name: u32,
    match_bits: u64,
    ignore_bits: u64,
    unlinks: bool,
    descriptor: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct ModelOperation {
    descriptor: u32,
    offset: u64,
    moved: u32,
    end: u8,
    is_waiting: bool,
}

/// All objects have names that are never used again.
#[derive(Default)]
pub(super) struct Model {
    list: Vec<ModelEntry>,
    descriptors: BTreeMap<u32, ModelDescriptor>,
    operations: BTreeMap<u32, ModelOperation>,
    names: u32,
    pub(super) written: u32,
    pub(super) drops: u64,
}

impl Model {
    fn name(&mut self) -> u32 {
        self.names += 1;
        self.names
    }

    pub(super) fn is_queue_empty(&self, taken: u32) -> bool {
        self.written == taken && self.operations.values().all(|operation| operation.is_waiting)
    }

    /// Adds an entry after the first `position` ones, with a descriptor.
    pub(super) fn post(
        &mut self,
        position: usize,
        bits: u64,
        ignore: u64,
        unlinks: bool,
        values: Values,
    ) -> (u32, u32) {
        let descriptor = self.bind(values);
        let name = self.name();
        let entry =
            ModelEntry { name, match_bits: bits, ignore_bits: ignore, unlinks, descriptor: Some(descriptor) };
        self.list.insert(position.min(self.list.len()), entry);
        (name, descriptor)
    }

    pub(super) fn bind(&mut self, values: Values) -> u32 {
        let name = self.name();
        self.descriptors.insert(name, ModelDescriptor { values, offset: 0, used_up: false });
        name
    }

    pub(super) fn position_of(&self, entry: u32) -> Option<usize> {
        self.list.iter().position(|other| other.name == entry)
    }

    fn is_busy(&self, descriptor: u32) -> bool {
        self.operations.values().any(|operation| operation.descriptor == descriptor && !operation.is_waiting)
    }

    fn is_active(&self, descriptor: u32) -> bool {
        self.descriptors
            .get(&descriptor)
            .is_some_and(|descriptor| descriptor.values.threshold != 0 && !descriptor.used_up)
    }

    fn remove(&mut self, descriptor: u32) {
        self.descriptors.remove(&descriptor);
        self.operations.retain(|_, operation| operation.descriptor != descriptor);
        for entry in &mut self.list {
            if entry.descriptor == Some(descriptor) {
                entry.descriptor = None;
                if entry.unlinks {
                    entry.name = 0;
                }
            }
        }
        self.list.retain(|entry| entry.name != 0);
    }

    /// Unlinks a descriptor, and returns whether that is possible.
    pub(super) fn unlink_descriptor(&mut self, descriptor: u32) -> bool {
        let possible = self.descriptors.contains_key(&descriptor) && !self.is_busy(descriptor);
        if possible {
            self.remove(descriptor);
        }
        possible
    }

    /// Unlinks an entry, and returns whether that is possible.
    pub(super) fn unlink_entry(&mut self, entry: u32) -> bool {
        let Some(position) = self.position_of(entry) else { return false };
        if let Some(descriptor) = self.list[position].descriptor {
            if self.is_busy(descriptor) {
                return false;
            }
            self.list[position].descriptor = None;
            self.remove(descriptor);
        }
        self.list.remove(position);
        true
    }

    /// Updates a descriptor, and returns `None` if it does not exist.
    pub(super) fn update(&mut self, descriptor: u32, values: Values, taken: Option<u32>) -> Option<bool> {
        self.descriptors.get(&descriptor)?;
        let is_used = self.operations.values().any(|operation| operation.descriptor == descriptor);
        if is_used || taken.is_some_and(|taken| !self.is_queue_empty(taken)) {
            return Some(false);
        }
        self.descriptors.insert(descriptor, ModelDescriptor { values, offset: 0, used_up: false });
        Some(true)
    }

    fn count(&mut self, descriptor: u32) {
        let found = self.descriptors.get_mut(&descriptor).unwrap();
        if found.values.threshold != THRESHOLD_INFINITE {
            found.values.threshold -= 1;
        }
    }

    /// Takes a put or get. Returns its operation, descriptor, offset, length, traversed entries and
    /// start event.
    pub(super) fn arrive(
        &mut self,
        is_put: bool,
        bits: u64,
        length: u32,
        remote: u64,
    ) -> Option<(u32, u32, u64, u32, u32, Vec<ExpectedEvent>)> {
        let expected = if is_put { option::OP_PUT } else { option::OP_GET };
        let mut chosen = None;
        for (position, entry) in self.list.iter().enumerate() {
            let Some(name) = entry.descriptor else { continue };
            let descriptor = &self.descriptors[&name];
            let options = descriptor.values.options;
            let bits_differ = (bits ^ entry.match_bits) & !entry.ignore_bits != 0;
            if bits_differ || !self.is_active(name) || options & expected == 0 {
                continue;
            }

            let is_remote = options & option::MANAGE_REMOTE != 0;
            let offset = if is_remote { remote } else { descriptor.offset };
            let size = descriptor.values.length;
            let fits = u128::from(offset) + u128::from(length) <= u128::from(size);
            if fits || (options & option::TRUNCATE != 0 && offset <= size) {
                let moved = if fits { length } else { (size - offset) as u32 };
                chosen = Some((name, offset, moved, position as u32 + 1, is_remote));
                break;
            }
        }

        let Some((name, offset, moved, traversed, is_remote)) = chosen else {
            self.drops += 1;
            return None;
        };
        self.count(name);
        let found = self.descriptors.get_mut(&name).unwrap();
        if !is_remote {
            found.offset = offset + u64::from(moved);
            let remaining = found.values.length - found.offset;
            found.used_up |=
                found.values.options & option::MAX_SIZE != 0 && remaining < found.values.max_size;
        }

        let (start, end) =
            if is_put { (event::PUT_START, event::PUT_END) } else { (event::GET_START, event::GET_END) };
        let operation = self.begin(name, offset, moved, end, false);
        let events = self.start(name, offset, moved, start);
        Some((operation, name, offset, moved, traversed, events))
    }

    fn begin(&mut self, descriptor: u32, offset: u64, moved: u32, end: u8, is_waiting: bool) -> u32 {
        let name = self.name();
        self.operations.insert(name, ModelOperation { descriptor, offset, moved, end, is_waiting });
        name
    }

    fn start(&mut self, descriptor: u32, offset: u64, moved: u32, kind: u8) -> Vec<ExpectedEvent> {
        let mut events = Vec::new();
        if self.descriptors[&descriptor].values.options & option::START_DISABLE == 0 {
            events.push((kind, descriptor, offset, moved, false));
        }
        self.written += events.len() as u32;
        events
    }

    /// Begins a put or get. Returns its operation and its events.
    pub(super) fn send(
        &mut self,
        is_put: bool,
        descriptor: u32,
        offset: u64,
        length: u32,
    ) -> Option<(u32, Vec<ExpectedEvent>)> {
        let size = self.descriptors.get(&descriptor)?.values.length;
        if !self.is_active(descriptor) || offset + u64::from(length) > size {
            return None;
        }

        self.count(descriptor);
        let end = if is_put { event::SEND_END } else { event::REPLY_END };
        let operation = self.begin(descriptor, offset, length, end, !is_put);
        let events =
            if is_put { self.start(descriptor, offset, length, event::SEND_START) } else { Vec::new() };
        Some((operation, events))
    }

    /// Takes a reply. Returns the offset, the length, and the events.
    pub(super) fn reply(&mut self, operation: u32, length: u32) -> Option<(u64, u32, Vec<ExpectedEvent>)> {
        let get = self.operations.get_mut(&operation).filter(|operation| operation.is_waiting)?;
        get.is_waiting = false;
        get.moved = get.moved.min(length);
        let ModelOperation { descriptor, offset, moved, .. } = *get;
        Some((offset, moved, self.start(descriptor, offset, moved, event::REPLY_START)))
    }

    /// Takes an acknowledgement of a put on a descriptor.
    pub(super) fn acknowledge(&mut self, descriptor: u32, moved: u32) -> Vec<ExpectedEvent> {
        if !self.is_active(descriptor) {
            return Vec::new();
        }
        self.count(descriptor);
        self.finish(descriptor, Some((event::ACK, descriptor, 0, moved)))
    }

    /// Ends an operation.
    pub(super) fn end(&mut self, operation: u32) -> Vec<ExpectedEvent> {
        let Some(ended) = self.operations.remove(&operation) else { return Vec::new() };
        let ModelOperation { descriptor, offset, moved, end, .. } = ended;
        let is_silent = self.descriptors[&descriptor].values.options & option::END_DISABLE != 0;
        self.finish(descriptor, (!is_silent).then_some((end, descriptor, offset, moved)))
    }

    /// Writes the last events of an operation, and unlinks its descriptor if that is finished.
    fn finish(&mut self, descriptor: u32, last: Option<(u8, u32, u64, u32)>) -> Vec<ExpectedEvent> {
        let unlinks = self.descriptors[&descriptor].values.options & option::UNLINK != 0;
        let is_used = self.operations.values().any(|operation| operation.descriptor == descriptor);
        let is_last = unlinks && !self.is_active(descriptor) && !is_used;

        let mut events = Vec::new();
        events.extend(last.map(|(kind, name, offset, moved)| (kind, name, offset, moved, is_last)));
        if is_last {
            events.push((event::UNLINK, descriptor, 0, 0, true));
            self.remove(descriptor);
        }
        self.written += events.len() as u32;
        events
    }
}

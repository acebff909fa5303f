//! Doubly linked lists of numbered nodes in one table. A node leaves its list in constant time.
//! Nothing is allocated once the table has its full size.

/// In place of a node number: no node.
pub(crate) const NONE: u32 = u32::MAX;

/// A list; the links of its nodes are in a [`Lists`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self { head: NONE, tail: NONE };

    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub(crate) fn last(&self) -> Option<u32> {
        (self.tail != NONE).then_some(self.tail)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// The links of nodes. A node is in one list at most; the caller must know which.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    links: Vec<Neighbours>,
}

/// The neighbours of a node in its list.
#[derive(Clone, Copy, Debug)]
struct Neighbours {
    previous: u32,
    next: u32,
}

impl Lists {
    /// Allocates memory for the links of nodes below `count`.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.links.reserve(count.saturating_sub(self.links.len()));
    }

    /// Appends `node` to `list`.
    #[inline]
    pub(crate) fn push(&mut self, list: &mut List, node: u32) {
        if node as usize >= self.links.len() {
            self.links.resize(node as usize + 1, Neighbours { previous: NONE, next: NONE });
        }

        self.links[node as usize] = Neighbours { previous: list.tail, next: NONE };
        match list.tail {
            NONE => list.head = node,
            tail => self.links[tail as usize].next = node,
        }
        list.tail = node;
    }

    /// Removes `node` from `list`, which contains it.
    #[inline]
    pub(crate) fn remove(&mut self, list: &mut List, node: u32) {
        let Neighbours { previous, next } = self.links[node as usize];
        match previous {
            NONE => list.head = next,
            previous => self.links[previous as usize].next = next,
        }

        match next {
            NONE => list.tail = previous,
            next => self.links[next as usize].previous = previous,
        }
    }

    /// Removes the first node of `list` and returns it.
    #[inline]
    pub(crate) fn pop(&mut self, list: &mut List) -> Option<u32> {
        let node = list.first()?;
        let next = self.links[node as usize].next;

        list.head = next;
        match next {
            NONE => list.tail = NONE,
            next => self.links[next as usize].previous = NONE,
        }
        Some(node)
    }

    /// Returns the node after `node`.
    #[inline]
    pub(crate) fn next(&self, node: u32) -> Option<u32> {
        let next = self.links[node as usize].next;
        (next != NONE).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(lists: &Lists, list: &List) -> Vec<u32> {
        std::iter::successors(list.first(), |&node| lists.next(node)).collect()
    }

    #[test]
    fn nodes_leave_from_the_ends_and_the_middle() {
        let (mut lists, mut list) = (Lists::default(), List::EMPTY);
        for node in [4, 0, 9, 2] {
            lists.push(&mut list, node);
        }

        lists.remove(&mut list, 0);
        assert_eq!(nodes(&lists, &list), [4, 9, 2]);

        lists.remove(&mut list, 2);
        assert_eq!(lists.pop(&mut list), Some(4));
        lists.push(&mut list, 4);
        assert_eq!(nodes(&lists, &list), [9, 4]);

        assert_eq!(
            (lists.pop(&mut list), lists.pop(&mut list), lists.pop(&mut list)),
            (Some(9), Some(4), None)
        );
        assert!(list.is_empty());
    }
}

//! Segments (`stretch` in the code): runs of blocks of one chain, the list of free ones by age, and the index of first names.
//!
//! This module has the data structure of the pool, separate from its rules. Invariant: a name that begins one segment
//! begins every segment that contains it. The index therefore finds all copies of a block that a walk can reach.

use std::sync::Arc;

use super::{BlockPool, NONE};

#[derive(Clone, Debug)]
pub(super) struct BlockRun {
    pub names: Names,
    pub from: u32,
    pub len: u32,
    pub holders: u32,
    pub older: u32,
    pub younger: u32,
    /// Next segment with an equal first name.
    pub twin: u32,
}

#[derive(Clone, Debug)]
pub(super) enum Names {
    Blank,
    Given(Arc<Vec<u64>>),
    /// Private blocks of the request with this number.
    Private(u64),
}

impl BlockRun {
    pub fn names(&self) -> &[u64] {
        match &self.names {
            Names::Given(names) => &names[self.from as usize..(self.from + self.len) as usize],
            Names::Blank | Names::Private(_) => &[],
        }
    }

    /// Copies the remaining names of a long prompt, so that its other names can be freed.
    pub(crate) fn slim(&mut self) {
        if let Names::Given(names) = &self.names
            && (self.len as usize) * 8 < names.len()
        {
            let own = self.names().to_vec();
            (self.names, self.from) = (Names::Given(Arc::new(own)), 0);
        }
    }

    /// Returns the number of equal leading blocks.
    pub fn common(&self, names: &[u64]) -> u32 {
        let own = self.names();
        let most = own.len().min(names.len());
        if own[..most] == names[..most] {
            return most as u32;
        }
        own.iter().zip(names).take_while(|(own, asked)| own == asked).count() as u32
    }
}

impl BlockPool {
    /// Follows the stored part of a chain, and calls `visit` with each segment and its number of new blocks.
    /// Returns the number of found blocks.
    pub(super) fn walk(&self, names: &[u64], mut visit: impl FnMut(&BlockRun, u32)) -> u32 {
        let mut at = 0;
        while let Some(asked) = names.get(at as usize..).filter(|asked| !asked.is_empty())
            && let Some(&first) = self.index.get(&asked[0])
        {
            let (mut node, mut reached) = (first, 0);
            while node != NONE {
                let stretch = &self.stretches[node as usize];
                let common = stretch.common(asked);
                if common > reached {
                    visit(stretch, common - reached);
                    reached = common;
                }
                node = stretch.twin;
            }
            at += reached;
        }
        at
    }

    /// Cuts this segment and its twins after `blocks`, if they are longer.
    pub(super) fn cut(&mut self, first: u32, blocks: u32) {
        let mut node = first;
        while node != NONE {
            if self.stretches[node as usize].len > blocks {
                self.split(node, blocks);
            }
            node = self.stretches[node as usize].twin;
        }
    }

    /// Cuts the twins of a segment at its end.
    pub(super) fn align(&mut self, node: u32) {
        let stretch = &self.stretches[node as usize];
        let blocks = stretch.len;
        if let Some(&first) = stretch.names().first().and_then(|name| self.index.get(name)) {
            self.cut(first, blocks);
        }
    }

    /// Returns the maximum length of a new segment of these blocks, so that it ends at the end of a copy.
    pub(super) fn uncut(&self, names: &[u64]) -> u32 {
        let mut len = names.len() as u32;
        let mut node = self.index.get(&names[0]).copied().unwrap_or(NONE);
        while node != NONE {
            let stretch = &self.stretches[node as usize];
            if stretch.common(names) == stretch.len {
                len = len.min(stretch.len);
            }
            node = stretch.twin;
        }
        len
    }

    /// Splits a segment; it keeps the first `blocks`.
    pub(super) fn split(&mut self, node: u32, blocks: u32) {
        let stretch = &self.stretches[node as usize];
        let (names, from, len) = (stretch.names.clone(), stretch.from + blocks, stretch.len - blocks);
        let holders = stretch.holders;
        let rest = self.add(names, from, len);
        self.stretches[rest as usize].holders = holders;
        self.stretches[rest as usize].slim();
        self.stretches[node as usize].len = blocks;
        self.stretches[node as usize].slim();
        self.register(rest);
        if holders == 0 {
            self.link_before(rest, node);
            return;
        }
        for &holder in &self.holders {
            let path = &mut self.holds[holder as usize].path;
            if let Some(place) = path.iter().position(|&on_path| on_path == node) {
                path.insert(place + 1, rest);
            }
        }
    }

    pub(super) fn add(&mut self, names: Names, from: u32, len: u32) -> u32 {
        let stretch = BlockRun { names, from, len, holders: 0, older: NONE, younger: NONE, twin: NONE };
        match self.spare.pop() {
            Some(node) => {
                self.stretches[node as usize] = stretch;
                node
            }
            None => {
                self.stretches.push(stretch);
                (self.stretches.len() - 1) as u32
            }
        }
    }

    /// Frees a segment and its names. Returns its length.
    pub(super) fn drop_stretch(&mut self, node: u32) -> u32 {
        let stretch = &mut self.stretches[node as usize];
        stretch.names = Names::Blank;
        self.spare.push(node);
        stretch.len
    }

    /// Adds a segment to the index, after its twins.
    pub(super) fn register(&mut self, node: u32) {
        let Some(&name) = self.stretches[node as usize].names().first() else { return };
        match self.index.get(&name).copied() {
            None => {
                self.index.insert(name, node);
            }
            Some(mut twin) => {
                while self.stretches[twin as usize].twin != NONE {
                    twin = self.stretches[twin as usize].twin;
                }
                self.stretches[twin as usize].twin = node;
            }
        }
    }

    /// Removes a segment from the index.
    pub(super) fn forget(&mut self, node: u32) {
        let stretch = &self.stretches[node as usize];
        let next = stretch.twin;
        let name = match &stretch.names {
            Names::Blank => return,
            Names::Private(request) => {
                self.left_behind.remove(request);
                return;
            }
            Names::Given(names) => names[stretch.from as usize],
        };
        let Some(&first) = self.index.get(&name) else { return };
        if first == node {
            match next {
                NONE => self.index.remove(&name),
                next => self.index.insert(name, next),
            };
            return;
        }
        let mut twin = first;
        while self.stretches[twin as usize].twin != node {
            twin = self.stretches[twin as usize].twin;
        }
        self.stretches[twin as usize].twin = next;
    }

    pub(super) fn link_youngest(&mut self, node: u32) {
        self.link(node, self.youngest, NONE);
    }

    pub(super) fn link_oldest(&mut self, node: u32) {
        self.link(node, NONE, self.oldest);
    }

    pub(super) fn link_before(&mut self, node: u32, younger: u32) {
        self.link(node, self.stretches[younger as usize].older, younger);
    }

    pub(super) fn link(&mut self, node: u32, older: u32, younger: u32) {
        let stretch = &mut self.stretches[node as usize];
        (stretch.older, stretch.younger) = (older, younger);
        match older {
            NONE => self.oldest = node,
            older => self.stretches[older as usize].younger = node,
        }
        match younger {
            NONE => self.youngest = node,
            younger => self.stretches[younger as usize].older = node,
        }
    }

    pub(super) fn unlink(&mut self, node: u32) {
        let BlockRun { older, younger, .. } = self.stretches[node as usize];
        match older {
            NONE => self.oldest = younger,
            older => self.stretches[older as usize].younger = younger,
        }
        match younger {
            NONE => self.youngest = older,
            younger => self.stretches[younger as usize].older = older,
        }
    }
}

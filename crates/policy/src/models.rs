//! Which models each replica serves, as far as it says so.
//!
//! A model that some replica names goes to those that name it, and to those that say nothing of theirs; one that nobody names goes to anybody, who
//! will say what is wrong with it.

use std::collections::{BTreeMap, BTreeSet};

/// See the module. Models go by a hash of their names.
#[derive(Clone, Debug)]
pub(crate) struct Models {
    each: Vec<Option<Vec<u64>>>,
    /// Models that some replicas name and others, which say what they serve, do not: in order.
    apart: Vec<u64>,
}

impl Models {
    /// Nobody has said anything.
    pub fn new(replicas: usize) -> Models {
        Models { each: vec![None; replicas], apart: Vec::new() }
    }

    /// A replica joins, and has said nothing.
    pub fn join(&mut self, replica: u32) {
        if self.each.len() <= replica as usize {
            self.each.resize(replica as usize + 1, None);
        }
    }

    /// What a replica serves; `None` = it does not say.
    pub fn set(&mut self, replica: u32, models: Option<Vec<u64>>) {
        if self.each[replica as usize] == models {
            return;
        }
        self.each[replica as usize] = models;
        let mut named: BTreeMap<u64, usize> = BTreeMap::new();
        for models in self.each.iter().flatten() {
            let once: BTreeSet<u64> = models.iter().copied().collect();
            once.into_iter().for_each(|model| *named.entry(model).or_default() += 1);
        }
        let told = self.each.iter().flatten().count();
        self.apart = named.into_iter().filter(|(_, count)| *count < told).map(|(model, _)| model).collect();
    }

    /// The model, if it decides who may get a request.
    pub fn deciding(&self, model: Option<u64>) -> Option<u64> {
        model.filter(|model| self.apart.binary_search(model).is_ok())
    }

    /// May this replica get requests for a model that decides?
    pub fn serves(&self, replica: u32, model: u64) -> bool {
        self.each[replica as usize].as_ref().is_none_or(|models| models.contains(&model))
    }

    /// Do all replicas that say something serve the same?
    pub fn are_alike(&self) -> bool {
        self.apart.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_decides_where_some_serve_it_and_others_say_that_they_do_not() {
        let mut models = Models::new(3);
        assert_eq!((models.deciding(Some(1)), models.are_alike()), (None, true));
        models.set(0, Some(vec![1, 2]));
        assert_eq!((models.deciding(Some(1)), models.are_alike()), (None, true), "one alone");
        models.set(1, Some(vec![2, 3]));
        assert!(!models.are_alike());
        // What both serve, what nobody names and what is not said need no choice.
        assert_eq!([Some(2), Some(9), None].map(|model| models.deciding(model)), [None; 3]);
        assert_eq!(models.deciding(Some(1)), Some(1));
        // The third says nothing, and gets requests for any.
        assert_eq!([0, 1, 2].map(|replica| models.serves(replica, 1)), [true, false, true]);
        models.set(1, None);
        assert!(models.are_alike());
    }
}

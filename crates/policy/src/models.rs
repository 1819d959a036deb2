//! Model routing: the models of each replica, if known.
//!
//! A request for a listed model goes to the replicas that list it, and to replicas without a list. A model that no
//! replica lists goes to any replica, which then reports the error. A name with a fallback list has tiers: the first
//! model is preferred, and each further one replaces it. A tier goes only to replicas that serve it, because another
//! tier exists if there are none.

use std::collections::{BTreeMap, BTreeSet};

/// The models of all replicas. Models are identified by the hash of their names.
#[derive(Clone, Debug)]
pub(crate) struct Models {
    each: Vec<Option<Vec<u64>>>,
    /// Models that some replicas list and others, which have a list, do not; sorted.
    apart: Vec<u64>,
    /// Models of each fallback list, in order of priority.
    tiers: BTreeMap<u64, Vec<u64>>,
}

impl Models {
    pub fn new(replicas: usize) -> Models {
        Models { each: vec![None; replicas], apart: Vec::new(), tiers: BTreeMap::new() }
    }

    /// Adds a replica without a list.
    pub fn join(&mut self, replica: u32) {
        if self.each.len() <= replica as usize {
            self.each.resize(replica as usize + 1, None);
        }
    }

    /// Sets the models of a replica; `None` if it has no list.
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

    pub fn set_tiers(&mut self, tiers: BTreeMap<u64, Vec<u64>>) {
        self.tiers = tiers;
    }

    /// Returns the number of tiers of a model; it exceeds 1 only for a fallback list.
    pub fn tiers(&self, model: Option<u64>) -> u32 {
        model.and_then(|model| self.tiers.get(&model)).map_or(1, |tiers| tiers.len() as u32)
    }

    /// Returns the model that restricts the eligible replicas of a tier, or `None` without a restriction.
    pub(crate) fn deciding(&self, model: Option<u64>, tier: u32) -> Option<u64> {
        let model = model?;
        match self.tiers.get(&model) {
            Some(tiers) => tiers.get(tier as usize).copied(),
            None => self.apart.binary_search(&model).is_ok().then_some(model),
        }
    }

    /// Returns the first tier from `from` on that one of these replicas serves; `from` if there is none.
    pub(crate) fn ready_tier(&self, model: Option<u64>, from: u32, replicas: &[u32]) -> u32 {
        let is_ready = |tier: &u32| {
            let deciding = self.deciding(model, *tier);
            deciding.is_none_or(|model| replicas.iter().any(|replica| self.serves(*replica, model)))
        };
        (from..self.tiers(model)).find(is_ready).unwrap_or(from)
    }

    /// Returns whether this replica is eligible for a restricting model.
    pub fn serves(&self, replica: u32, model: u64) -> bool {
        self.each[replica as usize].as_ref().is_none_or(|models| models.contains(&model))
    }

    /// Returns whether all replicas with a list serve the same models.
    pub(crate) fn are_alike(&self) -> bool {
        self.apart.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_decides_where_some_serve_it_and_others_say_that_they_do_not() {
        let mut models = Models::new(3);
        assert_eq!((models.deciding(Some(1), 0), models.are_alike()), (None, true));
        models.set(0, Some(vec![1, 2]));
        assert_eq!((models.deciding(Some(1), 0), models.are_alike()), (None, true), "one alone");
        models.set(1, Some(vec![2, 3]));
        assert!(!models.are_alike());
        // These need no restriction: a model of both, a model of neither, and an unnamed model.
        assert_eq!([Some(2), Some(9), None].map(|model| models.deciding(model, 0)), [None; 3]);
        assert_eq!(models.deciding(Some(1), 0), Some(1));
        // The third replica has no list and gets requests for any model.
        assert_eq!([0, 1, 2].map(|replica| models.serves(replica, 1)), [true, false, true]);
        models.set(1, None);
        assert!(models.are_alike());
    }
    #[test]
    fn an_alias_is_the_first_of_its_models_that_somebody_serves() {
        let mut models = Models::new(2);
        models.set_tiers(BTreeMap::from([(100, vec![1, 2, 3])]));
        models.set(0, Some(vec![1]));
        models.set(1, Some(vec![3]));
        assert_eq!((models.tiers(Some(100)), models.tiers(Some(1)), models.tiers(None)), (3, 1, 1));
        let decides = [0, 1, 2].map(|tier| models.deciding(Some(100), tier));
        assert_eq!(decides, [Some(1), Some(2), Some(3)], "the second too, which nobody serves");
        let ready = |from, replicas: &[u32]| models.ready_tier(Some(100), from, replicas);
        assert_eq!((ready(0, &[0, 1]), ready(0, &[1]), ready(1, &[0, 1]), ready(1, &[0])), (0, 2, 2, 1));
    }
}

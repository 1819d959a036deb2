//! Which models each replica serves, as far as it says so.
//!
//! A model that some replica names goes to those that name it, and to those that say nothing of theirs; one that nobody names goes to anybody, who
//! will say what is wrong with it. An alias stands for several models, its tiers: the first one is meant, and each further one stands in for it. A tier goes
//! only to those that serve it, because another one is there where none does.

use std::collections::{BTreeMap, BTreeSet};

/// See the module. Models go by a hash of their names.
#[derive(Clone, Debug)]
pub(crate) struct Models {
    each: Vec<Option<Vec<u64>>>,
    /// Models that some replicas name and others, which say what they serve, do not: in order.
    apart: Vec<u64>,
    /// What stands behind each alias, the first choice first.
    tiers: BTreeMap<u64, Vec<u64>>,
}

impl Models {
    pub fn new(replicas: usize) -> Models {
        Models { each: vec![None; replicas], apart: Vec::new(), tiers: BTreeMap::new() }
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

    /// What stands behind each alias.
    pub fn set_tiers(&mut self, tiers: BTreeMap<u64, Vec<u64>>) {
        self.tiers = tiers;
    }

    /// Models that a request may be sent to: more than one behind an alias alone.
    pub fn tiers(&self, model: Option<u64>) -> u32 {
        model.and_then(|model| self.tiers.get(&model)).map_or(1, |tiers| tiers.len() as u32)
    }

    /// The model that decides who may get a request at one of its tiers. `None` = it does not matter.
    pub(crate) fn deciding(&self, model: Option<u64>, tier: u32) -> Option<u64> {
        let model = model?;
        match self.tiers.get(&model) {
            Some(tiers) => tiers.get(tier as usize).copied(),
            None => self.apart.binary_search(&model).is_ok().then_some(model),
        }
    }

    /// The first tier from this one on that some of these replicas serve; this one if they serve none.
    pub(crate) fn ready_tier(&self, model: Option<u64>, from: u32, replicas: &[u32]) -> u32 {
        let is_ready = |tier: &u32| {
            let deciding = self.deciding(model, *tier);
            deciding.is_none_or(|model| replicas.iter().any(|replica| self.serves(*replica, model)))
        };
        (from..self.tiers(model)).find(is_ready).unwrap_or(from)
    }

    /// May this replica get requests for a model that decides?
    pub fn serves(&self, replica: u32, model: u64) -> bool {
        self.each[replica as usize].as_ref().is_none_or(|models| models.contains(&model))
    }

    /// Do all replicas that say something serve the same?
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
        // What both serve, what nobody names and what is not said need no choice.
        assert_eq!([Some(2), Some(9), None].map(|model| models.deciding(model, 0)), [None; 3]);
        assert_eq!(models.deciding(Some(1), 0), Some(1));
        // The third says nothing, and gets requests for any.
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

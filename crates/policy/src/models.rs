//! Which models each replica serves, as far as it says so.
//!
//! A model that some replica names goes to those that name it, and to those that say nothing of theirs; one that nobody names goes to anybody, who
//! will say what is wrong with it.

/// See the module. Models go by a hash of their names.
#[derive(Clone, Debug)]
pub(crate) struct Models {
    each: Vec<Option<Vec<u64>>>,
    named: Vec<u64>,
}

impl Models {
    /// Nobody has said anything.
    pub fn new(replicas: usize) -> Models {
        Models { each: vec![None; replicas], named: Vec::new() }
    }

    /// What a replica serves; `None` = it does not say.
    pub fn set(&mut self, replica: u32, models: Option<Vec<u64>>) {
        self.each[replica as usize] = models;
        self.named = self.each.iter().flatten().flatten().copied().collect();
        self.named.sort_unstable();
        self.named.dedup();
    }

    /// The model, if it decides who may get a request.
    pub fn deciding(&self, model: Option<u64>) -> Option<u64> {
        model.filter(|model| self.named.binary_search(model).is_ok())
    }

    /// May this replica get requests for a model that decides?
    pub fn serves(&self, replica: u32, model: u64) -> bool {
        self.each[replica as usize].as_ref().is_none_or(|models| models.contains(&model))
    }

    /// Do all replicas that say something serve the same?
    pub fn are_alike(&self) -> bool {
        self.each.iter().flatten().all(|models| self.named.iter().all(|model| models.contains(model)))
    }
}

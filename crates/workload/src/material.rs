//! The content of the files a scenario names, parsed once and shared.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::arrivals::ArrivalSpec;
use crate::prompt_file::{Entry, read_prompts};
use crate::sizes::Size;
use crate::trace::{Trace, detect_and_read, read_lengths};
use crate::{Scenario, SpecError};

/// Parsed files by name. Cloning shares them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Material {
    traces: BTreeMap<String, Arc<Trace>>,
    pairs: BTreeMap<String, Arc<Vec<(u32, u32)>>>,
    lengths: BTreeMap<String, Arc<Vec<u32>>>,
    prompts: BTreeMap<String, Arc<Vec<Entry>>>,
}

impl Material {
    pub(crate) fn load(
        scenario: &Scenario,
        mut read: impl FnMut(&str) -> Result<Vec<u8>, String>,
    ) -> Result<Material, SpecError> {
        let mut read =
            |file: &str| read(file).map_err(|what| SpecError::File { file: file.to_string(), what });
        let mut material = Material::default();
        if let ArrivalSpec::Trace { file, .. } = &scenario.arrivals {
            let trace = detect_and_read(&read(file)?, file)?;
            if trace.untimed {
                return Err(SpecError::File {
                    file: file.clone(),
                    what: "has no times to replay; name it as sizes.pairs instead".to_string(),
                });
            }
            material.traces.insert(file.clone(), Arc::new(trace));
        }
        for class in 0..scenario.class_count() as u16 {
            let (sizes, documents) = (scenario.sizes_of(class), scenario.documents_of(class));
            if let Some(file) = &sizes.pairs
                && !material.pairs.contains_key(file)
            {
                let trace = detect_and_read(&read(file)?, file)?;
                material.pairs.insert(file.clone(), Arc::new(trace.pairs()));
            }
            let prompts = scenario.prompts_of(class);
            let turns = prompts.sessions.as_ref().and_then(|s| s.turns.file());
            let images = prompts.images.iter().flat_map(|images| images.laws().map(|(_, law)| law.file()));
            let sounds = prompts.audio.iter().map(|audio| audio.count.file());
            let texts = documents.iter().flat_map(|documents| documents.laws().map(Size::file));
            let laws = [sizes.prompt.file(), sizes.output.file(), turns].into_iter();
            let laws = laws.chain(images).chain(sounds).chain(texts);
            for file in laws.flatten() {
                if !material.lengths.contains_key(file) {
                    let lengths = read_lengths(&read(file)?, file)?;
                    material.lengths.insert(file.to_string(), Arc::new(lengths));
                }
            }
            if let Some(file) = &prompts.file
                && !material.prompts.contains_key(file)
            {
                let entries = read_prompts(&read(file)?, file)?;
                material.prompts.insert(file.clone(), Arc::new(entries));
            }
        }
        Ok(material)
    }

    /// Puts a trace in place under a name, as if read from a file: for traces made in memory.
    pub fn insert_trace(&mut self, name: &str, trace: Trace) {
        self.traces.insert(name.to_string(), Arc::new(trace));
    }

    /// The trace of this name.
    ///
    /// # Errors
    /// [`SpecError::File`] where it was not loaded.
    pub fn trace(&self, file: &str) -> Result<&Arc<Trace>, SpecError> {
        self.traces.get(file).ok_or_else(|| missing(file))
    }

    pub(crate) fn pairs(&self, file: &str) -> Result<&[(u32, u32)], SpecError> {
        self.pairs.get(file).map(|v| v.as_slice()).ok_or_else(|| missing(file))
    }

    /// Mean (prompt, output) lengths of a loaded table of pairs.
    ///
    /// # Errors
    /// [`SpecError::File`] where the file is not loaded.
    pub fn mean_pair(&self, file: &str) -> Result<(f64, f64), SpecError> {
        let pairs = self.pairs(file)?;
        let n = pairs.len().max(1) as f64;
        let sum = |pick: fn(&(u32, u32)) -> u32| pairs.iter().map(|pair| f64::from(pick(pair))).sum::<f64>();
        Ok((sum(|pair| pair.0) / n, sum(|pair| pair.1) / n))
    }

    pub(crate) fn lengths(&self, file: &str) -> Result<&[u32], SpecError> {
        self.lengths.get(file).map(|v| v.as_slice()).ok_or_else(|| missing(file))
    }

    pub(crate) fn prompts(&self, file: &str) -> Result<&[Entry], SpecError> {
        self.prompts.get(file).map(|v| v.as_slice()).ok_or_else(|| missing(file))
    }
}

fn missing(file: &str) -> SpecError {
    SpecError::File { file: file.to_string(), what: "has not been loaded (Scenario::attach)".to_string() }
}

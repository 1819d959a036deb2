//! Stores the parsed content of the files that a scenario names, shared between its users.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_model::Protocol;

use crate::arrivals::ArrivalSpec;
use crate::prompt_file::{PromptFile, PromptFileEntry, read_prompts};
use crate::sizes::Size;
use crate::trace::{Trace, detect_and_read, read_lengths};
use crate::{Scenario, SpecError};

/// The parsed files by name. Clones share them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ParsedFiles {
    traces: BTreeMap<String, Arc<Trace>>,
    pairs: BTreeMap<String, Arc<Vec<(u32, u32)>>>,
    lengths: BTreeMap<String, Arc<Vec<u32>>>,
    prompts: BTreeMap<String, Arc<Vec<PromptFileEntry>>>,
    notes: Vec<String>,
}

impl ParsedFiles {
    pub(crate) fn load(
        scenario: &Scenario,
        mut read: impl FnMut(&str) -> Result<Vec<u8>, String>,
    ) -> Result<ParsedFiles, SpecError> {
        let mut read =
            |file: &str| read(file).map_err(|what| SpecError::File { file: file.to_string(), what });
        let mut material = ParsedFiles::default();
        if let ArrivalSpec::Trace { file, .. } = &scenario.arrivals {
            let trace = detect_and_read(&read(file)?, file)?;
            if trace.untimed {
                return Err(SpecError::File {
                    file: file.clone(),
                    what: "has no times to replay; name it as sizes.pairs instead".to_string(),
                });
            }
            material.notes.extend(trace.notes(file));
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
                let PromptFile { entries, empty } = read_prompts(&read(file)?, file)?;
                if empty > 0 {
                    material
                        .notes
                        .push(format!("{file}: {empty} conversations have no question and are left out"));
                }
                material.prompts.insert(file.clone(), Arc::new(entries));
            }
            if let Some(file) = &prompts.file {
                check_written(scenario, class, file, material.prompts(file)?)?;
            }
        }
        Ok(material)
    }

    /// Returns one note per part of the files that is not replayed.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Adds a trace in memory under a file name.
    pub fn insert_trace(&mut self, name: &str, trace: Trace) {
        self.traces.insert(name.to_string(), Arc::new(trace));
    }

    /// Returns the trace with this name.
    ///
    /// # Errors
    /// Fails with [`SpecError::File`] if it was not loaded.
    pub fn trace(&self, file: &str) -> Result<&Arc<Trace>, SpecError> {
        self.traces.get(file).ok_or_else(|| missing(file))
    }

    pub(crate) fn pairs(&self, file: &str) -> Result<&[(u32, u32)], SpecError> {
        self.pairs.get(file).map(|v| v.as_slice()).ok_or_else(|| missing(file))
    }

    /// Returns the mean (prompt, output) lengths of a loaded table of pairs.
    ///
    /// # Errors
    /// Fails with [`SpecError::File`] if the file is not loaded.
    pub fn mean_pair(&self, file: &str) -> Result<(f64, f64), SpecError> {
        let pairs = self.pairs(file)?;
        let n = pairs.len().max(1) as f64;
        let sum = |pick: fn(&(u32, u32)) -> u32| pairs.iter().map(|pair| f64::from(pick(pair))).sum::<f64>();
        Ok((sum(|pair| pair.0) / n, sum(|pair| pair.1) / n))
    }

    pub(crate) fn lengths(&self, file: &str) -> Result<&[u32], SpecError> {
        self.lengths.get(file).map(|v| v.as_slice()).ok_or_else(|| missing(file))
    }

    pub(crate) fn prompts(&self, file: &str) -> Result<&[PromptFileEntry], SpecError> {
        self.prompts.get(file).map(|v| v.as_slice()).ok_or_else(|| missing(file))
    }
}

/// Checks that messages in OpenAI's format are sent with that protocol and without images or audio.
fn check_written(
    scenario: &Scenario,
    class: u16,
    file: &str,
    entries: &[PromptFileEntry],
) -> Result<(), SpecError> {
    let prompts = scenario.prompts_of(class);
    let has_media = prompts.images.is_some() || prompts.audio.is_some();
    let is_sent = scenario.requests_of(class).protocol == Protocol::Chat && !has_media;
    let is_written =
        |entry: &&PromptFileEntry| entry.messages.iter().any(|message| message.written.is_some());
    match entries.iter().position(|entry| is_written(&entry)).filter(|_| !is_sent) {
        None => Ok(()),
        Some(n) => Err(SpecError::File {
            file: file.to_string(),
            what: format!(
                "request {} has tools, parts or a role beyond system, user and assistant; send it with --protocol chat, without --images and --audio",
                n + 1
            ),
        }),
    }
}

fn missing(file: &str) -> SpecError {
    SpecError::File { file: file.to_string(), what: "has not been loaded (Scenario::attach)".to_string() }
}

//! The folder of a tuning: the run folders, and a state file that is rewritten after every measurement.
//!
//! The state is the list of results. A measurement that was cut off has no result, and is repeated in a new run folder.

use std::io::Write;
use std::path::{Path, PathBuf};

use plimsoll_judge::tune::TuneTrial;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plan::TunePlan;
use crate::exit::Stop;
use crate::out;

/// Name of the state file.
const STATE: &str = "tune.json";

/// The state of a tuning.
#[derive(Serialize, Deserialize)]
pub struct TuneState {
    /// Command line without the program, for `--resume`.
    pub words: Vec<String>,
    /// Values that a continued tuning must repeat.
    identity: Value,
    /// Number that makes the prompts unique; equal for all settings.
    pub nonce: u64,
    pub trials: Vec<TuneTrial>,
}

impl TuneState {
    pub fn new(plan: &TunePlan, words: Vec<String>, nonce: u64) -> TuneState {
        TuneState { words, identity: plan.identity.clone(), nonce, trials: Vec::new() }
    }

    /// Reads the state of a folder.
    pub fn read(dir: &Path) -> Result<TuneState, Stop> {
        let path = dir.join(STATE);
        let text = std::fs::read_to_string(&path).map_err(|e| out::unread(path.display(), &e))?;
        serde_json::from_str(&text).map_err(|e| Stop::usage(format!("{}: {e}", path.display())))
    }

    /// Returns whether a folder has a state.
    pub fn is_in(dir: &Path) -> bool {
        dir.join(STATE).is_file()
    }

    /// Fails if the plan is not that of the state.
    pub fn check(&self, plan: &TunePlan, dir: &Path) -> Result<(), Stop> {
        let differs = |key: &&String| self.identity.get(key.as_str()) != plan.identity.get(key.as_str());
        let keys = plan.identity.as_object().into_iter().flat_map(|object| object.keys());
        match keys.into_iter().find(differs) {
            Some(key) => Err(Stop::usage(format!(
                "{}: is a tuning with another {key}; name another folder, or continue it with --resume",
                dir.display()
            ))),
            None => Ok(()),
        }
    }

    /// Replaces the state file.
    pub fn write(&self, dir: &Path) -> Result<(), Stop> {
        let lost = |e: std::io::Error| Stop::invalid(format!("{}: {e}", dir.join(STATE).display()));
        let text = serde_json::to_string_pretty(self).map_err(|e| Stop::invalid(e.to_string()))?;
        let new = dir.join(format!("{STATE}.new"));
        let mut file = std::fs::File::create(&new).map_err(lost)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(lost)?;
        std::fs::rename(new, dir.join(STATE)).map_err(lost)
    }
}

/// Returns a new name of a run folder; a measurement that was cut off keeps its folder.
pub fn run_name(dir: &Path, setting: usize, rung: u32) -> String {
    let name = |n: usize| format!("{:02}-rung{}{}", setting + 1, rung + 1, "-again".repeat(n));
    let is_free = |name: &String| !dir.join(name).exists() && !log(dir, name).exists();
    (0..).map(name).find(is_free).unwrap_or_default()
}

/// Returns the log of the server of a run.
pub fn log(dir: &Path, run: &str) -> PathBuf {
    dir.join(format!("{run}.log"))
}

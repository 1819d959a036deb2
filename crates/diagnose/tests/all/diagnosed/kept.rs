//! Evaluated cases in a file, one JSON line each: results survive the process, and a table of thousands of cases can
//! be computed in parts.
//!
//! The key of a case is system, class and severity; of two lines with one key the later one counts. The file does not
//! contain the version of the rules, so a change of a rule needs a new file.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Seek, Write};

use super::Judged;
use super::fault::Class;

pub type Key = (u64, Class, usize);

/// Evaluated cases, with a file if there is one.
#[derive(Default)]
pub struct Kept {
    file: Option<File>,
    cases: BTreeMap<Key, Judged>,
}

impl Kept {
    /// Opens or creates the file. An incomplete last line (the process ended in it) is dropped.
    ///
    /// # Errors
    /// Fails if the file can't be opened, read or truncated, or if a complete line is not a case.
    pub fn open(path: &str) -> Result<Kept> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        file.set_len(whole as u64)?;
        file.seek(std::io::SeekFrom::End(0))?;
        let mut cases = BTreeMap::new();
        for (number, line) in text[..whole].lines().enumerate() {
            let case: Judged = serde_json::from_str(line)
                .map_err(|e| Error::new(ErrorKind::InvalidData, format!("line {}: {e}", number + 1)))?;
            cases.insert(key(&case), case);
        }
        Ok(Kept { file: Some(file), cases })
    }

    /// Returns whether the file contains this case, with the verdicts on reduced evidence if they are requested.
    pub fn holds(&self, key: Key, lacking: bool) -> bool {
        self.cases.get(&key).is_some_and(|case| !lacking || !case.lacking.is_empty())
    }

    /// Adds a case, also to the file.
    ///
    /// # Errors
    /// Fails if the file can't be written.
    pub fn add(&mut self, case: Judged) -> Result<()> {
        if let Some(file) = &mut self.file {
            let mut line = serde_json::to_string(&case)?;
            line.push('\n');
            file.write_all(line.as_bytes())?;
        }
        self.cases.insert(key(&case), case);
        Ok(())
    }

    /// Returns every case in order of systems, classes and severities.
    pub fn into_cases(self) -> Vec<Judged> {
        self.cases.into_values().collect()
    }
}

fn key(case: &Judged) -> Key {
    (case.system, case.class, case.severity)
}

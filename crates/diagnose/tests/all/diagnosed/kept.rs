//! Judged cases in a file, a line of JSON each: what was judged is not lost with the process, and a table of thousands of cases can be
//! made in parts.
//!
//! A case is known by system, class and severity; of two lines of one case the later counts. The file does not know which rules judged
//! it: it holds cases of one state of the code, and whoever changes a rule begins another file.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Seek, Write};

use super::Judged;
use super::fault::Class;

/// What a case is known by.
pub type Key = (u64, Class, usize);

/// Judged cases, in a file where there is one.
#[derive(Default)]
pub struct Kept {
    file: Option<File>,
    cases: BTreeMap<Key, Judged>,
}

impl Kept {
    /// Opens the file, or begins it. A last line that was cut off (the process ended in it) is dropped.
    ///
    /// # Errors
    /// It can't be opened, read or cut; or a whole line of it is no judged case.
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

    /// Does the file hold this case, with what was said with less to go by where that is asked for?
    pub fn holds(&self, key: Key, lacking: bool) -> bool {
        self.cases.get(&key).is_some_and(|case| !lacking || !case.lacking.is_empty())
    }

    /// Adds a case, to the file as well.
    ///
    /// # Errors
    /// It can't be written.
    pub fn add(&mut self, case: Judged) -> Result<()> {
        if let Some(file) = &mut self.file {
            let mut line = serde_json::to_string(&case)?;
            line.push('\n');
            file.write_all(line.as_bytes())?;
        }
        self.cases.insert(key(&case), case);
        Ok(())
    }

    /// Every case, in the order of systems, classes and severities.
    pub fn into_cases(self) -> Vec<Judged> {
        self.cases.into_values().collect()
    }
}

fn key(case: &Judged) -> Key {
    (case.system, case.class, case.severity)
}

//! Reads and writes `server.parquet`: time series in long form, one row per point.
//!
//! Wide form (a column per metric) was rejected. Servers expose hundreds of names and label sets that are unknown at the
//! start of the file. Repeated names in a long table cost almost no space after dictionary encoding.

use std::path::Path;

use plimsoll_model::{At, Sample, SharedText};

use crate::error::Result;
use crate::table::{Column, Table, each_batch, one, read_rows, shared_text};

const GROUP_ROWS: usize = 256 << 10;

pub(crate) struct SeriesFile {
    table: Table<Sample>,
    rows: Vec<Sample>,
}

impl SeriesFile {
    pub(crate) fn create(path: &Path) -> Result<SeriesFile> {
        let notes = [("plimsoll.schema", plimsoll_model::run::SCHEMA_VERSION.to_string())];
        Ok(SeriesFile { table: Table::create(path, "series", &notes, columns())?, rows: Vec::new() })
    }

    pub(crate) fn push(&mut self, sample: Sample) -> Result<()> {
        self.rows.push(sample);
        if self.rows.len() >= GROUP_ROWS {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.table.group(&self.rows)?;
        self.rows.clear();
        Ok(())
    }

    pub(crate) fn close(mut self) -> Result<()> {
        if !self.rows.is_empty() {
            self.flush()?;
        }
        self.table.close()
    }
}

pub(crate) fn read(path: &Path) -> Result<Vec<Sample>> {
    read_rows(path, blank, &columns())
}

/// Reads the samples within one of these time ranges, with only these and some hundred other rows in memory.
pub(crate) fn read_within(path: &Path, spans: &[(At, At)]) -> Result<Vec<Sample>> {
    let within = |sample: &&Sample| spans.iter().any(|(from, to)| (*from..*to).contains(&sample.at));
    let mut kept = Vec::new();
    each_batch(path, blank, &columns(), |rows| kept.extend(rows.iter().filter(within).cloned()))?;
    Ok(kept)
}

fn blank() -> Sample {
    let empty = SharedText::default();
    Sample { at: At::ZERO, source: empty.clone(), name: empty.clone(), labels: empty, value: f64::NAN }
}

/// Returns the columns in file order.
fn columns() -> Vec<Column<Sample>> {
    vec![
        one("at_ns", |s: &Sample| s.at, |s: &mut Sample, at| s.at = at).deltas(),
        shared_text("source", |s: &Sample| &s.source, |s: &mut Sample, text| s.source = text),
        shared_text("name", |s: &Sample| &s.name, |s: &mut Sample, text| s.name = text),
        shared_text("labels", |s: &Sample| &s.labels, |s: &mut Sample, text| s.labels = text),
        one("value", |s: &Sample| s.value, |s: &mut Sample, value| s.value = value),
    ]
}

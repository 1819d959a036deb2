//! Parser of metrics endpoints: the Prometheus text format 0.0.4 and OpenMetrics, read alike.
//!
//! Expositions come from unknown servers. So an unreadable line is skipped and counted, and never an error for the exposition.
//! Its own length and [`MOST_ROWS`] bound everything. Types and units in comments are ignored, because half of all
//! expositions have them wrong. A table of metric names states the meaning of each name instead.
//!
//! An exposition without its end is rejected ([`CutPage`]): its last number may lack digits. A histogram without all
//! its buckets counts requests that never existed.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

/// Limit of rows per exposition; further rows are counted as skipped.
pub const MOST_ROWS: usize = 100_000;

const MOST_LABELS: usize = 64;

/// Longest name or label value, bytes.
const LONGEST: usize = 4_096;

#[derive(Clone, PartialEq, Debug)]
pub struct ExposedValue {
    pub name: String,
    /// Labels in the order of the exposition.
    pub labels: Vec<(String, String)>,
    /// Value; NaN and infinities are valid.
    pub value: f64,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Exposition {
    /// Rows, without the `_created` times of the client libraries.
    pub rows: Vec<ExposedValue>,
    /// Number of lines that could not be parsed.
    pub skipped: usize,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CutPage {
    /// The connection ended before the exposition did.
    #[error("the page was cut short")]
    Connection,
    /// The last line has no end, so that its number may lack digits.
    #[error("the page was cut short: it ends inside a line")]
    InsideLine,
    /// An OpenMetrics exposition has no `# EOF`.
    #[error("the page was cut short: it is OpenMetrics and has no # EOF")]
    NoEof,
    /// A histogram lacks some of its buckets.
    #[error("the page was cut short: of the histogram {0} the bucket +Inf or the count is missing")]
    Histogram(String),
}

/// Returns whether the exposition has the end mark of OpenMetrics, which proves that it is complete.
fn has_eof(page: &[u8]) -> bool {
    page.trim_ascii_end().ends_with(b"# EOF")
}

/// Checks the end of an exposition of this `Content-Type`.
pub fn check_end(page: &[u8], content_type: Option<&str>) -> Result<(), CutPage> {
    let is_open = content_type.is_some_and(|kind| kind.starts_with("application/openmetrics-text"));
    if is_open && !has_eof(page) { Err(CutPage::NoEof) } else { Ok(()) }
}

/// Checks the rows of one scrape by another parser.
pub fn check_rows(rows: &[ExposedValue]) -> Result<(), CutPage> {
    let mut histograms = Histograms::default();
    rows.iter().for_each(|row| histograms.add(row));
    histograms.check()
}

fn check_text(page: &[u8], histograms: &Histograms) -> Result<(), CutPage> {
    if has_eof(page) {
        return Ok(());
    }
    if ends_inside_line(page) { Err(CutPage::InsideLine) } else { histograms.check() }
}

fn ends_inside_line(page: &[u8]) -> bool {
    !page.is_empty() && !page.ends_with(b"\n")
}

/// The histograms of an exposition: the name of each, and the parts that were seen.
#[derive(Default)]
struct Histograms(HashMap<u64, (String, u8)>);

impl Histograms {
    const BUCKET: u8 = 1;
    const LAST: u8 = 2;
    const COUNT: u8 = 4;

    fn add(&mut self, ExposedValue { name, labels, .. }: &ExposedValue) {
        let edge = labels.iter().find(|label| label.0 == "le").map(|label| label.1.as_str());
        let (stem, part) = match (name.strip_suffix("_bucket"), edge) {
            (Some(stem), Some(edge)) => {
                let is_last = number_of(edge).is_some_and(|edge| edge == f64::INFINITY);
                (stem, Self::BUCKET | if is_last { Self::LAST } else { 0 })
            }
            _ => match name.strip_suffix("_count").or(name.strip_suffix("_gcount")) {
                Some(stem) => (stem, Self::COUNT),
                None => return,
            },
        };
        let mut hasher = DefaultHasher::new();
        stem.hash(&mut hasher);
        labels.iter().filter(|label| label.0 != "le").for_each(|label| label.hash(&mut hasher));
        self.0.entry(hasher.finish()).or_insert_with(|| (stem.to_owned(), 0)).1 |= part;
    }

    fn check(&self) -> Result<(), CutPage> {
        const WHOLE: u8 = Histograms::BUCKET | Histograms::LAST | Histograms::COUNT;
        let mut cut = self.0.values().filter(|(_, parts)| parts & Self::BUCKET > 0 && *parts != WHOLE);
        cut.next().map_or(Ok(()), |(name, _)| Err(CutPage::Histogram(name.clone())))
    }
}

/// The text of an exposition between its values.
///
/// A later exposition with this text is parsed by comparing bytes and reading numbers, because the text stays constant for hours.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PageText {
    /// Text before each value, from the end of the line before; last the text after all values. All are concatenated.
    between: Vec<u8>,
    /// End of each text, and whether its value is wanted.
    ends: Vec<(usize, bool)>,
}

impl PageText {
    /// Returns the text of this exposition and its wanted rows; only these are parsed later.
    ///
    /// Returns `None` if lines have more than values (timestamps, exemplars), because these change with each scrape.
    /// Also returns `None` if the exposition is not text or a part of it is missing.
    pub fn of(
        page: &[u8],
        mut wants: impl FnMut(&ExposedValue) -> bool,
    ) -> Option<(PageText, Vec<ExposedValue>)> {
        let text = std::str::from_utf8(page).ok()?;
        let (mut between, mut ends, mut rows, mut from, mut at) = (Vec::new(), Vec::new(), Vec::new(), 0, 0);
        let mut histograms = Histograms::default();
        for line in text.split_inclusive('\n') {
            let (start, content) = (at, line.trim());
            at += line.len();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let Some((row, rest)) = row(content) else { continue };
            histograms.add(&row);
            let value = rest.trim_start();
            if rows.len() >= MOST_ROWS || value.contains(char::is_whitespace) {
                return None;
            }
            let value_at = start + line.trim_end().len() - value.len();
            between.extend_from_slice(&page[from..value_at]);
            let is_wanted = !row.name.ends_with("_created") && wants(&row);
            ends.push((between.len(), is_wanted));
            rows.extend(is_wanted.then_some(row));
            from = at;
        }
        check_text(page, &histograms).ok()?;
        between.extend_from_slice(&page[from..]);
        between.shrink_to_fit();
        ends.push((between.len(), false));
        Some((PageText { between, ends }, rows))
    }

    /// Returns the wanted values of an exposition with this text; `None` if the text differs or ends inside a line.
    pub fn values(&self, page: &[u8]) -> Option<Vec<f64>> {
        if ends_inside_line(page) && !has_eof(page) {
            return None;
        }
        let mut values = Vec::with_capacity(self.ends.len());
        let (mut rest, mut from) = (page, 0);
        for (number, &(end, is_wanted)) in self.ends.iter().enumerate() {
            rest = rest.strip_prefix(&self.between[from..end])?;
            from = end;
            if number + 1 == self.ends.len() {
                return rest.is_empty().then_some(values);
            }
            let line = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            if is_wanted {
                values.push(number_of(std::str::from_utf8(&rest[..line]).ok()?.trim_end())?);
            }
            rest = rest.get(line + 1..).unwrap_or_default();
        }
        None
    }

    pub fn size(&self) -> usize {
        self.between.len() + self.ends.len() * size_of::<(usize, bool)>()
    }
}

/// Parses an exposition. Bytes that are not UTF-8 are replaced.
pub fn read(page: &[u8]) -> Result<Exposition, CutPage> {
    read_of(page, |_| true)
}

/// Parses only the rows whose names are wanted, for a caller that needs three of a thousand every second.
///
/// Lines of one name mostly follow each other, so `wants` is called once for them. Lines of histograms are always parsed,
/// because they prove that the exposition is complete.
pub fn read_of(page: &[u8], wants: impl Fn(&str) -> bool) -> Result<Exposition, CutPage> {
    let text = String::from_utf8_lossy(page);
    let (mut reading, mut histograms, mut is_page) = (Exposition::default(), Histograms::default(), false);
    let (mut last, mut wanted) = ("", false);
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // Empty if the name is quoted among the labels; then it is known later.
        let name = &line[..name_end(line)];
        if name != last {
            (last, wanted) = (name, name.is_empty() || wants(name));
        }
        let row = || row(line).map(|(row, _)| row);
        if !name.is_empty() && !wanted {
            if name.ends_with("_bucket") || name.ends_with("count") {
                row().iter().for_each(|row| histograms.add(row));
            }
            continue;
        }
        let row = row();
        row.iter().for_each(|row| histograms.add(row));
        is_page |= row.is_some();
        match row {
            Some(row) if row.name.ends_with("_created") => {}
            Some(row) if name.is_empty() && !wants(&row.name) => {}
            Some(row) if reading.rows.len() < MOST_ROWS => reading.rows.push(row),
            _ => reading.skipped += 1,
        }
    }
    // Without a single row it is another document, such as a login page, and its end does not matter.
    if is_page {
        check_text(page, &histograms)?;
    }
    Ok(reading)
}

fn name_end(line: &str) -> usize {
    line.find(|c: char| c == '{' || c.is_whitespace()).unwrap_or(line.len())
}

/// Parses `name{labels} value [timestamp] [# exemplar]` and returns the text from the value on. The name may be quoted among the labels.
fn row(line: &str) -> Option<(ExposedValue, &str)> {
    let (name, rest) = line.split_at(name_end(line));
    let mut row = ExposedValue { name: name.to_owned(), labels: Vec::new(), value: f64::NAN };
    let rest = match rest.trim_start().strip_prefix('{') {
        Some(inside) => labels(inside, &mut row)?,
        None => rest,
    };
    let sound = |c: char| !c.is_control() && c != '"' && c != '}';
    if row.name.is_empty() || row.name.len() > LONGEST || !row.name.chars().all(sound) {
        return None;
    }
    row.value = number_of(rest.split_whitespace().next()?)?;
    Some((row, rest))
}

/// Parses the labels up to the closing brace and returns the text after it.
fn labels<'a>(mut text: &'a str, row: &mut ExposedValue) -> Option<&'a str> {
    loop {
        text = text.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
        if let Some(behind) = text.strip_prefix('}') {
            return Some(behind);
        }
        if let Some(inside) = text.strip_prefix('"') {
            let (word, behind) = quoted(inside)?;
            let behind = behind.trim_start();
            match behind.strip_prefix('=') {
                Some(value) => text = add(row, word, value)?,
                // A name that is not an identifier is quoted, and has no value.
                None if row.name.is_empty() => (row.name, text) = (word, behind),
                None => return None,
            }
            continue;
        }
        let equals = text.find('=')?;
        let name = text[..equals].trim().to_owned();
        text = add(row, name, &text[equals + 1..])?;
    }
}

/// Adds a label whose quoted value follows, and returns the text after it.
fn add<'a>(row: &mut ExposedValue, name: String, text: &'a str) -> Option<&'a str> {
    let (value, behind) = quoted(text.trim_start().strip_prefix('"')?)?;
    if name.is_empty() || name.len() > LONGEST || value.len() > LONGEST || row.labels.len() >= MOST_LABELS {
        return None;
    }
    row.labels.push((name, value));
    Some(behind)
}

/// Parses a string up to its closing quote, resolves escapes, and returns the text after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((out, &text[at + 1..])),
            '\\' => match letters.next()?.1 {
                'n' => out.push('\n'),
                other => out.push(other),
            },
            letter => out.push(letter),
        }
    }
    None
}

fn number_of(text: &str) -> Option<f64> {
    match text {
        "NaN" | "nan" | "Nan" => Some(f64::NAN),
        "+Inf" | "Inf" | "inf" | "+inf" => Some(f64::INFINITY),
        "-Inf" | "-inf" => Some(f64::NEG_INFINITY),
        // Rust parses "infinity" and "nan" in any spelling; only the spellings of the format are accepted.
        text if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) => {
            text.parse().ok().filter(|value: &f64| value.is_finite())
        }
        _ => None,
    }
}

/// Parses SGLang's `/v1/loads`: one object per data-parallel rank, with fields as `sglang_loads_FIELD`.
///
/// Returns no rows for another document, and none for a rank whose cache has no size yet (it is not ready).
pub fn sglang_loads(body: &[u8]) -> Vec<ExposedValue> {
    let Ok(value) = serde_json::from_slice::<Value>(body) else { return Vec::new() };
    let Some(loads) = value.get("loads").and_then(Value::as_array) else { return Vec::new() };
    let mut rows = Vec::new();
    for (place, load) in loads.iter().take(4_096).filter_map(|load| load.as_object()).enumerate() {
        if load.get("max_total_num_tokens").and_then(Value::as_f64) == Some(0.0) {
            continue;
        }
        let rank = load.get("dp_rank").and_then(Value::as_u64).unwrap_or(place as u64);
        let figures = load.iter().filter(|(name, _)| *name != "dp_rank").take(256);
        rows.extend(figures.filter_map(|(name, value)| {
            let labels = vec![("dp_rank".to_owned(), rank.to_string())];
            Some(ExposedValue { name: format!("sglang_loads_{name}"), labels, value: value.as_f64()? })
        }));
    }
    rows
}

/// Parses the number of slots from llama.cpp's `/props`.
pub fn llamacpp_props(body: &[u8]) -> Vec<ExposedValue> {
    let value = serde_json::from_slice::<Value>(body).ok();
    let slots = value.and_then(|value| value.get("total_slots")?.as_f64());
    slots.map(|slots| plain("llamacpp_props_total_slots", slots)).into_iter().collect()
}

/// Parses the number of slots and of busy slots from llama.cpp's `/slots`.
pub fn llamacpp_slots(body: &[u8]) -> Vec<ExposedValue> {
    let Ok(Value::Array(slots)) = serde_json::from_slice::<Value>(body) else { return Vec::new() };
    let busy: Option<Vec<bool>> = slots.iter().map(|slot| slot.get("is_processing")?.as_bool()).collect();
    let Some(busy) = busy.filter(|busy| !busy.is_empty()) else { return Vec::new() };
    let count = busy.iter().filter(|busy| **busy).count();
    vec![plain("llamacpp_slots_total", busy.len() as f64), plain("llamacpp_slots_busy", count as f64)]
}

fn plain(name: &str, value: f64) -> ExposedValue {
    ExposedValue { name: name.to_owned(), labels: Vec::new(), value }
}

//! Stores the content that expositions share once: the names of series, and the text between the values.
//!
//! A scrape is first matched against the text of the previous scrape; on a match only the numbers are parsed. The size of
//! the texts is bounded, because endpoints whose every line differs (a replica id in the labels) need one text each. Beyond
//! the bound an exposition is parsed line by line, and its names are not shared.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, Weak};

use plimsoll_model::SeriesName;
use plimsoll_wire::exposition::{self, CutPage, ExposedValue, PageText};

/// Most bytes of shared text, enough for about two hundred texts.
const MOST_TEXT: usize = 16 << 20;
/// Most series of one endpoint that are kept.
pub(crate) const MOST_SERIES: usize = 50_000;

/// The text of an exposition without values, and the names of its used series in order.
#[derive(Debug)]
pub(crate) struct PageShape {
    text: PageText,
    series: Arc<[SeriesName]>,
}

#[derive(Debug, Default)]
pub struct SeriesInterner(Mutex<InternTable>);

#[derive(Debug, Default)]
struct InternTable {
    /// Texts by the hash of their content.
    shapes: HashMap<u64, Weak<PageShape>>,
    series: HashMap<u64, Weak<[SeriesName]>>,
    /// Number of series lists at which unused entries are removed.
    sweep_at: usize,
}

/// The names and values of one scrape.
pub(crate) type PageSample = (Arc<[SeriesName]>, Vec<f64>);

impl SeriesInterner {
    /// Parses an exposition. `shape` is the text of the previous scrape on entry, and of this one on return.
    pub(crate) fn read(
        &self,
        shape: &mut Option<Arc<PageShape>>,
        page: &[u8],
        knows: fn(&str) -> bool,
    ) -> Result<PageSample, CutPage> {
        if let Some(known) = shape.as_ref()
            && let Some(values) = known.text.values(page)
        {
            return Ok((Arc::clone(&known.series), values));
        }
        *shape = None;
        let mut wants = RowFilter::new(knows);
        let Some((text, rows)) = PageText::of(page, |row| wants.wants(row)) else {
            return Ok(self.of(exposition::read(page)?.rows, knows));
        };
        let (series, values) = self.named(rows);
        *shape = self.shape(text, &series);
        Ok((series, values))
    }

    /// Returns the names and values of parsed rows.
    pub(crate) fn of(&self, rows: Vec<ExposedValue>, knows: fn(&str) -> bool) -> PageSample {
        let mut wants = RowFilter::new(knows);
        self.named(rows.into_iter().filter(|row| wants.wants(row)).collect())
    }

    fn named(&self, rows: Vec<ExposedValue>) -> PageSample {
        let values = rows.iter().map(|row| row.value).collect();
        let names: Vec<SeriesName> =
            rows.into_iter().map(|ExposedValue { name, labels, .. }| SeriesName { name, labels }).collect();
        let Ok(mut kept) = self.0.lock() else { return (names.into(), values) };
        let key = hash(&names);
        let same = kept.series.get(&key).and_then(Weak::upgrade).filter(|same| **same == *names);
        let series = same.unwrap_or_else(|| {
            let series: Arc<[SeriesName]> = names.into();
            kept.series.insert(key, Arc::downgrade(&series));
            series
        });
        kept.sweep();
        (series, values)
    }

    /// Returns the shared copy of the text, or `None` if there is no room.
    fn shape(&self, text: PageText, series: &Arc<[SeriesName]>) -> Option<Arc<PageShape>> {
        let mut kept = self.0.lock().ok()?;
        let key = hash(&text);
        let is_same = |shape: &Arc<PageShape>| shape.text == text && Arc::ptr_eq(&shape.series, series);
        if let Some(same) = kept.shapes.get(&key).and_then(Weak::upgrade).filter(is_same) {
            return Some(same);
        }
        let live = kept.shapes.values().filter_map(Weak::upgrade);
        if live.map(|shape| shape.text.size()).sum::<usize>() + text.size() > MOST_TEXT {
            return None;
        }
        let shape = Arc::new(PageShape { text, series: Arc::clone(series) });
        kept.shapes.insert(key, Arc::downgrade(&shape));
        Some(shape)
    }
}

impl InternTable {
    fn sweep(&mut self) {
        if self.series.len() < self.sweep_at.max(64) {
            return;
        }
        self.series.retain(|_, series| series.strong_count() > 0);
        self.shapes.retain(|_, shape| shape.strong_count() > 0);
        self.sweep_at = 2 * self.series.len();
    }
}

/// A filter for the used rows of an exposition: known names, each series once, up to [`MOST_SERIES`].
struct RowFilter {
    knows: fn(&str) -> bool,
    seen: std::collections::HashSet<u64>,
}

impl RowFilter {
    fn new(knows: fn(&str) -> bool) -> RowFilter {
        RowFilter { knows, seen: std::collections::HashSet::new() }
    }

    fn wants(&mut self, row: &ExposedValue) -> bool {
        (self.knows)(&row.name)
            && self.seen.len() < MOST_SERIES
            && self.seen.insert(hash(&(&row.name, &row.labels)))
    }
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &[u8] = b"# HELP vllm:a x\nvllm:a{m=\"x\"} 1\nother 7\nvllm:a{m=\"x\"} 3\nvllm:b 2.5\n";

    fn knows(name: &str) -> bool {
        name.starts_with("vllm")
    }

    #[test]
    fn pages_that_show_the_same_share_names_and_text() {
        let shared = SeriesInterner::default();
        let (mut one, mut two) = (None, None);
        let read = |shape: &mut Option<Arc<PageShape>>, page: &[u8]| {
            shared.read(shape, page, knows).expect("a whole page")
        };
        let (names, values) = read(&mut one, PAGE);
        assert_eq!((names.len(), values), (2, vec![1.0, 2.5]), "known names alone, each once");
        let (others, _) = read(&mut two, PAGE);
        assert!(Arc::ptr_eq(&names, &others));
        assert!(Arc::ptr_eq(one.as_ref().expect("kept"), two.as_ref().expect("kept")));
        // Parsed again by the text, and by rows where the text differs.
        let next = String::from_utf8_lossy(PAGE).replace("2.5", "1e3").replace("other 7", "other -0.25");
        assert_eq!(read(&mut one, next.as_bytes()).1, [1.0, 1000.0]);
        let more = next.replace("other", "vllm:c 9\nother");
        let (more, values) = read(&mut one, more.as_bytes());
        assert_eq!((more.len(), values), (3, vec![1.0, 9.0, 1000.0]));
    }

    #[test]
    fn what_nobody_shows_any_more_is_let_go_of() {
        let shared = SeriesInterner::default();
        for n in 0..10_000 {
            let mut shape = None;
            let page = format!("vllm:a{{pod=\"{n}\"}} 1\n");
            shared.read(&mut shape, page.as_bytes(), knows).expect("a whole page");
        }
        let kept = shared.0.lock().expect("nobody panicked");
        assert!(kept.series.len() <= 128 && kept.shapes.len() <= 128, "{}", kept.series.len());
    }
}

//! What pages have in common, kept once: the names of their series, and their text but for the values.
//!
//! A page is first tried by the text that it had before: then nothing of it is read but numbers. Texts are bounded, because pages that all differ in every line
//! (a replica's id among the labels) have as many as there are pages: those are read word by word, and their names are their own.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, Weak};

use plimsoll_model::SeriesName;
use plimsoll_wire::exposition::{self, CutPage, ExposedValue, PageText};

/// Bytes of text that are kept for all pages: some two hundred texts.
const MOST_TEXT: usize = 16 << 20;
/// Series of one page that are followed.
pub(crate) const MOST_SERIES: usize = 50_000;

/// A page's text, and the names of those of its series that are wanted, in its order.
#[derive(Debug)]
pub(crate) struct Shape {
    text: PageText,
    series: Arc<[SeriesName]>,
}

#[derive(Debug, Default)]
pub struct SharedNames(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// By hashes of what they hold.
    shapes: HashMap<u64, Weak<Shape>>,
    series: HashMap<u64, Weak<[SeriesName]>>,
    /// When those that nobody holds any more are let go of.
    sweep_at: usize,
}

/// Names and values of a page at a scrape.
pub(crate) type Shown = (Arc<[SeriesName]>, Vec<f64>);

impl SharedNames {
    /// Reads a page of text. `shape`: its text at the scrape before, and now.
    pub(crate) fn read(
        &self,
        shape: &mut Option<Arc<Shape>>,
        page: &[u8],
        knows: fn(&str) -> bool,
    ) -> Result<Shown, CutPage> {
        if let Some(known) = shape.as_ref()
            && let Some(values) = known.text.values(page)
        {
            return Ok((Arc::clone(&known.series), values));
        }
        *shape = None;
        let mut wants = Wanted::new(knows);
        let Some((text, rows)) = PageText::of(page, |row| wants.wants(row)) else {
            return Ok(self.of(exposition::read(page)?.rows, knows));
        };
        let (series, values) = self.named(rows);
        *shape = self.shape(text, &series);
        Ok((series, values))
    }

    /// Of rows that were read already.
    pub(crate) fn of(&self, rows: Vec<ExposedValue>, knows: fn(&str) -> bool) -> Shown {
        let mut wants = Wanted::new(knows);
        self.named(rows.into_iter().filter(|row| wants.wants(row)).collect())
    }

    fn named(&self, rows: Vec<ExposedValue>) -> Shown {
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

    /// The same text as other pages have, where there is room for it.
    fn shape(&self, text: PageText, series: &Arc<[SeriesName]>) -> Option<Arc<Shape>> {
        let mut kept = self.0.lock().ok()?;
        let key = hash(&text);
        let is_same = |shape: &Arc<Shape>| shape.text == text && Arc::ptr_eq(&shape.series, series);
        if let Some(same) = kept.shapes.get(&key).and_then(Weak::upgrade).filter(is_same) {
            return Some(same);
        }
        let live = kept.shapes.values().filter_map(Weak::upgrade);
        if live.map(|shape| shape.text.size()).sum::<usize>() + text.size() > MOST_TEXT {
            return None;
        }
        let shape = Arc::new(Shape { text, series: Arc::clone(series) });
        kept.shapes.insert(key, Arc::downgrade(&shape));
        Some(shape)
    }
}

impl Kept {
    fn sweep(&mut self) {
        if self.series.len() < self.sweep_at.max(64) {
            return;
        }
        self.series.retain(|_, series| series.strong_count() > 0);
        self.shapes.retain(|_, shape| shape.strong_count() > 0);
        self.sweep_at = 2 * self.series.len();
    }
}

/// Which rows of a page are wanted: of known names, each once, and not more than are followed.
struct Wanted {
    knows: fn(&str) -> bool,
    seen: std::collections::HashSet<u64>,
}

impl Wanted {
    fn new(knows: fn(&str) -> bool) -> Wanted {
        Wanted { knows, seen: std::collections::HashSet::new() }
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
        let shared = SharedNames::default();
        let (mut one, mut two) = (None, None);
        let read = |shape: &mut Option<Arc<Shape>>, page: &[u8]| {
            shared.read(shape, page, knows).expect("a whole page")
        };
        let (names, values) = read(&mut one, PAGE);
        assert_eq!((names.len(), values), (2, vec![1.0, 2.5]), "known names alone, each once");
        let (others, _) = read(&mut two, PAGE);
        assert!(Arc::ptr_eq(&names, &others));
        assert!(Arc::ptr_eq(one.as_ref().expect("kept"), two.as_ref().expect("kept")));
        // Read again by its text, and by its rows where it has another.
        let next = String::from_utf8_lossy(PAGE).replace("2.5", "1e3").replace("other 7", "other -0.25");
        assert_eq!(read(&mut one, next.as_bytes()).1, [1.0, 1000.0]);
        let more = next.replace("other", "vllm:c 9\nother");
        let (more, values) = read(&mut one, more.as_bytes());
        assert_eq!((more.len(), values), (3, vec![1.0, 9.0, 1000.0]));
    }

    #[test]
    fn what_nobody_shows_any_more_is_let_go_of() {
        let shared = SharedNames::default();
        for n in 0..10_000 {
            let mut shape = None;
            let page = format!("vllm:a{{pod=\"{n}\"}} 1\n");
            shared.read(&mut shape, page.as_bytes(), knows).expect("a whole page");
        }
        let kept = shared.0.lock().expect("nobody panicked");
        assert!(kept.series.len() <= 128 && kept.shapes.len() <= 128, "{}", kept.series.len());
    }
}

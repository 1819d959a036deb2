//! One page's values, from one good scrape to the next: what it said, beside what it had said before.
//!
//! Names are shared by all pages that show the same series, so that ten thousand replicas of one engine are ten thousand rows of numbers.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_measure::server_side::{PageLayout, ServerSide};
use plimsoll_model::{At, SeriesName};

/// Series that have left a page, of which it is remembered where they stood: they may come back.
const MOST_GONE: usize = 1_000;

/// What series say, by where their names are kept: pages with the same series share them.
#[derive(Clone, Default, Debug)]
pub(crate) struct Layouts(HashMap<usize, (Arc<[SeriesName]>, Arc<PageLayout>)>);

#[derive(Clone, Default, Debug)]
pub(crate) struct Scraped {
    /// The last good scrape.
    pub good: Option<At>,
    read: Option<Values>,
    /// Where series stood that have left.
    gone: HashMap<SeriesName, f64>,
}

#[derive(Clone, Debug)]
struct Values {
    series: Arc<[SeriesName]>,
    layout: Arc<PageLayout>,
    values: Vec<f64>,
}

/// What a scrape brought.
pub(crate) struct Step {
    /// What the page said, and what it had said before.
    pub side: ServerSide,
    pub layout: Arc<PageLayout>,
    /// The scrape that it is counted from; `None` = it is the first.
    pub from: Option<At>,
    /// It shows other series than before.
    pub is_other: bool,
}

impl Layouts {
    fn of(&mut self, series: &Arc<[SeriesName]>) -> Arc<PageLayout> {
        let key = series.as_ptr() as usize;
        if let Some((kept, layout)) = self.0.get(&key)
            && Arc::ptr_eq(kept, series)
        {
            return Arc::clone(layout);
        }
        let layout = Arc::new(PageLayout::of(series));
        self.0.insert(key, (Arc::clone(series), Arc::clone(&layout)));
        layout
    }

    /// Lets go of what no page shows any more.
    pub fn forget(&mut self) {
        self.0.retain(|_, (_, layout)| Arc::strong_count(layout) > 1);
    }

    pub fn each(&self) -> impl Iterator<Item = &PageLayout> {
        self.0.values().map(|(_, layout)| &**layout)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl Scraped {
    /// Takes a good scrape; `None` = it is no newer than the last one.
    pub fn read(
        &mut self,
        page: &str,
        at: At,
        (series, values): (Arc<[SeriesName]>, Vec<f64>),
        layouts: &mut Layouts,
    ) -> Option<Step> {
        let from = self.good;
        if from.is_some_and(|good| good >= at) {
            return None;
        }
        let is_other = self.read.as_ref().is_none_or(|read| !Arc::ptr_eq(&read.series, &series));
        if is_other {
            let layout = layouts.of(&series);
            self.show(Values { values: vec![f64::NAN; series.len()], series, layout });
        }
        let read = self.read.as_mut()?;
        let side = read.layout.between(page, from.map(|good| (good, &*read.values)), (at, &values));
        if read.layout.begins_anew(&read.values, &values) {
            // What left before this process began says nothing of it.
            self.gone.clear();
            read.values = values;
        } else {
            // What is not a number is not there, and comes back at what it stood at.
            let there = read.values.iter_mut().zip(values).filter(|(_, now)| !now.is_nan());
            there.for_each(|(was, now)| *was = now);
        }
        self.good = Some(at);
        Some(Step { side, layout: Arc::clone(&read.layout), from, is_other })
    }

    /// The series of the page and their values, as they were read last.
    pub fn last(&self) -> Option<(&Arc<[SeriesName]>, &[f64])> {
        self.read.as_ref().map(|read| (&read.series, read.values.as_slice()))
    }

    /// What its series say.
    pub fn layout(&self) -> Option<&PageLayout> {
        self.read.as_ref().map(|read| &*read.layout)
    }

    /// How much is remembered: values, series that left.
    pub fn size(&self) -> [usize; 2] {
        [self.read.as_ref().map_or(0, |read| read.values.len()), self.gone.len()]
    }

    /// It shows other series from now on: those that stay, and those that come back, go on from where they stood.
    fn show(&mut self, mut now: Values) {
        let mut stood: HashMap<SeriesName, f64> = std::mem::take(&mut self.gone);
        if let Some(before) = self.read.take() {
            let known = before.series.iter().cloned().zip(before.values);
            stood.extend(known.filter(|(_, value)| !value.is_nan()));
        }
        for (series, value) in now.series.iter().zip(&mut now.values) {
            *value = stood.remove(series).unwrap_or(f64::NAN);
        }
        if stood.len() <= MOST_GONE {
            self.gone = stood;
        }
        self.read = Some(now);
    }
}

//! The values of one metrics endpoint between successful scrapes: the new ones next to the earlier ones.
//!
//! Names are shared by all endpoints with equal series, so that ten thousand replicas of one engine are ten thousand
//! rows of numbers.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_measure::server_side::{PageLayout, ServerSide};
use plimsoll_model::{At, SeriesName};

/// Maximum number of former series whose last values are kept, because a series may return.
const MOST_GONE: usize = 1_000;

/// Meanings of series, by their shared names.
#[derive(Clone, Default, Debug)]
pub(crate) struct Layouts(HashMap<usize, (Arc<[SeriesName]>, Arc<PageLayout>)>);

#[derive(Clone, Default, Debug)]
pub(crate) struct PageState {
    /// Time of the last successful scrape.
    pub good: Option<At>,
    read: Option<Values>,
    /// Last values of former series.
    gone: HashMap<SeriesName, f64>,
}

#[derive(Clone, Debug)]
struct Values {
    series: Arc<[SeriesName]>,
    layout: Arc<PageLayout>,
    values: Vec<f64>,
}

pub(crate) struct ScrapeDelta {
    /// New values and earlier values.
    pub side: ServerSide,
    pub layout: Arc<PageLayout>,
    /// Time of the previous scrape; `None` for the first.
    pub from: Option<At>,
    /// Set if the set of series changed.
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

    /// Drops layouts that no endpoint uses any more.
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

impl PageState {
    /// Processes a successful scrape; returns `None` if it is not newer than the last one.
    pub fn read(
        &mut self,
        page: &str,
        at: At,
        (series, values): (Arc<[SeriesName]>, Vec<f64>),
        layouts: &mut Layouts,
    ) -> Option<ScrapeDelta> {
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
            // Series from before the restart of the process are irrelevant.
            self.gone.clear();
            read.values = values;
        } else {
            // A NaN is a missing value; the series returns with its last value.
            let there = read.values.iter_mut().zip(values).filter(|(_, now)| !now.is_nan());
            there.for_each(|(was, now)| *was = now);
        }
        self.good = Some(at);
        Some(ScrapeDelta { side, layout: Arc::clone(&read.layout), from, is_other })
    }

    /// Returns the series of the endpoint and their last values.
    pub fn last(&self) -> Option<(&Arc<[SeriesName]>, &[f64])> {
        self.read.as_ref().map(|read| (&read.series, read.values.as_slice()))
    }

    /// Returns the meanings of its series.
    pub fn layout(&self) -> Option<&PageLayout> {
        self.read.as_ref().map(|read| &*read.layout)
    }

    /// Returns the number of stored values and of former series.
    pub fn size(&self) -> [usize; 2] {
        [self.read.as_ref().map_or(0, |read| read.values.len()), self.gone.len()]
    }

    /// Changes the set of series: remaining and returning series continue from their last values.
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

//! Rows of a run, which are changes → complete scrapes with all values.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_measure::server_side::{FAILED, LEFT, PAGE_LABEL, PATIENCE, SCRAPE};
use plimsoll_model::{At, PageRead, PageSaid, Sample, SeriesName, Span, split_labels};

#[derive(Clone, Default, Debug)]
pub(crate) struct Reads {
    pages: HashMap<String, PageRows>,
    /// Whether the scrape marks name their endpoints; `None` if unknown yet. If not, a label of that name belongs to
    /// the server.
    named: Option<bool>,
}

/// The present values of an endpoint.
#[derive(Clone, Default, Debug)]
struct PageRows {
    /// Time of the open scrape; `None` if there is none.
    open: Option<At>,
    /// Set if the endpoint has no series.
    is_empty: bool,
    places: HashMap<(String, String), usize>,
    series: Vec<SeriesName>,
    values: Vec<f64>,
    /// Shared series names and their order; `None` after the set of series changed.
    shared: Option<(Arc<[SeriesName]>, Vec<usize>)>,
}

impl Reads {
    /// Processes a row. Its scrape is returned once a later row shows that it is complete, or by
    /// [`whole`](Reads::whole).
    pub fn push(&mut self, sample: &Sample) -> Vec<PageRead> {
        let (at, value) = (sample.at, sample.value);
        let mut labels = split_labels(&sample.labels);
        let is_mark = sample.name == SCRAPE || sample.name == FAILED;
        if is_mark {
            let has_name = labels.iter().any(|(name, _)| name == PAGE_LABEL);
            self.named = Some(self.named.unwrap_or(false) || has_name);
        }
        let place = labels.iter().position(|(name, _)| name == PAGE_LABEL);
        let place = place.filter(|_| self.named != Some(false));
        let page = place.map_or(String::new(), |place| labels.remove(place).1);
        let read = |said| PageRead { page: page.clone(), at, said };
        if sample.name == LEFT {
            self.pages.remove(&page);
            return vec![read(PageSaid::Left)];
        }
        let standing = self.pages.entry(page.clone()).or_default();
        let mut told = Vec::new();
        if standing.open.is_some_and(|open| open != at) {
            told.extend(standing.close(&page));
        }
        match sample.name.as_str() {
            PATIENCE => told.push(read(PageSaid::Patience(Span::from_secs_f64(value)))),
            FAILED => {
                told.extend(standing.close(&page));
                let why = labels.into_iter().find(|(name, _)| name == "why");
                told.push(read(PageSaid::Failed(why.map_or(String::new(), |(_, why)| why))));
            }
            SCRAPE => (standing.open, standing.is_empty) = (Some(at), value <= 0.0),
            name => {
                standing.open = Some(at);
                standing.set((name, &sample.labels), labels, value);
            }
        }
        told
    }

    pub fn whole(&mut self) -> Vec<PageRead> {
        let mut told: Vec<PageRead> =
            self.pages.iter_mut().filter_map(|(page, standing)| standing.close(page)).collect();
        told.sort_by(|a, b| (a.at, &a.page).cmp(&(b.at, &b.page)));
        told
    }
}

impl PageRows {
    fn set(&mut self, (name, text): (&str, &str), labels: Vec<(String, String)>, value: f64) {
        let key = (name.to_owned(), text.to_owned());
        let place = *self.places.entry(key).or_insert_with(|| {
            self.series.push(SeriesName { name: name.to_owned(), labels });
            self.values.push(f64::NAN);
            self.series.len() - 1
        });
        if self.values[place].is_nan() != value.is_nan() {
            self.shared = None;
        }
        self.values[place] = value;
    }

    fn close(&mut self, page: &str) -> Option<PageRead> {
        let at = self.open.take()?;
        let page = page.to_owned();
        if std::mem::take(&mut self.is_empty) {
            return Some(PageRead { page, at, said: PageSaid::Failed("the page was empty".to_owned()) });
        }
        let (series, places) = self.shared.get_or_insert_with(|| {
            let places: Vec<usize> = (0..self.values.len()).filter(|n| !self.values[*n].is_nan()).collect();
            (places.iter().map(|place| self.series[*place].clone()).collect(), places)
        });
        let values = places.iter().map(|place| self.values[*place]).collect();
        Some(PageRead { page, at, said: PageSaid::Values(Arc::clone(series), values) })
    }
}

//! Summary of one level. This module defines every metric of Plimsoll, once.
//!
//! | metric | from | to | exists for |
//! | --- | --- | --- | --- |
//! | `ttft` | due | first generated token | streamed responses |
//! | `ttft_after_send` | sent (of the last attempt) | first generated token | streamed responses |
//! | `ttfb` | due | first byte of the response | all |
//! | `ttfot` | due | first visible token | streamed responses with a visible token |
//! | `e2e` | due | last byte | all |
//! | `e2e_after_send` | sent | last byte | all |
//! | `tpot` | (last − first token) / (n − 1), n the streamed tokens | | two tokens or more, not at one instant |
//! | `ntpot` | `e2e` / n | | responses with a known token count |
//! | `rtf` | `e2e` / length of the audio, sent or received | | requests with audio of known length |
//! | `event_gap` | every gap between token events, pooled | | streams of two events or more |
//! | `itl` | every gap between tokens | | streams with known tokens per event |
//! | `session_e2e` | first due of a session | end of its last turn | sessions with a known number of turns ([`crate::sessions`]) |
//!
//! A request that failed or never ended ranks as +∞ in all metrics (in `event_gap` and `itl` as one gap that never ended).
//! An empty response does too. If most responses of a level arrived in one event, `ttft` and `ttfot` do not exist. If the
//! server's token counts contradict its events, no figure per token exists.
//!
//! A planned cancellation keeps the first-token times that it reached and has no others. A metric that does not exist for a
//! request is absent: it is counted, and never zero. In a closed loop, due is sent minus the wait for a connection, so all
//! formulas apply.
//!
//! The window contains the requests *due* after the warm-up, regardless of their end; rates count the requests that ended in it.

use std::collections::BTreeMap;

use plimsoll_math::series;
use plimsoll_model::{At, Attempt, How, Level, Sample, SizeUnit, StampSource};

use crate::budget::{self, share_over};
use crate::columns::{ABSENT, Columns, FailureText, Fate, INFINITE, UNKNOWN};
use crate::course::timeline;
use crate::findings::{
    BudgetSpec, Counts, ErrorCount, Estimate, FanOut, Histogram, Itl, Latencies, LengthFigures, Lengths,
    LevelSummary, Metric, Percentiles, Rates, Reading, Records, Stability, Tail, Window,
};
use crate::flight;
use crate::groups;
use crate::order::{LEVEL, percentiles};
use crate::say::percent;
use crate::sessions;
use crate::window;

/// Number of batches for the intervals of rates.
const RATE_BATCHES: usize = 20;
/// Number of batches for the intervals of shares.
const SHARE_BATCHES: usize = plimsoll_math::quantile::BATCHES;

/// Largest difference in ns between two timestamps in the wrong order that is not an error.
///
/// Kernel receive timestamps are realtime and placed on the axis to well under a microsecond, so our records never come near
/// it. A millisecond is a step of the clock for the generator, and the rounding of programs with timestamps in ms.
const CLOCKS_APART_NS: i64 = 1_000_000;

/// Returns the summary of one level. Records and samples of other levels are skipped.
pub fn summarise(
    level: &Level,
    attempts: &[Attempt],
    samples: &[Sample],
    budget: Option<&BudgetSpec>,
) -> LevelSummary {
    let own: Vec<&Attempt> = attempts.iter().filter(|a| a.level == level.id).collect();
    let samples: Vec<&Sample> =
        samples.iter().filter(|s| s.at >= level.start && s.at < level.drained).collect();
    summarise_columns(level, &Columns::read(&own), &samples, budget).0
}

/// Returns the summary of a level from its columns, and the range of the requests that count.
pub(crate) fn summarise_columns(
    level: &Level,
    columns: &Columns,
    samples: &[&Sample],
    budget: Option<&BudgetSpec>,
) -> (LevelSummary, (usize, usize)) {
    let cut = window::cut(columns, level);
    let (from, to) = (cut.from, columns.first_due_from(level.stop).max(cut.from));
    let steady = from.max(window::opening(columns, level)).min(to);
    let length_s = (level.stop - cut.at).as_secs_f64();
    let counts = counts(columns, from, to);
    let lost = share_over(&columns.how[from..to], |how| is_lost(*how), SHARE_BATCHES);
    let (latency, histograms) = latencies(columns, (from, to), length_s);
    let mut summary = LevelSummary {
        level: level.id,
        traffic: level.traffic.clone(),
        purpose: level.purpose.clone(),
        load: level.load,
        window: Window {
            start: cut.at,
            stop: level.stop,
            length_s,
            warm_up_s: (cut.at - level.start).as_secs_f64(),
            warm_up_requests: from as u64,
            rule: cut.rule,
            warm_up: window::cut_figures(columns, from),
        },
        counts,
        records: records(level, columns),
        rates: rates(columns, (from, to), (cut.at, level.stop), (&latency, level.unit), budget),
        concurrency: flight::concurrency(columns, cut.at, level.stop, &level.generator, samples),
        stability: stability(level, columns, cut.at, &lost),
        drift: window::drift(columns, steady, to),
        slow_stretch: window::slow_stretch(columns, level, steady, to),
        tail: tail(&latency),
        lengths: lengths(columns, level.unit, from, to),
        generator: level.generator.clone(),
        timeline: timeline(level, columns),
        histograms,
        budget: None,
        sessions: sessions::counts(columns, (from, to)),
        targets: groups::of_targets(columns, ((from, to), (cut.at, level.stop))),
        classes: groups::of_classes(columns, ((from, to), (cut.at, level.stop))),
        latency,
    };
    summary.budget = budget.map(|spec| budget::judge(columns, (from, to), length_s, &summary, spec));
    (summary, (from, to))
}

/// Checks all rows, including the warm-up's, because a row lost there is lost too.
fn records(level: &Level, columns: &Columns) -> Records {
    let rows = || (0..columns.len()).filter(|row| columns.fate[*row] == Fate::Finished);
    let streams = columns.leading().0 == "ttft";
    let answers = rows().count() as u64;
    let with_tokens = || rows().filter(|row| columns.has_tokens(*row));
    // A record may have timestamps of the kernel and of user space. The latter are late by the generator's read delay.
    let mixed = match level.generator.stamps {
        StampSource::Mixed => level.generator.user_delay.max_ns,
        StampSource::Kernel | StampSource::User => 0,
    };
    let odd = &columns.odd;
    let apart = |one_clock: bool| if one_clock { CLOCKS_APART_NS } else { CLOCKS_APART_NS.max(mixed) };
    let back: Vec<i64> = odd.back.iter().filter(|(ns, one)| *ns > apart(*one)).map(|(ns, _)| *ns).collect();
    let tries: u64 = (0..columns.len()).map(|row| u64::from(columns.attempts(row))).sum();
    Records {
        // A level with rows and 0 arrivals comes from a writer that does not record arrivals.
        arrivals: (level.arrivals > 0).then_some(level.arrivals),
        requests: columns.len() as u64,
        attempts: tries.saturating_sub(odd.doubled),
        attempts_missing: odd.missing,
        doubled: odd.doubled,
        disordered: back.len() as u64 + odd.unstamped,
        back_max_s: back.iter().max().map_or(0.0, |ns| *ns as f64 / 1e9),
        streamed: if streams { with_tokens().count() as u64 } else { 0 },
        first_token_missing: match streams {
            true => with_tokens().filter(|row| columns.ttft[*row] == ABSENT).count() as u64,
            false => 0,
        },
        answers,
        output_unknown: rows()
            .filter(|row| columns.has_counts(*row) && columns.output[*row] == UNKNOWN)
            .count() as u64,
        output_contradicted: columns.claims.answers,
        claimed_tokens: columns.claims.tokens,
        claimed_texts: columns.claims.texts,
        claimed_empties: columns.claims.empties,
        multi_token: columns.multi_token,
        in_one_event: columns.in_one_event,
    }
}

/// Returns the verdict on stability. A closed loop limits its number in flight, so the rule does not apply to it.
fn stability(level: &Level, columns: &Columns, from: At, lost: &Estimate) -> Stability {
    match level.load {
        plimsoll_model::Load::Open { .. } => flight::stability(columns, from, level.stop, Some(lost)),
        _ => Stability {
            verdict: crate::findings::LoadKeptUp::Undecided,
            growth_share: None,
            limit_share: flight::GROWTH_LIMIT,
            why: "a closed loop cannot build a backlog".into(),
        },
    }
}

/// Returns whether a request was rejected or broken off, so the target did not serve it.
///
/// A request that the target rejects at any load (a 4xx) does not count as lost.
fn is_lost(how: How) -> bool {
    !matches!(how, How::Finished | How::Cancelled | How::Unfinished | How::NeverSent | How::ClientError)
}

fn counts(columns: &Columns, from: usize, to: usize) -> Counts {
    let mut counts = Counts { requests: (to - from) as u64, ..Counts::default() };
    let last_due = columns.due.get(to.wrapping_sub(1)).copied();
    let first_due = columns.due.get(from).copied();
    counts.by_outcome = tallied(columns.how[from..to].iter());
    for row in from..to {
        counts.attempts += u64::from(columns.attempts(row));
        if let Some(broken) = columns.broken(row).filter(|_| columns.fate[row] == Fate::Broken) {
            *counts.broken.entry(broken).or_default() += 1;
        }
        match columns.fate[row] {
            Fate::Finished | Fate::Broken => counts.finished += 1,
            Fate::Cancelled => counts.cancelled += 1,
            Fate::Failed => {}
        }
    }
    if let (Some(first), Some(last), true) = (first_due, last_due, to > from) {
        let within = |due: i64| due >= first && due <= last;
        let ends = columns.due.iter().zip(&columns.how).filter(|(due, _)| within(**due)).map(|(_, how)| how);
        let earlier = columns.earlier.iter().filter(|(due, _)| within(*due)).map(|(_, how)| how);
        counts.attempts_by_outcome = tallied(ends.chain(earlier));
        counts.errors = errors(columns, (first, last));
    }
    counts.failed = counts.requests - counts.finished;
    counts.amplification =
        if counts.requests == 0 { 0.0 } else { counts.attempts as f64 / counts.requests as f64 };
    let judged: Vec<Fate> =
        columns.fate[from..to].iter().copied().filter(|fate| *fate != Fate::Cancelled).collect();
    counts.error_rate =
        (!judged.is_empty()).then(|| share_over(&judged, |fate| *fate != Fate::Finished, SHARE_BATCHES));
    counts
}

/// Returns the number of requests by outcome, and the number of complete responses.
pub(crate) fn counts_of(columns: &Columns, rows: &[usize]) -> (BTreeMap<How, u64>, u64) {
    let finished = rows.iter().filter(|row| columns.fate[**row].ended_well()).count() as u64;
    (tallied(rows.iter().map(|row| &columns.how[*row])), finished)
}

/// Returns the number of occurrences of each outcome.
fn tallied<'a>(ends: impl Iterator<Item = &'a How>) -> BTreeMap<How, u64> {
    let mut tally = [0u64; How::ALL.len()];
    ends.for_each(|how| tally[*how as usize] += 1);
    How::ALL.into_iter().map(|how| (how, tally[how as usize])).filter(|(_, n)| *n > 0).collect()
}

/// Number of errors that are listed, most frequent first.
const ERRORS_LISTED: usize = 5;

/// Returns the errors of requests due in this interval as reported, most frequent first.
fn errors(columns: &Columns, (first, last): (i64, i64)) -> Vec<ErrorCount> {
    let mut seen: BTreeMap<&FailureText, u64> = BTreeMap::new();
    for lost in columns.lost.iter().filter(|lost| lost.due >= first && lost.due <= last) {
        *seen.entry(&columns.words[lost.words as usize]).or_default() += 1;
    }
    let mut list: Vec<ErrorCount> = seen
        .into_iter()
        .map(|((how, status, text), attempts)| ErrorCount {
            how: *how,
            status: *status,
            text: text.clone(),
            attempts,
        })
        .collect();
    list.sort_by_key(|error| std::cmp::Reverse(error.attempts));
    list.truncate(ERRORS_LISTED);
    list
}

fn latencies(columns: &Columns, (from, to): (usize, usize), length_s: f64) -> (Latencies, Vec<Histogram>) {
    let mut histograms = Vec::new();
    let mut set = |metric: &str, values: &[i64], plot: bool| -> Option<Percentiles> {
        let (set, histogram) = percentiles(metric, values, length_s)?;
        if plot {
            histograms.push(histogram);
        }
        Some(set)
    };
    let (leading, _) = columns.leading();
    let streams = leading == "ttft";
    let exists = |values: &[i64]| values.iter().any(|ns| *ns != ABSENT && *ns != INFINITE);
    let tpots = exists(&columns.tpot[from..to]);
    // Metrics without a column are computed, summarised and dropped.
    let each = |of: fn(&Columns, usize) -> i64| (from..to).map(|row| of(columns, row)).collect::<Vec<i64>>();
    let gaps = columns.gaps(from, to);

    let sessions = columns.session_e2e.get(from..to).unwrap_or_default();
    let sessions: Vec<i64> = sessions.iter().copied().filter(|ns| *ns != ABSENT).collect();

    let ttft = streams.then(|| set("ttft", &columns.ttft[from..to], true)).flatten();
    let event_gap = if exists(gaps) { set("event_gap", gaps, true) } else { None };
    let itl = itl(columns, (from, to), length_s, event_gap.as_ref());
    let e2e = set("e2e", &columns.e2e[from..to], true).unwrap_or_else(|| nothing("e2e"));
    // An empty column means that its values equal those of another metric.
    let named = |metric: &str, of: &Percentiles| Percentiles { metric: metric.to_owned(), ..of.clone() };
    let at_once = columns.sent_after.is_empty();
    // Contradictory counts support no figure.
    let contradicts = columns.contradicts();
    let refused = |metric: &str| Some(unknown(metric, CONTRADICTED));
    let latency = Latencies {
        ttft_after_send: ttft.as_ref().and_then(|ttft| match at_once {
            true => Some(named("ttft_after_send", ttft)),
            false => set("ttft_after_send", &each(Columns::ttft_after_send), false),
        }),
        ttfb: set("ttfb", &columns.ttfb[from..to], false).unwrap_or_else(|| nothing("ttfb")),
        ttfot: ttft.as_ref().and_then(|ttft| match columns.ttfot.is_empty() {
            true => Some(named("ttfot", ttft)),
            false => set("ttfot", &each(Columns::ttfot), false),
        }),
        e2e_after_send: match at_once {
            true => named("e2e_after_send", &e2e),
            false => set("e2e_after_send", &each(Columns::e2e_after_send), false)
                .unwrap_or_else(|| nothing("e2e_after_send")),
        },
        tpot: if contradicts {
            refused("tpot")
        } else if tpots {
            set("tpot", &columns.tpot[from..to], false)
        } else {
            None
        },
        ntpot: match contradicts {
            true => refused("ntpot"),
            false => Some(each(Columns::ntpot))
                .filter(|values| exists(values))
                .and_then(|values| set("ntpot", &values, false)),
        },
        rtf: columns
            .rtf
            .get(from..to)
            .filter(|values| exists(values))
            .and_then(|values| set("rtf", values, false)),
        session_e2e: set("session_e2e", &sessions, false),
        ttft,
        event_gap,
        e2e,
        itl: itl.filter(|_| !contradicts),
    };
    (latency, histograms)
}

/// Returns percentiles without observations; all of them are refused.
fn nothing(metric: &str) -> Percentiles {
    unknown(metric, "no requests")
}

/// Reason for refused figures per token.
const CONTRADICTED: &str = "the server's counts of tokens contradict its events";

/// Returns percentiles that are all refused.
fn unknown(metric: &str, why: &str) -> Percentiles {
    let none = || Reading::refused(why, 0);
    Percentiles {
        metric: metric.to_owned(),
        n: 0,
        infinite: 0,
        absent: 0,
        mean_finite_s: None,
        p50: none(),
        p90: none(),
        p95: none(),
        p99: none(),
        p999: none(),
        max_s: None,
        max_finite_s: None,
    }
}

fn itl(
    columns: &Columns,
    (from, to): (usize, usize),
    length_s: f64,
    event_gap: Option<&Percentiles>,
) -> Option<Itl> {
    if columns.rule == plimsoll_model::TokensRule::Unknown {
        return None;
    }
    let event_gap = event_gap?;
    let whole_level = to == columns.len();
    if columns.one_token_events && whole_level {
        let exact = columns.exact_gaps(from, to);
        let percentiles = Percentiles { metric: "itl".into(), ..event_gap.clone() };
        return Some(Itl {
            rule: columns.rule,
            exact_share: exact as f64 / event_gap.n.max(1) as f64,
            percentiles,
        });
    }
    let (gaps, exact) = columns.itl(from);
    let exact_share = exact as f64 / gaps.len().max(1) as f64;
    let (percentiles, _) = percentiles("itl", &gaps, length_s)?;
    Some(Itl { rule: columns.rule, exact_share, percentiles })
}

fn rates(
    columns: &Columns,
    (from, to): (usize, usize),
    (start, stop): (At, At),
    (latency, unit): (&Latencies, SizeUnit),
    budget: Option<&BudgetSpec>,
) -> Rates {
    let length_s = (stop - start).as_secs_f64();
    let is_finished =
        |i: &usize| columns.fate[*i].ended_well() && (start.0..stop.0).contains(&columns.end[*i]);
    let finished = || (0..columns.len()).filter(is_finished);
    let n = finished().count();
    let counts = OutputCounts::of(columns, finished());
    let output = |i: usize| counts.tokens(columns, i);
    let input = |i: usize| match columns.prompt[i] {
        UNKNOWN => f64::from(columns.asked_prompt[i]),
        tokens => f64::from(tokens),
    };
    let rate = |what: &dyn Fn(usize) -> f64| {
        per_second(finished().map(|i| (columns.end[i], what(i))), (start, stop), n)
    };
    let carried = |column: &[u32], of: f64| {
        (!column.is_empty()).then(|| rate(&|i| column.get(i).map_or(0.0, |n| f64::from(*n) * of)))
    };
    let tokens = |rate: Reading| match columns.contradicts() {
        true => Reading::refused(CONTRADICTED, n as u64),
        false => rate,
    };
    let counts_tokens = |budget: &BudgetSpec| budget.latency.iter().any(|one| one.metric == Metric::Tpot);
    let items = unit == SizeUnit::Items;
    let any_tokens = !items && finished().any(|i| output(i) > 0.0);
    let good: Vec<bool> = match budget {
        Some(budget) => (from..to).map(|i| budget::is_good(columns, i, budget)).collect(),
        None => Vec::new(),
    };
    let mut sessions = sessions::ends(columns);
    sessions.retain(|end| (start.0..stop.0).contains(end));
    let sessions_per_s = (!sessions.is_empty()).then(|| {
        let n = sessions.len();
        per_second(sessions.into_iter().map(|end| (end, 1.0)), (start, stop), n)
    });
    let good_due = || columns.due[from..to].iter().zip(&good).filter(|(_, good)| **good).map(|(due, _)| *due);
    Rates {
        offered_per_s: if length_s > 0.0 { (to - from) as f64 / length_s } else { 0.0 },
        achieved_per_s: rate(&|_| 1.0),
        good_per_s: budget.map(|budget| match counts_tokens(budget) {
            true => tokens(per_second(good_due().map(|due| (due, 1.0)), (start, stop), to - from)),
            false => per_second(good_due().map(|due| (due, 1.0)), (start, stop), to - from),
        }),
        good_share: budget.filter(|_| to > from).map(|_| share_over(&good, |good| *good, SHARE_BATCHES)),
        output_tokens_per_s: any_tokens.then(|| tokens(rate(&output))),
        good_output_tokens_per_s: budget.filter(|_| any_tokens).map(|_| {
            let rows = (from..to).zip(&good).filter(|(_, good)| **good);
            tokens(per_second(rows.map(|(i, _)| (columns.due[i], output(i))), (start, stop), to - from))
        }),
        input_tokens_per_s: (!items).then(|| rate(&input)),
        items_per_s: items.then(|| rate(&input)),
        total_tokens_per_s: any_tokens.then(|| tokens(rate(&|i| input(i) + output(i)))),
        sessions_per_s,
        images_per_s: carried(&columns.images, 1.0),
        audio_s_per_s: carried(&columns.audio_ms, 1e-3),
        documents_per_s: carried(&columns.documents, 1.0),
        tokens_per_s_per_user: latency.tpot.as_ref().map(|tpot| inverse(&tpot.p50)),
        tokens_from: counts.source(),
    }
}

/// The source of the output tokens of finished requests, over those that ask for output.
struct OutputCounts {
    /// Number of requests with a reported count, and of all.
    reported: usize,
    all: usize,
    /// Mean of the reported counts.
    mean: f64,
}

impl OutputCounts {
    fn of(columns: &Columns, rows: impl Iterator<Item = usize>) -> OutputCounts {
        let (mut reported, mut all, mut sum) = (0, 0, 0.0);
        for row in rows.filter(|row| columns.has_counts(*row)) {
            all += 1;
            if columns.output[row] != UNKNOWN {
                reported += 1;
                sum += f64::from(columns.output[row]);
            }
        }
        OutputCounts { reported, all, mean: sum / reported.max(1) as f64 }
    }

    fn is_usage(&self) -> bool {
        self.reported > 0 && 2 * self.reported >= self.all
    }

    /// Returns the output tokens of a request: as reported, or the mean of the others, or as requested.
    fn tokens(&self, columns: &Columns, row: usize) -> f64 {
        match columns.output[row] {
            UNKNOWN if self.is_usage() && columns.has_counts(row) => self.mean,
            tokens if self.is_usage() && tokens != UNKNOWN => f64::from(tokens),
            _ => f64::from(columns.asked_output[row]),
        }
    }

    fn source(&self) -> String {
        match self.is_usage() {
            true if self.reported == self.all => "usage".to_owned(),
            true => format!("usage of {}", percent(self.reported as f64 / self.all as f64)),
            false => "asked".to_owned(),
        }
    }
}

/// Number of parts of a window in which the filling of a target is searched.
const FILLING_PARTS: usize = 200;

/// Returns the throughput per second after the target was full.
///
/// A batching engine finishes little while its first requests are in progress, so a short window would underestimate it. The
/// filling ends where MSER-5 cuts the series of completions. A queue of servers is full immediately and loses nothing.
pub(crate) fn full_throughput(columns: &Columns, (start, stop): (At, At)) -> Reading {
    let ended = (0..columns.len())
        .filter(|i| columns.fate[*i].ended_well() && columns.end[*i] >= start.0 && columns.end[*i] < stop.0);
    let ends: Vec<i64> = ended.map(|i| columns.end[i]).collect();
    let width = ((stop - start).0 as f64 / FILLING_PARTS as f64).max(1.0);
    let part = |at: i64| (((at - start.0) as f64 / width) as usize).min(FILLING_PARTS - 1);
    let mut counts = [0.0; FILLING_PARTS];
    for at in &ends {
        counts[part(*at)] += 1.0;
    }
    let full = At(start.0 + (series::mser5(&counts) as f64 * width) as i64);
    let n = ends.iter().filter(|at| **at >= full.0).count();
    per_second(ends.into_iter().filter(|at| *at >= full.0).map(|at| (at, 1.0)), (full, stop), n)
}

/// Returns a rate per second with its interval by batch means over equal parts of the window.
pub(crate) fn per_second(
    events: impl Iterator<Item = (i64, f64)>,
    (start, stop): (At, At),
    n: usize,
) -> Reading {
    let length_s = (stop - start).as_secs_f64();
    if length_s <= 0.0 || n == 0 {
        return Reading::refused("nothing ended in the window", n as u64);
    }
    let width = (stop - start).0 as f64 / RATE_BATCHES as f64;
    let mut sums = [0.0; RATE_BATCHES];
    for (at, amount) in events {
        sums[(((at - start.0) as f64 / width) as usize).min(RATE_BATCHES - 1)] += amount;
    }
    let per_s: Vec<f64> = sums.iter().map(|sum| sum * RATE_BATCHES as f64 / length_s).collect();
    match series::mean_of_batches(&per_s, LEVEL) {
        Some(mean) => Reading::Estimate(Estimate {
            value: mean.value,
            lower: mean.interval.lower.max(0.0),
            upper: mean.interval.upper,
            n: n as u64,
            n_eff: RATE_BATCHES as f64,
        }),
        None => Reading::refused("too short", n as u64),
    }
}

fn inverse(reading: &Reading) -> Reading {
    reading.map(|e| Estimate {
        value: 1.0 / e.value,
        lower: 1.0 / e.upper,
        upper: if e.lower > 0.0 { 1.0 / e.lower } else { f64::INFINITY },
        ..*e
    })
}

fn tail(latency: &Latencies) -> Tail {
    let ratio = |set: &Percentiles| Some(set.p99.value()? / set.p50.value()?).filter(|r| r.is_finite());
    let fan_out = [1u32, 5, 10, 20, 50].map(|calls| FanOut {
        calls,
        meets_p99: 1.0 - 0.99f64.powi(calls as i32),
        needed_for_page_p99: 0.99f64.powf(1.0 / f64::from(calls)),
    });
    Tail {
        ttft_p99_over_p50: ratio(latency.leading()),
        tpot_p99_over_p50: latency.tpot.as_ref().and_then(ratio),
        fan_out: fan_out.to_vec(),
        note: "fan-out assumes that the calls of a page are independent; a ratio is a hint, because varying lengths \
               can make it exceed 3"
            .into(),
    }
}

fn lengths(columns: &Columns, unit: SizeUnit, from: usize, to: usize) -> Lengths {
    let window = from..to;
    let (mut cached, mut known) = (0u64, 0u64);
    for i in window.clone().filter(|i| columns.cached(*i) != UNKNOWN && columns.prompt[*i] != UNKNOWN) {
        cached += u64::from(columns.cached(i));
        known += u64::from(columns.prompt[i]);
    }
    let finished: Vec<bool> = columns.fate[window.clone()].iter().map(|fate| fate.ended_well()).collect();
    // Only the server knows the number of tokens of an image or audio input.
    let has = |column: &[u32], i: usize| column.get(i).is_some_and(|n| *n > 0);
    let text_alone = |i: usize| !has(&columns.images, i) && !has(&columns.audio_ms, i);
    let compared: Vec<bool> =
        window.clone().zip(&finished).map(|(i, finished)| *finished && text_alone(i)).collect();
    Lengths {
        unit,
        prompt: length_figures(
            &columns.asked_prompt[window.clone()],
            &columns.prompt[window.clone()],
            &compared,
        ),
        output: length_figures(&columns.asked_output[window.clone()], &columns.output[window], &finished),
        cached_share: (known > 0).then(|| cached as f64 / known as f64),
    }
}

fn length_figures(asked: &[u32], reported: &[u32], finished: &[bool]) -> LengthFigures {
    let mut figures = LengthFigures::default();
    if asked.is_empty() {
        return figures;
    }
    let mut values = asked.to_vec();
    let mut at = |p: f64| {
        let rank = plimsoll_math::quantile::rank(values.len(), p) - 1;
        f64::from(*values.select_nth_unstable(rank).1)
    };
    (figures.asked_p50, figures.asked_p99) = (at(0.5), at(0.99));
    figures.asked_mean = asked.iter().map(|n| f64::from(*n)).sum::<f64>() / asked.len() as f64;
    let (mut sum_asked, mut sum_reported, mut off) = (0.0, 0.0, 0u64);
    for ((asked, reported), finished) in asked.iter().zip(reported).zip(finished) {
        if *reported == UNKNOWN || !finished {
            continue;
        }
        figures.reported += 1;
        sum_asked += f64::from(*asked);
        sum_reported += f64::from(*reported);
        let gap = asked.abs_diff(*reported);
        off += u64::from(gap > 2 && f64::from(gap) > 0.1 * f64::from(*asked));
    }
    if figures.reported > 0 {
        figures.reported_mean = Some(sum_reported / figures.reported as f64);
        figures.off_share = Some(off as f64 / figures.reported as f64);
        figures.deviation = (sum_asked > 0.0).then(|| sum_reported / sum_asked - 1.0);
    }
    figures
}

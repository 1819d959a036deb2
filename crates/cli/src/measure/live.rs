//! The live view of a level: the content of the screen while the driver runs.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::thread;

use plimsoll_client::{Clock, LevelPlan, LiveCounters, LiveTotals};
use plimsoll_model::{At, Load, SizeUnit, Span};
use plimsoll_report::figure;

use crate::progress::{self, ProgressFigures};
use crate::screen::{REDRAW, Screen, bar};

/// Lookback window of the rates and percentiles on the screen, in seconds.
const LOOK_BACK_S: f64 = 3.0;

/// The data of the live view.
pub struct View<'a> {
    pub live: LiveCounters,
    /// Clock with the run's time axis.
    pub clock: Clock,
    pub plan: &'a LevelPlan,
    pub title: &'a str,
    /// Number of requests after which the level ends; `None` if it ends at a time.
    pub requests: Option<u64>,
    pub counts: LiveCounts,
}

/// The meaning of the driver's counters.
#[derive(Copy, Clone, Debug)]
pub struct LiveCounts {
    pub unit: SizeUnit,
    /// Whether answers arrive token by token; if not, times are of whole answers.
    pub streams: bool,
}

/// Runs `work` on a separate thread and redraws the screen until it is done. `each` runs at each redraw and may return a line to print.
pub fn watch<T: Send>(
    screen: &mut Screen,
    view: &View<'_>,
    mut each: impl FnMut(At) -> Option<String>,
    work: impl FnOnce() -> T + Send,
) -> T {
    thread::scope(|scope| {
        let (done, wait) = mpsc::channel();
        let worker = scope.spawn(move || {
            let result = work();
            let _ = done.send(());
            result
        });
        let begun = view.clock.now();
        let before = view.live.totals();
        let earlier_levels = progress::so_far();
        // A title can end with the time left, which the lines have by themselves.
        screen.begin(view.title.split(" · ").next().unwrap_or_default());
        let mut past = VecDeque::from([(begun, before.clone())]);
        while wait.recv_timeout(REDRAW) == Err(mpsc::RecvTimeoutError::Timeout) {
            let now = view.clock.now();
            let totals = view.live.totals();
            while past.len() > 1
                && past.front().is_some_and(|(at, _)| (now - *at).as_secs_f64() > LOOK_BACK_S)
            {
                past.pop_front();
            }
            if let Some((since, earlier)) = past.front() {
                let elapsed_s = (now - begun).as_secs_f64();
                if screen.wants_figures(elapsed_s) {
                    let recent = (now - *since, earlier);
                    let figures = figures(view, &earlier_levels, (&before, &totals), recent);
                    screen.figures(left_s(view, elapsed_s, totals.ended - before.ended), figures);
                }
                let (block, line) = draw(view, (begun, now), &before, &totals, (*since, earlier));
                screen.show(elapsed_s, &block, &line);
            }
            past.push_back((now, totals));
            if let Some(line) = each(now) {
                screen.say(&line);
            }
        }
        screen.clear();
        let totals = view.live.totals();
        let recent = (view.clock.now() - begun, &before);
        screen.figures(Some(0.0), figures(view, &earlier_levels, (&before, &totals), recent));
        match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Returns the figures of the command so far: the figures of earlier levels, and of this level since `before`.
fn figures(
    view: &View<'_>,
    levels: &ProgressFigures,
    (before, totals): (&LiveTotals, &LiveTotals),
    (over, earlier): (Span, &LiveTotals),
) -> ProgressFigures {
    let finished = |totals: &LiveTotals| totals.ended.saturating_sub(totals.errors);
    let recent = finished(totals).saturating_sub(finished(earlier)) as f64;
    let latency = |p: f64| totals.ttft_since(earlier, p).map(Span::as_secs_f64);
    ProgressFigures {
        requests: levels.requests + totals.requests.saturating_sub(before.requests),
        finished: levels.finished + finished(totals).saturating_sub(finished(before)),
        failed: levels.failed + totals.errors.saturating_sub(before.errors),
        in_flight: totals.in_flight(),
        tokens_in: levels.tokens_in + totals.tokens_in.saturating_sub(before.tokens_in),
        tokens_out: levels.tokens_out + totals.tokens_out.saturating_sub(before.tokens_out),
        done_per_s: recent / over.as_secs_f64().max(1e-3),
        metric: if view.counts.streams { "ttft" } else { "e2e" }.to_owned(),
        p50_s: latency(0.5),
        p99_s: latency(0.99),
    }
}

/// Returns the time to the end of the level, s; `None` if it ends with its requests and none has ended.
fn left_s(view: &View<'_>, elapsed_s: f64, ended: u64) -> Option<f64> {
    match view.requests {
        Some(_) if ended == 0 => None,
        Some(most) => Some(elapsed_s * most.saturating_sub(ended) as f64 / ended as f64),
        None => Some((view.plan.window.as_secs_f64() - elapsed_s).max(0.0)),
    }
}

/// Returns the live block and its one-line form.
fn draw(
    view: &View<'_>,
    (begun, now): (At, At),
    before: &LiveTotals,
    totals: &LiveTotals,
    (since, earlier): (At, &LiveTotals),
) -> (Vec<String>, String) {
    let window_s = view.plan.window.as_secs_f64();
    let elapsed_s = (now - begun).as_secs_f64();
    let over_s = (now - since).as_secs_f64().max(1e-3);
    let rate = |now: u64, then: u64| (now - then) as f64 / over_s;
    let latency = |p: f64| {
        totals
            .ttft_since(earlier, p)
            .map_or_else(|| "–".to_string(), |span| figure::duration_ns(span.0 as f64))
    };
    let done = rate(totals.ended - totals.errors, earlier.ended - earlier.errors);
    let load = match view.plan.load {
        Load::Open { rate_per_s } => format!("{} due", figure::per_second(rate_per_s)),
        Load::Wave { requests } => format!("one wave of {requests}"),
        Load::Closed { concurrency } | Load::Saturating { concurrency } => {
            format!("{concurrency} kept in flight")
        }
    };
    let errors = totals.errors - before.errors;
    let by_time = elapsed_s / window_s.max(1e-9);
    let ended = totals.ended - before.ended;
    // Progress is counted in requests, because the window of a level that ends with its requests is only a limit.
    let counted = view.requests.filter(|most| by_time < ended as f64 / (*most).max(1) as f64);
    let (part, state) = match counted {
        Some(most) => (
            ended as f64 / most.max(1) as f64,
            format!("{} of {}", figure::count(ended), figure::count(most)),
        ),
        None if by_time > 1.0 => (by_time, format!("draining {}", figure::count(totals.in_flight()))),
        None => (by_time, format!("{} left", figure::duration_ns((window_s - elapsed_s).max(0.0) * 1e9))),
    };
    let latency_name = if view.counts.streams { "ttft" } else { "e2e" };
    let made = figure::number(rate(totals.tokens_out, earlier.tokens_out));
    let made = match (view.counts.unit, view.counts.streams) {
        (SizeUnit::Items, _) => format!("{made} items/s · "),
        (SizeUnit::Tokens, true) => format!("{made} tokens/s · "),
        (SizeUnit::Tokens, false) => String::new(),
    };
    let block = vec![
        format!("{}  {} {state}", view.title, bar(part, 24)),
        format!(
            "  {load} · {} done · {} in flight · {made}{} failed",
            figure::per_second(done),
            figure::count(totals.in_flight()),
            figure::count(errors),
        ),
        format!(
            "  {latency_name} of the last {LOOK_BACK_S:.0} s: p50 {} · p99 {} · q or Ctrl-C stops",
            latency(0.5),
            latency(0.99)
        ),
    ];
    let line = format!(
        "{} · {} done · {} in flight · {latency_name} p50 {} p99 {} · {} failed · {state}",
        view.title,
        figure::per_second(done),
        figure::count(totals.in_flight()),
        latency(0.5),
        latency(0.99),
        figure::count(errors),
    );
    (block, line)
}

//! S4, S6, S12 and the cost per request: what stands between the client and the engine.
//!
//! A constant in front of every first token has three makers, told apart by its shape on single requests: a batching window makes
//! it uniform between nothing and the window; a cost per request makes it the same for everyone; a dependency that is traced is
//! seen by its own stage. A pool makes nothing for single requests and much under load.

use plimsoll_math::quantile::{of_sorted, order_statistic, sort};

use super::load::Law;
use super::{Fired, beyond, within};
use crate::bench::{Bench, BenchArm};
use crate::fired::ALONE_NEEDED;
use crate::seen::{RequestRow, Seen};
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{ms, number, percent};
use plimsoll_measure::server_side::Signal;

/// What single requests wait more for their first token than the baseline's of like prompts, stages of dependencies left out: rising, s.
fn added(bench: &Bench<'_>) -> Option<(Vec<f64>, Vec<f64>, f64)> {
    let base = bench.base.as_ref()?;
    let engine = |row: &RequestRow| row.ttft_sent - row.before_engine().unwrap_or(0.0);
    let law = Law::of_metric(&base.alone, engine)?;
    let over = |rows: &[RequestRow]| -> Vec<f64> {
        let mut v: Vec<f64> =
            rows.iter().map(|row| engine(row) - law.at(row)).filter(|x| x.is_finite()).collect();
        sort(&mut v);
        v
    };
    let (before, now) = (over(&base.alone), over(&bench.candidate.alone));
    let mut typical: Vec<f64> =
        base.alone.iter().map(|row| row.ttft_sent).filter(|x| x.is_finite()).collect();
    let typical = order_statistic(&mut typical, 0.5)?;
    (before.len() >= ALONE_NEEDED && now.len() >= ALONE_NEEDED).then_some((before, now, typical))
}

/// The median of what was added, with an interval by order statistics.
fn median_added(before: &[f64], now: &[f64]) -> Option<Estimate> {
    let n = now.len() as f64;
    let half = 0.98 * libm::sqrt(n);
    let at = |rank: f64| now[(rank.round().max(0.0) as usize).min(now.len() - 1)];
    let was = of_sorted(before, 0.5)?;
    let value = of_sorted(now, 0.5)? - was;
    Some(Estimate {
        value,
        lower: at(n / 2.0 - half) - was,
        upper: at(n / 2.0 + half) - was,
        n: now.len() as u64,
        n_eff: n,
    })
}

/// Is what requests wait more under load spread evenly from nothing to about as much as single requests wait at most? Who asks one request
/// after the other asks at the same instant of each window, and does not see all of it.
fn spread_at_load(bench: &Bench<'_>, most: f64) -> bool {
    let sorted = |seen: &Seen<'_>| {
        let mut values = seen.finite(|row| row.ttft_sent - row.before_engine().unwrap_or(0.0));
        sort(&mut values);
        values
    };
    let Some(base) = bench.before() else { return false };
    let (before, now) = (sorted(base), sorted(bench.now()));
    let more = |p: f64| Some(of_sorted(&now, p)? - of_sorted(&before, p)?);
    let (Some(low), Some(middle)) = (more(0.08), more(0.5)) else { return false };
    low < 0.3 * most && (0.3..=0.7).contains(&(middle / most))
}

/// May first tokens be worse; or, where they are not seen to be, must they be?
fn felt(bench: &Bench<'_>, middle: &Estimate, typical: f64) -> bool {
    if bench.suspects("ttft") || bench.suspects("e2e") {
        return true;
    }
    // What each single request waits for certain, each request waits: it is as much of the usual first token as it is, whatever the other
    // prompts and queues of this run hide of it.
    let least = bench.case.spec.material_p50 - 1.0;
    let usual = bench.before().and_then(|base| order_statistic(&mut base.finite(|row| row.ttft), 0.5));
    let certain = middle.lower >= least * typical && usual.is_some_and(|usual| middle.value >= least * usual);
    certain && quickest(bench).is_some_and(|more| more >= AT_LOAD * middle.value)
}

/// S4: requests wait for a window to end, even alone.
pub fn batching_window(bench: &Bench<'_>) -> Option<Fired> {
    window_alone(bench).or_else(|| super::window::beside(bench))
}

/// The same as single requests show it.
fn window_alone(bench: &Bench<'_>) -> Option<Fired> {
    let (before, now, typical) = added(bench)?;
    let middle = median_added(&before, &now)?;
    if !felt(bench, &middle, typical) {
        return None;
    }
    let width = of_sorted(&now, 0.95)? - of_sorted(&now, 0.05)?;
    let was = of_sorted(&before, 0.95)? - of_sorted(&before, 0.05)?;
    let low = of_sorted(&now, 0.08)? - of_sorted(&before, 0.08)?;
    let high = of_sorted(&now, 0.92)? - of_sorted(&before, 0.5)?;
    let needed = 0.012f64.max(0.1 * typical);
    // Uniform from nothing to the window: hardly anything at its low end, half of it in the middle, no tail at its high end.
    let from_nothing = low < 0.3 * high || spread_at_load(bench, high);
    // The last one or two of forty may have met something else.
    let no_tail = middle.value > 0.3 * high && of_sorted(&now, 0.97)? - of_sorted(&now, 0.92)? < 0.35 * high;
    if middle.value < needed || middle.lower <= 0.0 || width < 1.5 * was || !from_nothing || !no_tail {
        return None;
    }
    if super::model::goes_with_output(bench)
        || super::model::goes_with_prompt(bench)
        || super::model::decode(bench).is_some_and(|ratio| ratio.lower > 1.05)
    {
        return None;
    }
    let window = high / 0.92;
    let says = format!(
        "single requests wait {} more for their first token (median), evenly spread from nothing to about {}: a window of that length",
        ms(middle.value),
        ms(window)
    );
    let confidence = beyond(middle.value, needed) * beyond(width, 1.5 * was.max(1e-4)) / 0.72 * 0.97;
    let mut fired = Fired::new(Cause::BatchingWindow, confidence.min(0.96), says.clone())
        .with(Evidence::figure("added_wait_s", says, middle, Some(needed)).inferred())
        .maybe(waiting(bench))
        .counted(Counter::Moved { name: "wait of single requests, s".into(), by: middle.value });
    fired.struck.delay_s = middle.value;
    Some(fired)
}

fn waiting(bench: &Bench<'_>) -> Option<Evidence> {
    let mean = bench.candidate.gauges.mean(Signal::Waiting)?;
    Some(Evidence::said("engine_waiting", format!("{} requests wait in the engine on average", number(mean))))
}

/// Part of what single requests wait more that the quicker ones under load must wait more as well: forty single requests with other prompts
/// differ by a tenth by chance, the hundreds of a load do not.
const AT_LOAD: f64 = 0.3;

/// What the quickest quarter of the first tokens under load takes more than the baseline's, s.
fn quickest(bench: &Bench<'_>) -> Option<f64> {
    let quarter = |seen: &Seen<'_>| {
        let mut values = seen.finite(|row| row.ttft_sent - row.before_engine().unwrap_or(0.0));
        order_statistic(&mut values, 0.25)
    };
    Some(quarter(bench.now())? - quarter(bench.before()?)?)
}

/// A fixed time on every request, alone or not, that no stage tells of.
pub fn per_request(bench: &Bench<'_>) -> Option<Fired> {
    let Some((before, now, typical)) = added(bench) else {
        let suspected = bench.suspects("ttft") || bench.suspects("e2e");
        return suspected.then(|| super::loaded::per_request(bench)).flatten();
    };
    let middle = median_added(&before, &now)?;
    if !felt(bench, &middle, typical) {
        return None;
    }
    let needed = 0.003f64.max(0.08 * typical);
    // The middle half: a few of forty are a step later than the others, or have a prompt that is read in more pieces. A window's middle half
    // is as wide as its median wait.
    let spread = of_sorted(&now, 0.75)? - of_sorted(&now, 0.25)?;
    let was = of_sorted(&before, 0.75)? - of_sorted(&before, 0.25)?;
    if middle.value < needed || middle.lower <= 0.3 * needed || spread > was + 0.35 * middle.value {
        return None;
    }
    // What everybody waits, the many under load wait as well, those too who wait for nothing else.
    if quickest(bench).is_some_and(|more| more < AT_LOAD * middle.value) {
        return None;
    }
    let (first, second) = super::model::lines(bench)?;
    let mut prompts: Vec<f64> = bench.candidate.alone.iter().map(super::load::computed).collect();
    let at = order_statistic(&mut prompts, 0.5)?;
    // A slope is the model's.
    if (second.per_token - first.per_token) * at > 0.5 * middle.value || super::model::goes_with_output(bench)
    {
        return None;
    }
    let says = format!(
        "every request takes {} more to its first token, alone or not, whatever its length (was {} alone){}",
        ms(middle.value),
        ms(typical),
        super::loaded::whose(bench)
    );
    let decode = super::model::decode(bench).is_some_and(|ratio| ratio.lower > 1.05);
    let confidence = beyond(middle.value, needed) * beyond(middle.lower, 0.5 * needed).min(0.95) / 0.72
        * if decode { 0.5 } else { 1.0 };
    let mut fired = Fired::new(Cause::PerRequestCost, confidence.min(0.93), says.clone())
        .with(Evidence::figure("added_fixed_s", says, middle, Some(needed)).inferred())
        .counted(Counter::NotRead { name: "time from the request's arrival to the engine's queue".into() });
    fired.struck.delay_s = middle.value;
    Some(fired)
}

/// S6: a pool or a limit in front of the engine.
pub fn connection_limit(bench: &Bench<'_>) -> Option<Fired> {
    if !(bench.suspects("ttft") || bench.suspects("e2e")) {
        return None;
    }
    client_pool(bench).or_else(|| server_limit(bench)).or_else(|| super::saturation::limit_in_front(bench))
}

/// The client's own pool of connections: the generator was on time and its requests were not.
fn client_pool(bench: &Bench<'_>) -> Option<Fired> {
    let seen = bench.now();
    let (held, p99) = pool_wait(seen)?;
    let before = bench.before().and_then(pool_wait).map_or(0.0, |(share, _)| share.value);
    if held.value < 0.03 || held.value < 2.0 * before || p99 < 0.05 {
        return None;
    }
    let own = seen.level.generator.lag.p99_ns as f64 / 1e9;
    let says = format!(
        "{} of the requests waited for a connection of the client's pool (p99 {}), the generator itself being {} late",
        percent(held.value),
        ms(p99),
        ms(own)
    );
    Some(
        Fired::new(
            Cause::ConnectionLimit,
            (beyond(held.value, 0.03) * beyond(p99, 0.05) / 0.72).min(0.97),
            says.clone(),
        )
        .with(Evidence::figure("waited_for_connection", says, held, Some(0.03)))
        .maybe(waiting(bench))
        .counted(Counter::Moved { name: "requests that waited for a connection".into(), by: held.value }),
    )
}

/// Share of requests that waited over 20 ms to be sent beyond what the generator says it was late, and the p99 of that wait.
pub fn pool_wait(seen: &Seen<'_>) -> Option<(Estimate, f64)> {
    let own = seen.level.generator.lag;
    // What a ceiling on requests in flight holds back the generator counts as its own lag; a full pool it does not. A closed loop has no
    // schedule to be late on: what lies between due and sent there is the wait for a connection, and nothing else.
    if own.count == 0 && !seen.is_closed() {
        return None;
    }
    let allowed = 0.02 + 1.5 * own.p99_ns as f64 / 1e9;
    let mut waits = seen.finite(|row| row.lag);
    let held: Vec<bool> = waits.iter().map(|wait| *wait > allowed).collect();
    let k = held.iter().filter(|held| **held).count() as f64;
    let p99 = order_statistic(&mut waits, 0.99)?;
    let design = plimsoll_math::quantile::design_effect(&held, crate::ratio::STRETCHES);
    (k >= 5.0).then(|| (super::share(k, held.len() as f64, design), p99))
}

/// Looks at the engine below which nothing is said of who stands in front of it: a wave that begins at a look finds it empty.
const FEWEST_LOOKS: usize = 4;
/// Share of the time that requests stand in front of the engine, by Little's law, by which the mean first token must have grown.
const FELT: f64 = 0.4;

/// Share of those in front of the engine who must stand there while it holds as many as it ever does.
const FULL: f64 = 0.4;

/// A limit between the two: sent by the client, unknown to the engine.
fn server_limit(bench: &Bench<'_>) -> Option<Fired> {
    // Where tokens come in lumps that did not before, it is on their way back that answers are held.
    if super::stall::in_lumps(bench) {
        return None;
    }
    let now = &bench.candidate;
    let (outside, error) = in_front(now)?;
    let (before, error_before) = bench.base.as_ref().and_then(in_front).unwrap_or((0.0, 0.0));
    let before = before.max(0.0);
    let waits = now.gauges.waits().unwrap_or(0.0);
    // Prompts that are read wait for a step or two in any engine: what the baseline's queue held as well is no queue of its own.
    let waited = bench.base.as_ref().and_then(|base| base.gauges.waits()).unwrap_or(0.0);
    let waits = (waits - waited).max(0.0);
    let (at_most, most) = now.gauges.at_most()?;
    let held = outside - before;
    // A scraper that looks every 15 s takes eight looks in two minutes: who stood there may be chance.
    if held < 2.0 * libm::hypot(error, error_before) {
        return None;
    }
    let seconds = held / now.seen.rate().max(1e-9);
    let mean_ttft = |seen: &Seen<'_>| {
        let v = seen.finite(|row| row.ttft);
        v.iter().sum::<f64>() / v.len().max(1) as f64
    };
    let ttft = mean_ttft(&now.seen);
    // What is in flight and neither runs nor waits is in front of the engine. A dependency that is told takes its part.
    let told = {
        let v = now.seen.finite(|row| row.before_engine().unwrap_or(f64::NAN));
        let was = bench.before().map_or(0.0, |base| {
            let v = base.finite(|row| row.before_engine().unwrap_or(f64::NAN));
            v.iter().sum::<f64>() / v.len().max(1) as f64
        });
        if v.is_empty() { 0.0 } else { v.iter().sum::<f64>() / v.len() as f64 - was }
    };
    let share = (seconds - told.max(0.0)) / ttft.max(1e-9);
    if share < 0.2 || held < 0.3 || waits > 0.25 || at_most < 0.05 {
        return None;
    }
    // Who stands in front of the engine has no token yet: what is held must be what first tokens grew by. An answer that pauses on its
    // way is in flight and unknown to the engine as well, after its first token.
    if bench.before().is_some_and(|base| ttft - mean_ttft(base) < FELT * (seconds - told.max(0.0))) {
        return None;
    }
    // Alone nobody waits for it: neither most single requests nor a fifth of them.
    let alone = added(bench).and_then(|(before, after, _)| {
        let more = |p: f64| Some(of_sorted(&after, p)? - of_sorted(&before, p)?);
        Some(more(0.5)?.max(more(0.85)?))
    });
    if alone.is_some_and(|alone| alone > 0.4 * seconds) {
        return None;
    }
    let full = at_ceiling(now)?;
    let says = format!(
        "{} requests in flight are neither running nor waiting in the engine (before {}), {} of the mean first token; {} of them stand there while the engine holds as many as it ever does (at most {}, with a queue of its own in {} of the time)",
        number(outside),
        number(before),
        percent(share),
        percent(full),
        number(most),
        percent(waits)
    );
    let confidence = beyond(share, 0.2) * within(waits.max(0.01), 0.25).max(0.7) / 0.72
        * beyond(full, FULL)
        * beyond(at_most, 0.15).max(0.75);
    Some(
        Fired::new(Cause::ConnectionLimit, confidence.min(0.95), says.clone())
            .with(Evidence::said("in_front_of_engine", says))
            .counted(Counter::Moved { name: "requests in front of the engine, mean".into(), by: held }),
    )
}

/// Requests in flight by their records that neither run nor wait in the engine, on average over the looks at it, with its standard error.
///
/// Both are counted at the instants of the looks. The mean in flight over all time beside the mean of the looks lost: every look that
/// happens on a quiet instant puts requests in front of the engine that never stood there, and few looks do so in one clean run of twelve.
fn in_front(arm: &BenchArm<'_>) -> Option<(f64, f64)> {
    let held = looks(arm)?;
    if held.len() < FEWEST_LOOKS {
        return None;
    }
    let time: f64 = held.iter().map(|look| look.holds).sum();
    let mean = held.iter().map(|look| look.outside * look.holds).sum::<f64>() / time;
    let spread =
        held.iter().map(|look| (look.outside - mean) * (look.outside - mean) * look.holds).sum::<f64>();
    (time > 0.0).then(|| (mean, libm::sqrt(spread / time / held.len() as f64)))
}

/// One look at the engine's page: requests in flight that are not on it, requests that are, and for how long it holds, s.
struct Look {
    outside: f64,
    inside: f64,
    holds: f64,
}

fn looks(arm: &BenchArm<'_>) -> Option<Vec<Look>> {
    let looks = arm.gauges.inside_at_looks()?;
    let sorted = |of: fn(&RequestRow) -> f64| {
        let mut v: Vec<f64> = arm.seen.rows.iter().filter(|row| row.sent.is_finite()).map(of).collect();
        sort(&mut v);
        v
    };
    let (sent, ended) = (sorted(|row| row.sent), sorted(|row| row.end.max(row.sent)));
    let until = |v: &[f64], at: f64| v.partition_point(|x| *x <= at) as f64;
    let look = |(at, inside, holds): &(f64, f64, f64)| Look {
        outside: until(&sent, *at) - until(&ended, *at) - inside,
        inside: *inside,
        holds: *holds,
    };
    Some(looks.iter().map(look).collect())
}

/// Of the requests that stand in front of the engine: the share that stands there while the engine holds as many as it ever does (the highest
/// of fifty looks is left out). A limit lets somebody in as soon as there is room; who is late for another reason is so however few are inside.
fn at_ceiling(arm: &BenchArm<'_>) -> Option<f64> {
    let looks = looks(arm)?;
    let ceiling = order_statistic(&mut looks.iter().map(|look| look.inside).collect::<Vec<_>>(), 0.98)?;
    let standing = |look: &&Look| look.outside >= 1.0;
    let all: f64 = looks.iter().filter(standing).map(|look| look.outside * look.holds).sum();
    let full = looks.iter().filter(standing).filter(|look| look.inside >= ceiling - 0.5);
    let full: f64 = full.map(|look| look.outside * look.holds).sum();
    (all > 0.0).then(|| full / all)
}

/// S12: answers come in lumps.
pub fn buffering(bench: &Bench<'_>) -> Option<Fired> {
    let seen = bench.now();
    let chunk = |seen: &Seen<'_>| {
        let mut v = seen.finite(RequestRow::chunk);
        (v.len() >= 20).then(|| order_statistic(&mut v, 0.5)).flatten()
    };
    let lumped = |seen: &Seen<'_>| {
        let mut v = seen.finite(|row| row.lumped);
        (v.len() >= 20).then(|| order_statistic(&mut v, 0.5)).flatten()
    };
    let (now, lumps) = (chunk(seen)?, lumped(seen).unwrap_or(0.0));
    let (was, lumps_were) =
        bench.before().map_or((1.0, 0.0), |base| (chunk(base).unwrap_or(1.0), lumped(base).unwrap_or(0.0)));
    let chunks = now / was.max(1.0);
    let more_lumps = lumps - lumps_were;
    if chunks < 2.0 && more_lumps < 0.4 {
        return None;
    }
    let pause = {
        let mut v = seen.finite(|row| row.gap_max);
        order_statistic(&mut v, 0.5).unwrap_or(0.0)
    };
    // Without a baseline a server that sends several tokens at once may be meant to.
    let known = bench.base.is_some() || pause >= 0.2;
    if !known || !["ttft", "pause", "tpot", "e2e"].iter().any(|metric| bench.suspects(metric)) {
        return None;
    }
    let held = match chunks >= 2.0 {
        true => format!("{} tokens come at once (before {})", number(now), number(was)),
        false => format!(
            "{} of the gaps between tokens are nothing (before {})",
            percent(lumps),
            percent(lumps_were)
        ),
    };
    let says = format!("{held}, and answers pause for {} (median of the longest)", ms(pause));
    let confidence = beyond(chunks, 2.0).max(beyond(more_lumps, 0.4)) * 1.1;
    let mut fired = Fired::new(Cause::ProxyBuffering, confidence.min(0.97), says.clone())
        .with(Evidence::said("tokens_per_event", says).inferred())
        .counted(Counter::Moved { name: "tokens per event, ratio".into(), by: chunks });
    fired.struck.lumps = true;
    Some(fired)
}

//! What experiments show: facts that causes differ in, each with the figure that decides it.
//!
//! A fact is *yes*, *no* or *unclear*, never a number alone: a table of what each cause makes likely has to be short enough to
//! be argued about. Unclear weighs nothing. Every threshold stands here beside its reason.

use plimsoll_model::How;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::before::Before;
use super::block::{Block, Row, mean, median, ratio, share};
use super::failed;
use super::plan::{ActiveSpec, Arm, Kind};
use super::{promise, rhythm};
use crate::findings::Estimate;

/// Something that may be so.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// Requests are turned away with 429 or 503.
    TurnedAway,
    /// Requests fail now and then.
    Fails,
    /// For a while nothing is answered, before and after it everything is.
    Outage,
    /// Answers end in the middle.
    CutShort,
    /// Tokens arrive in lumps.
    Lumps,
    /// The first token waits for those behind it.
    HeldBack,
    /// All answers stand still together.
    Freezes,
    /// They do so at even intervals.
    Regular,
    /// Tokens are slow for stretches of time.
    Unsteady,
    /// Alone, first tokens come at whole multiples of a window.
    Lattice,
    /// Alone, the wait for the first token is spread widely.
    SpreadWait,
    /// Alone, there is a wait that no prompt length explains.
    FixedWait,
    /// A request alone takes longer than was promised.
    OverBudget,
    /// In company requests take longer than was promised.
    OverTogether,
    /// In company the first token comes later.
    Waits,
    /// Those who wait do so while those who are served are as fast as before.
    Slots,
    /// In company each token takes longer and no more is answered.
    Crowded,
    /// In company a request is answered sooner than alone.
    FasterTogether,
    /// While requests wait, the engine says that none waits; or it knows of few of those that are in flight.
    EngineIdle,
    /// While requests wait, the engine says that they wait in it.
    EngineQueue,
    /// In company the server's own page does not come, which it did while one was alone.
    PageLost,
    /// The KV cache is full, or requests lost their place in it.
    KvFull,
    /// A new connection costs time.
    FreshCosts,
    /// A larger pool of our own makes the wait go.
    OwnPool,
    /// A prompt told before is answered no faster.
    CacheNothing,
    /// A prompt told before is sometimes fast and sometimes not.
    CacheForgets,
    /// The first request after a pause is slow.
    ColdAfterIdle,
    /// One replica is slower than the others.
    ReplicaDiffers,
    /// Alone, each token takes longer than in the baseline.
    SlowerToken,
    /// Alone, the first token comes later than in the baseline.
    LaterFirst,
    /// In company, an answer takes longer than in the baseline in as much company.
    SlowerTogether,
}

impl Fact {
    /// Every fact.
    pub const ALL: [Fact; 31] = [
        Fact::TurnedAway,
        Fact::Fails,
        Fact::Outage,
        Fact::CutShort,
        Fact::Lumps,
        Fact::HeldBack,
        Fact::Freezes,
        Fact::Regular,
        Fact::Unsteady,
        Fact::Lattice,
        Fact::SpreadWait,
        Fact::FixedWait,
        Fact::OverBudget,
        Fact::OverTogether,
        Fact::Waits,
        Fact::Slots,
        Fact::Crowded,
        Fact::FasterTogether,
        Fact::EngineIdle,
        Fact::EngineQueue,
        Fact::PageLost,
        Fact::KvFull,
        Fact::FreshCosts,
        Fact::OwnPool,
        Fact::CacheNothing,
        Fact::CacheForgets,
        Fact::ColdAfterIdle,
        Fact::ReplicaDiffers,
        Fact::SlowerToken,
        Fact::LaterFirst,
        Fact::SlowerTogether,
    ];
}

impl Fact {
    /// What its figure counts: `s`, `share`, `tokens`, or `×` for how many times as much.
    pub fn unit(self) -> &'static str {
        match self {
            Fact::OverBudget | Fact::FixedWait | Fact::SpreadWait | Fact::Freezes => "s",
            Fact::TurnedAway
            | Fact::Fails
            | Fact::Outage
            | Fact::CutShort
            | Fact::Regular
            | Fact::CacheForgets
            | Fact::OverTogether => "share",
            Fact::Lumps => "tokens",
            _ => "×",
        }
    }
}

/// Whether it is so.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is.
    Yes,
    /// It is not, or not so that it would matter.
    No,
    /// Not enough was measured, or the figure lies at its limit.
    Unclear,
}

/// A fact as it was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Shown {
    /// Which.
    pub fact: Fact,
    /// Whether it is so.
    pub state: State,
    /// The figure in a sentence part.
    pub says: String,
    /// The figure.
    pub value: Option<Estimate>,
    /// What it had to reach.
    pub limit: Option<f64>,
}

/// Times the wait alone from which on a wait in company is one, and as a share of the whole answer alone.
const WAITS: (f64, f64) = (2.0, 0.3);
/// What an answer in company takes of one alone, at most, from which on it is sooner.
const SOONER: f64 = 0.7;
/// Looks at the server's page in a level from which on their mean says how many it knows of.
const LOOKS: usize = 4;
/// Looks that brought no page from which on they are no accident, and as many that brought one where nobody was beside.
const LOST: usize = 2;
/// Growth of the answers per second for twice the company under which there is none.
const PLATEAU: f64 = 1.25;
/// Times as long per token from which on company is felt.
const CROWDED: f64 = 1.4;
/// And up to which it is not, however wide the interval.
const AS_FAST: f64 = 1.25;
/// A wait alone that no prompt length explains: seconds, steps of the engine, share of the first token's time.
const FIXED: (f64, f64, f64) = (0.025, 4.0, 0.4);
/// Spread of the wait alone, p90 − p10: seconds, share of its median.
const SPREAD: (f64, f64) = (0.02, 0.35);
/// Tokens that come at once, and seconds from one lump to the next, from which on a reader sees lumps.
const LUMPS: (f64, f64) = (3.0, 0.03);

/// Everything that the blocks show, beside an earlier run where there is one.
pub fn read(blocks: &[Block], spec: &ActiveSpec, before: Option<&Before>) -> Vec<Shown> {
    let mut shown = failed::read(blocks);
    shown.extend(lumps(blocks));
    shown.extend(rhythm::read(blocks));
    shown.extend(promise::alone(blocks, spec));
    shown.extend(alone(blocks));
    shown.extend(company(blocks));
    shown.extend(promise::together(blocks, spec));
    shown.extend(settings(blocks));
    shown.extend(replicas(blocks));
    shown.extend(before.into_iter().flat_map(|before| before.read(blocks)));
    if shown.iter().any(|shown| shown.fact == Fact::FasterTogether && shown.state == State::Yes) {
        // A window that the first request opens has no clock, and all who are alone wait as long: that neither shows says nothing.
        let clock = |shown: &&mut Shown| matches!(shown.fact, Fact::Lattice | Fact::SpreadWait);
        shown
            .iter_mut()
            .filter(clock)
            .filter(|of| of.state == State::No)
            .for_each(|of| of.state = State::Unclear);
    }
    shown
}

pub(crate) fn shown(
    fact: Fact,
    state: State,
    says: String,
    value: Option<Estimate>,
    limit: Option<f64>,
) -> Shown {
    Shown { fact, state, says, value, limit }
}

/// Yes where the lower bound is over the limit, no where the upper is under it.
pub(crate) fn over(value: &Estimate, limit: f64) -> State {
    match () {
        () if value.lower > limit => State::Yes,
        () if value.upper < limit => State::No,
        () => State::Unclear,
    }
}

pub(crate) fn of(blocks: &[Block], kind: Kind) -> impl Iterator<Item = &Block> {
    blocks.iter().filter(move |block| block.kind == kind)
}

/// The rows of all blocks of one setting.
fn arm(blocks: &[Block], kind: Kind, arm: Arm) -> Vec<&Row> {
    of(blocks, kind).filter(|block| block.arm == arm).flat_map(|block| &block.rows).collect()
}

pub(crate) fn ms(seconds: f64) -> String {
    match seconds {
        s if s >= 10.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.01 => format!("{:.0} ms", 1e3 * s),
        s => format!("{:.1} ms", 1e3 * s),
    }
}

pub(crate) fn percent(share: f64) -> String {
    if share < 0.1 { format!("{:.1} %", 100.0 * share) } else { format!("{:.0} %", 100.0 * share) }
}

// ------------------------------------------------------------------------------------------------ lumps

fn lumps(blocks: &[Block]) -> Vec<Shown> {
    let rows = of(blocks, Kind::Alone).chain(of(blocks, Kind::Watch)).flat_map(|block| &block.rows);
    let long: Vec<&Row> =
        rows.filter(|row| row.fine && row.output >= 8.0 && !row.tokens.is_empty()).collect();
    let mut all = Vec::new();
    if long.len() >= 5 {
        let seen: Vec<(f64, f64)> = long.iter().map(|row| lump(row)).collect();
        let tokens = median(seen.iter().map(|(tokens, _)| *tokens), 1.0);
        let apart = median(seen.iter().map(|(_, apart)| *apart), 1.0);
        if let (Some(tokens), Some(apart)) = (tokens, apart) {
            let state = match over(&tokens, LUMPS.0) {
                State::Yes if apart.value < LUMPS.1 => State::No,
                state => state,
            };
            let says =
                format!("{:.1} tokens arrive at once, {} from lump to lump", tokens.value, ms(apart.value));
            all.push(shown(Fact::Lumps, state, says, Some(tokens), Some(LUMPS.0)));
        }
    }
    all.extend(held_back(blocks));
    all
}

/// Tokens of an answer that come together, and the seconds from one such lump to the next. What comes within a fifth of the
/// mean distance of tokens comes together.
fn lump(row: &Row) -> (f64, f64) {
    let (Some(first), Some(last)) = (row.tokens.first(), row.tokens.last()) else { return (0.0, 0.0) };
    let from = row.due.max(first.0 - (last.0 - first.0));
    let apart = 0.2 * (last.0 - from) as f64 / row.output;
    let lumps = 1 + row.tokens.windows(2).filter(|pair| (pair[1].0 - pair[0].0) as f64 > apart).count();
    let whole_s = (last.0 - row.due) as f64 * 1e-9;
    (row.output / lumps as f64, whole_s / lumps as f64)
}

/// Long answers show their first token later than short ones: something collects them.
fn held_back(blocks: &[Block]) -> Option<Shown> {
    let ttft = |which| median(arm(blocks, Kind::Answers, which).iter().filter_map(|row| row.ttft_s()), 1.0);
    let e2e = |which| median(arm(blocks, Kind::Answers, which).iter().filter_map(|row| row.e2e_s()), 1.0);
    let (short, long) = (ttft(Arm::First)?, ttft(Arm::Second)?);
    let (whole_short, whole_long) = (e2e(Arm::First)?, e2e(Arm::Second)?);
    let grows = ratio(&long, &short)?;
    let whole = whole_long.value / whole_short.value;
    // Four times as long an answer: a first token that follows at least half of its growth waits for the rest.
    let limit = 1.0 + 0.5 * (whole - 1.0);
    let says = format!(
        "four times as long an answer takes {whole:.1} times as long, and its first token {:.2} times as long",
        grows.value
    );
    let state = if whole < 1.5 { State::Unclear } else { over(&grows, limit) };
    Some(shown(Fact::HeldBack, state, says, Some(grows), Some(limit)))
}

// ------------------------------------------------------------------------------------------------ alone

fn alone(blocks: &[Block]) -> Vec<Shown> {
    let mut all = Vec::new();
    let Some(block) = of(blocks, Kind::Alone).next() else { return all };
    let waits: Vec<f64> = block.rows.iter().filter_map(Row::ttft_s).collect();
    let Some(usual) = median(waits.iter().copied(), 1.0).filter(|_| waits.len() >= 10) else { return all };
    all.extend(rhythm::spread(block, &usual, SPREAD));
    all.extend(fixed_wait(blocks, block));
    all
}

/// The part of the wait that is left at a prompt of no length.
fn fixed_wait(blocks: &[Block], alone: &Block) -> Option<Shown> {
    let (short, mut long) = (arm(blocks, Kind::Prompts, Arm::First), arm(blocks, Kind::Prompts, Arm::Second));
    // Where the context holds no prompts of four times the length, those of the length itself are the long ones.
    if !long.is_empty() && long.iter().all(|row| row.how == How::ClientError) {
        long = alone.rows.iter().filter(|row| row.fine).collect();
    }
    let ttft = |rows: &[&Row]| median(rows.iter().filter_map(|row| row.ttft_s()), 1.0);
    let tokens = |rows: &[&Row]| mean(rows.iter().map(|row| row.prompt));
    let (wait_short, wait_long) = (ttft(&short)?, ttft(&long)?);
    let (few, many) = (tokens(&short)?, tokens(&long)?);
    let slope = ((wait_long.value - wait_short.value) / (many - few).max(1.0)).max(0.0);
    let without = |at: f64| (at - slope * few).max(0.0);
    let fixed = Estimate {
        value: without(wait_short.value),
        lower: without(wait_short.lower),
        upper: without(wait_short.upper),
        ..wait_short
    };
    let usual = alone.median(Row::ttft_s)?;
    let step = alone.median(Row::tpot_s).map_or(0.0, |tpot| tpot.value);
    let limit = FIXED.0.max(FIXED.1 * step).max(FIXED.2 * usual.value);
    let says = format!(
        "{} of the wait alone ({}) is there at any prompt length; a token takes {}, 1 000 prompt tokens {}",
        ms(fixed.value),
        ms(usual.value),
        ms(step),
        ms(1e3 * slope)
    );
    Some(shown(Fact::FixedWait, over(&fixed, limit), says, Some(fixed), Some(limit)))
}

// ------------------------------------------------------------------------------------------------ in company

fn company(blocks: &[Block]) -> Vec<Shown> {
    let mut all = Vec::new();
    let Some(alone) = of(blocks, Kind::Alone).next() else { return all };
    let mut steps: Vec<&Block> = of(blocks, Kind::Together).filter(|block| block.rate().is_some()).collect();
    steps.sort_by_key(|block| block.concurrency());
    let (Some(wait_1), Some(whole_1)) = (alone.median(Row::ttft_s), alone.median(Row::e2e_s)) else {
        return all;
    };
    let Some(last) = steps.last() else { return all };
    let (Some(wait), Some(at)) = (last.median(Row::ttft_s), last.concurrency()) else { return all };
    let limit = WAITS.0.max(1.0 + WAITS.1 * whole_1.value / wait_1.value.max(1e-9));
    let Some(times) = ratio(&wait, &wait_1) else { return all };
    let says =
        format!("{at} in flight wait {} for the first token, one alone {}", ms(wait.value), ms(wait_1.value));
    let waits = over(&times, limit);
    all.push(shown(Fact::Waits, waits, says, Some(times), Some(limit)));
    if waits != State::Yes {
        all.extend([Fact::Slots, Fact::Crowded].map(|fact| {
            let state = if waits == State::No { State::No } else { State::Unclear };
            shown(fact, state, "nobody waits".into(), None, None)
        }));
    } else {
        all.extend(where_they_wait(alone, &steps, wait_1.value));
        all.extend(page_lost(alone, last));
    }
    all.extend(kv(&steps, wait_1.value));
    all.extend(sooner(blocks, &whole_1, last));
    all
}

/// Who is answered sooner among others waits alone for them: a batch that is held open. Alone comes first and company after it, so that
/// a machine that was slow at first looks the same; requests alone that came later have to show it as well.
fn sooner(blocks: &[Block], alone: &Estimate, last: &Block) -> Option<Shown> {
    let whole = last.median(Row::e2e_s)?;
    let times = ratio(&whole, alone)?;
    let later = of(blocks, Kind::Idle).flat_map(|block| &block.rows).filter_map(Row::e2e_s);
    let (n, least) = later.fold((0, f64::INFINITY), |(n, least), e2e| (n + 1, e2e.min(least)));
    let at = last.concurrency().unwrap_or(1);
    let says = format!(
        "at {at} in flight an answer takes {}, alone {}{}",
        ms(whole.value),
        ms(alone.value),
        if n > 0 { format!(" and {} later on (the fastest of {n})", ms(least)) } else { String::new() }
    );
    let state = match times.upper < SOONER {
        false => State::No,
        true if n < 3 => State::Unclear,
        true if SOONER * least > whole.upper => State::Yes,
        true => State::No,
    };
    Some(shown(Fact::FasterTogether, state, says, Some(times), Some(SOONER)))
}

/// Those who are served: as many as before and as fast, or all of them slower?
fn where_they_wait(alone: &Block, steps: &[&Block], wait_alone: f64) -> Vec<Shown> {
    let mut all = Vec::new();
    let Some((last, before)) = steps.split_last() else { return all };
    let half = before.last().copied().unwrap_or(alone);
    let (Some(rate), Some(rate_half)) = (last.rate(), half.rate()) else { return all };
    let growth = rate / rate_half;
    let tpot = |block: &Block| block.median(Row::tpot_s);
    let (Some(token), Some(token_half)) = (tpot(last), tpot(half)) else { return all };
    let Some(slower) = ratio(&token, &token_half) else { return all };
    let served = served(last, wait_alone).unwrap_or(0.0);
    let at = last.concurrency().unwrap_or(1);
    let full = growth < PLATEAU;
    let says = format!(
        "at {at} in flight about {served:.1} are served at a time, {} a second ({growth:.2} times as many as at {}), a token takes {:.2} times as long",
        round(rate),
        half.concurrency().unwrap_or(1),
        slower.value
    );
    // Tokens of a few dozen answers: where their interval holds the limit, neither is known, unless they are far from it.
    let (slots, crowded) = match (full, over(&slower, CROWDED)) {
        (true, _) if slower.value < AS_FAST => (State::Yes, State::No),
        (true, State::No) => (State::Yes, State::No),
        (true, State::Yes) => (State::No, State::Yes),
        (true, State::Unclear) => (State::Unclear, State::Unclear),
        (false, _) => (State::Unclear, State::No),
    };
    all.push(shown(Fact::Slots, slots, says.clone(), Some(slower), Some(CROWDED)));
    all.push(shown(Fact::Crowded, crowded, says, Some(slower), Some(CROWDED)));
    all.extend(crowded_elsewhere(last, crowded));
    let waiting = last.gauges.waiting.filter(|_| last.gauges.looks >= LOOKS);
    let outside = (f64::from(at) - served).max(0.0);
    // Where tokens are neither as fast as before nor slower for sure, those who wait in the engine still wait in it.
    let known = slots == State::Yes || (full && slots == State::Unclear && outside >= 1.0);
    if let (Some(waiting), true) = (waiting, known) {
        let says = format!("of about {outside:.1} who wait, the engine says that {waiting:.1} wait in it");
        let (idle, queue) = match waiting / outside.max(1.0) {
            share if share < 0.2 && slots == State::Yes => (State::Yes, State::No),
            share if share > 0.5 => (State::No, State::Yes),
            _ => (State::Unclear, State::Unclear),
        };
        all.push(shown(Fact::EngineIdle, idle, says.clone(), None, None));
        all.push(shown(Fact::EngineQueue, queue, says, None, None));
    }
    all
}

/// All are slower, and the engine knows of few of them: what is crowded lies between it and here.
fn crowded_elsewhere(last: &Block, crowded: State) -> Option<Shown> {
    let inside = last.gauges.running? + last.gauges.waiting?;
    let at = f64::from(last.concurrency()?);
    // What crowds the way crowds the page's looks too: two that know of next to none of them are enough.
    if crowded != State::Yes || last.gauges.looks < 2 {
        return None;
    }
    let few = last.gauges.looks < LOOKS;
    let says = format!(
        "of {at:.0} in flight the engine knows of {inside:.1}; the others are on their way to it or from it"
    );
    let state = match inside / at {
        share if share < if few { 0.25 } else { 0.5 } => State::Yes,
        share if share > 0.8 && !few => State::No,
        _ => State::Unclear,
    };
    Some(shown(Fact::EngineIdle, state, says, None, None))
}

/// The page takes the way that the answers take and nothing of the engine. Where it stops coming as soon as there is company, that way is
/// what is crowded, or the front that sends it.
fn page_lost(alone: &Block, last: &Block) -> Option<Shown> {
    let ((came, lost), (came_alone, lost_alone)) = (last.gauges.pages, alone.gauges.pages);
    let at = last.concurrency()?;
    let says = format!(
        "at {at} in flight {lost} of {} looks at the server's page brought none in time, alone {lost_alone} of {}",
        came + lost,
        came_alone + lost_alone
    );
    let is = lost >= LOST && lost >= came && came_alone >= LOST && 4 * lost_alone <= came_alone;
    is.then(|| shown(Fact::PageLost, State::Yes, says, None, None))
}

/// How many of those in flight are served at a time, by Little's law: those who do not wait longer than one alone does.
fn served(block: &Block, wait_alone: f64) -> Option<f64> {
    let e2e = mean(block.settled().iter().filter_map(Row::e2e_s))?;
    let extra = (block.median(Row::ttft_s)?.value - wait_alone).max(0.0);
    Some(block.rate()? * (e2e - extra).max(0.0))
}

fn round(rate: f64) -> String {
    if rate >= 10.0 { format!("{rate:.0}") } else { format!("{rate:.2}") }
}

/// Tokens in flight that every KV cache holds: the least that engines are set up for is one context of a few thousand.
const HELD: f64 = 4_096.0;

fn kv(steps: &[&Block], wait_alone: f64) -> Option<Shown> {
    let told = steps.iter().filter_map(|block| block.gauges.kv).reduce(f64::max);
    let Some(kv) = told else {
        // Where the server does not say: what was served at a time may be less than any cache holds. Who waits holds nothing.
        let tokens = |block: &Block| {
            let longest = block.rows.iter().map(|row| row.prompt + row.output).fold(0.0, f64::max);
            served(block, wait_alone).unwrap_or_else(|| f64::from(block.concurrency().unwrap_or(1))) * longest
        };
        let most = steps.iter().map(|block| tokens(block)).fold(0.0, f64::max);
        let says = format!("at most {most:.0} tokens were served at a time, fewer than any KV cache holds");
        return (most > 0.0 && most < HELD).then(|| shown(Fact::KvFull, State::No, says, None, Some(HELD)));
    };
    let preempted: f64 = steps.iter().filter_map(|block| block.gauges.preemptions).sum();
    let waiting = steps.last().and_then(|block| block.gauges.waiting).unwrap_or(0.0);
    let says = format!(
        "the KV cache was up to {} full, {preempted:.0} preemptions, {waiting:.1} waiting",
        percent(kv)
    );
    let state = match () {
        () if preempted > 0.0 || (kv >= 0.85 && waiting > 0.5) => State::Yes,
        () if kv < 0.7 => State::No,
        () => State::Unclear,
    };
    Some(shown(Fact::KvFull, state, says, None, Some(0.85)))
}

// ------------------------------------------------------------------------------------------------ two settings

fn settings(blocks: &[Block]) -> Vec<Shown> {
    let mut all = Vec::new();
    let two = |kind: Kind, of: &dyn Fn(&Row) -> Option<f64>| {
        let a = median(arm(blocks, kind, Arm::First).into_iter().filter_map(of), 1.0)?;
        let b = median(arm(blocks, kind, Arm::Second).into_iter().filter_map(of), 1.0)?;
        Some((a, b, ratio(&b, &a)?))
    };
    // Where the server ends each connection, those that were to be kept are fresh as well.
    let kept_ones = arm(blocks, Kind::Connections, Arm::First);
    let made = kept_ones.iter().filter(|row| row.connect.is_some()).count();
    let keeps = 2 * made <= kept_ones.len();
    if let Some((kept, fresh, times)) = two(Kind::Connections, &|row| row.ttft_s()).filter(|_| keeps) {
        let costs = fresh.value - kept.value;
        let says = format!(
            "on a fresh connection the first token takes {}, on a kept one {}",
            ms(fresh.value),
            ms(kept.value)
        );
        let state = if costs.abs() < 0.01 { State::No } else { over(&times, 1.25) };
        all.push(shown(Fact::FreshCosts, state, says, Some(times), Some(1.25)));
    }
    if let Some((once, twice, times)) = two(Kind::Pool, &|row| row.ttft_s()) {
        let says = format!(
            "with the client's pool the first token takes {}, with one twice as large {}",
            ms(once.value),
            ms(twice.value)
        );
        let shrinks = Estimate {
            value: 1.0 / times.value,
            lower: 1.0 / times.upper,
            upper: 1.0 / times.lower.max(1e-9),
            ..times
        };
        all.push(shown(Fact::OwnPool, over(&shrinks, 1.5), says, Some(shrinks), Some(1.5)));
    }
    all.extend(cache(blocks));
    all.extend(idle(blocks));
    all
}

/// Is a prompt told before answered faster, always or sometimes?
fn cache(blocks: &[Block]) -> Vec<Shown> {
    let mut all = Vec::new();
    let distinct: Vec<f64> =
        arm(blocks, Kind::Repeats, Arm::First).iter().filter_map(|row| row.ttft_s()).collect();
    // The very first tells the prompt; it is no repeat.
    let same_rows: Vec<&Row> = arm(blocks, Kind::Repeats, Arm::Second).into_iter().skip(1).collect();
    let same: Vec<f64> = same_rows.iter().filter_map(|row| row.ttft_s()).collect();
    let (Some(new), Some(old)) = (median(distinct.iter().copied(), 1.0), median(same.iter().copied(), 1.0))
    else {
        return all;
    };
    let (Some(times), true) = (ratio(&old, &new), same.len() >= 10) else { return all };
    // Without a prompt that costs time there is nothing to save.
    let prefill = prefill_share(blocks);
    let says = format!(
        "a prompt told before has its first token after {}, a new one after {}",
        ms(old.value),
        ms(new.value)
    );
    let middle = 0.5 * (new.value + same.iter().copied().fold(f64::INFINITY, f64::min));
    let slow = same.iter().filter(|wait| **wait > middle).count();
    let cached: Vec<f64> = same_rows.iter().filter_map(|row| row.cached).collect();
    let best = same.iter().copied().fold(f64::INFINITY, f64::min);
    let forgets = if cached.len() >= 10 {
        let none = cached.iter().filter(|cached| **cached < 1.0).count();
        let some = cached.len() - none;
        Some((none, cached.len(), some > 0 && none >= 3))
    } else {
        Some((slow, same.len(), best < 0.6 * new.value && slow >= 3))
    };
    if let Some((none, n, is)) = forgets {
        let state = if is { State::Yes } else { State::No };
        let words = format!("{none} of {n} prompts told before were computed anew");
        all.push(shown(Fact::CacheForgets, state, words, share(none, n), None));
    }
    let nothing = match () {
        () if prefill.is_none_or(|share| share < 0.3) => State::Unclear,
        () if times.lower > 0.85 => State::Yes,
        () if times.upper < 0.85 => State::No,
        () => State::Unclear,
    };
    all.push(shown(Fact::CacheNothing, nothing, says, Some(times), Some(0.85)));
    all
}

/// Share of a long prompt's wait that its length makes.
fn prefill_share(blocks: &[Block]) -> Option<f64> {
    let ttft = |which| median(arm(blocks, Kind::Prompts, which).iter().filter_map(|row| row.ttft_s()), 1.0);
    let (short, long) = (ttft(Arm::First)?, ttft(Arm::Second)?);
    Some(((long.value - short.value) / long.value).max(0.0))
}

fn idle(blocks: &[Block]) -> Option<Shown> {
    let after: Vec<f64> = of(blocks, Kind::Idle).filter_map(|block| block.rows.first()?.ttft_s()).collect();
    let alone = of(blocks, Kind::Alone).next()?;
    let usual = median(alone.rows.iter().skip(1).filter_map(Row::ttft_s), 1.0)?;
    let slowest = alone.rows.iter().skip(1).filter_map(Row::ttft_s).fold(0.0, f64::max);
    let (n, least) = (after.len(), after.iter().copied().fold(f64::INFINITY, f64::min));
    let cold = median(after.into_iter(), 1.0)?;
    let times = ratio(&cold, &usual)?;
    let says = format!(
        "after a pause the first request has its first token after {}, else after {}",
        ms(cold.value),
        ms(usual.value)
    );
    // Three of three slower than twice the median and than every one of forty: by chance once in ten thousand.
    let state = match () {
        () if n >= 2 && least > 2.0 * usual.value && least > slowest && least - usual.value > 0.02 => {
            State::Yes
        }
        () if n >= 2 && cold.value <= 1.3 * usual.value => State::No,
        () => State::Unclear,
    };
    Some(shown(Fact::ColdAfterIdle, state, says, Some(times), Some(2.0)))
}

// ------------------------------------------------------------------------------------------------ replicas

/// Time per token by replica, alone where they were asked alone, else wherever they answered.
fn replicas(blocks: &[Block]) -> Option<Shown> {
    let mut by: Vec<(String, Vec<f64>)> = Vec::new();
    let mut put = |name: String, value: f64| match by.iter_mut().find(|(known, _)| *known == name) {
        Some((_, values)) => values.push(value),
        None => by.push((name, vec![value])),
    };
    let told_apart = of(blocks, Kind::Replicas).next().is_some();
    if told_apart {
        for block in of(blocks, Kind::Replicas) {
            let Arm::Number(n) = block.arm else { continue };
            block.rows.iter().filter_map(Row::tpot_s).for_each(|tpot| put(format!("replica {n}"), tpot));
        }
    } else {
        // The watched level alone: its company is the same throughout.
        for row in of(blocks, Kind::Watch).chain(of(blocks, Kind::Alone)).flat_map(|block| &block.rows) {
            if let (Some(name), Some(tpot)) = (&row.replica, row.tpot_s()) {
                put(name.clone(), tpot);
            }
        }
    }
    let of: Vec<(String, Estimate)> = by
        .into_iter()
        .filter(|(_, values)| values.len() >= 6)
        .filter_map(|(name, values)| Some((name, median(values.into_iter(), 1.0)?)))
        .collect();
    let slowest = of.iter().max_by(|a, b| a.1.value.total_cmp(&b.1.value))?;
    let mut values: Vec<f64> = of.iter().map(|(_, tpot)| tpot.value).collect();
    values.sort_by(f64::total_cmp);
    // The middle of the others: of two replicas the faster.
    let usual = of.iter().find(|(_, tpot)| tpot.value == values[(of.len() - 1) / 2])?;
    if of.len() < 2 {
        return None;
    }
    let times = ratio(&slowest.1, &usual.1)?;
    let says = format!(
        "a token takes {} on {} and {} on {}",
        ms(slowest.1.value),
        slowest.0,
        ms(usual.1.value),
        usual.0
    );
    let state = match () {
        () if times.lower > 1.15 && times.value >= 1.3 => State::Yes,
        () if times.value < 1.15 => State::No,
        () => State::Unclear,
    };
    Some(shown(Fact::ReplicaDiffers, state, says, Some(times), Some(1.3)))
}

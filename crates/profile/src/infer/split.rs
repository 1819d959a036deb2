//! The split of each request's wait into front, queue and prefill: reported by the server, from the steps, or from
//! the floor.
//!
//! A split has a *shape* (the share of the queue in each wait) and *means*. The shape is inferred. Means that the
//! server reports over known requests are fitted to it, so that inferred parts add up to known values. Every inferred
//! split is made three times: with the latest possible, the likely and the earliest possible start of the prefill.
//! The range between them is its error.

use super::floor::ComputeFloor;
use super::rows::ClientRow;
use super::told::{ReportedMean, ReportedStages};
use super::track::Track;

plimsoll_model::named! {
    /// The parts of a request's time in order. They are consecutive intervals, and add up to the whole.
    #[derive(
        Copy,
        Clone,
        PartialEq,
        Eq,
        PartialOrd,
        Ord,
        Hash,
        Debug,
        serde::Serialize,
        serde::Deserialize,
        schemars::JsonSchema,
    )]
    #[serde(rename_all = "snake_case")]
    pub enum WaitPart {
        /// From due to sent, without connecting: the generator's lag, and the wait for a connection.
        ClientWait => "client_wait",
        /// Time to establish a new connection.
        Connect => "connect",
        /// Time outside queue and prefill: network, gateway, tokenising, sending the token.
        Front => "front",
        /// In the server's queue.
        Queue => "queue",
        /// Computation of the prompt.
        Prefill => "prefill",
        /// From the first token to the last.
        Decode => "decode",
        /// From the last token to the last byte.
        Tail => "tail",
    }
}

impl WaitPart {
    /// Returns the part with this name, or with its name in budgets and traces.
    pub fn named(name: &str) -> Option<WaitPart> {
        match name {
            "network" | "tokenise" | "tokenize" | "gateway" => Some(WaitPart::Front),
            "client" => Some(WaitPart::ClientWait),
            name => WaitPart::ALL.into_iter().find(|part| part.name() == name),
        }
    }
}

/// The parts of one request in ns, in the order of [`WaitPart::ALL`]. They add up to its time from due to end.
pub type Split = [f64; 7];

#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitSource {
    /// Reported by the server for each request.
    Reported,
    /// The engine's steps, seen in the tokens of other responses.
    Steps,
    /// The time of isolated requests.
    Floor,
    /// The server's means, applied equally to every request.
    Means,
    /// Reported prefill times; the time before the prefill is not split.
    Prompts,
}

/// A split of the wait of every row: prefill time and front time, in ns.
pub(super) struct Shape {
    pub prefill: Vec<f64>,
    pub front: f64,
    /// Part of each wait after the prefill, for sending the first token.
    pub after: Vec<f64>,
}

/// The likely shape, and the two ends of its error.
pub(super) struct Shapes {
    pub likely: Shape,
    pub ends: Vec<Shape>,
    pub source: WaitSource,
    /// Uncertainty of the front time, ns.
    pub front_half: f64,
}

pub(super) fn by_steps(rows: &[ClientRow<'_>], track: &Track) -> Option<Shapes> {
    let begun: Vec<_> = track.begun(rows).into_iter().collect::<Option<Vec<_>>>()?;
    let shape = |start: fn(&super::track::PromptTimes) -> i64| Shape {
        prefill: begun.iter().map(|b| (b.done - start(b)).max(0) as f64).collect(),
        front: track.front_ns as f64,
        after: rows.iter().zip(&begun).map(|(row, b)| (row.first - b.done).max(0) as f64).collect(),
    };
    Some(Shapes {
        likely: shape(|b| b.at),
        ends: vec![shape(|b| b.late), shape(|b| b.early)],
        source: WaitSource::Steps,
        front_half: track.front_half_ns as f64,
    })
}

/// Returns the shapes from the floor. Under load a prefill shares its steps with others. At minimum it takes its
/// isolated time; at maximum it takes most of the wait beyond the floor, in longer steps. `slower` is the ratio of
/// token gaps to isolated ones; `told` is set if the server reports the mean prefill time.
pub(super) fn by_floor(rows: &[ClientRow<'_>], floor: &ComputeFloor, slower: f64, told: bool) -> Shapes {
    let base = floor.base_ns - floor.front_ns();
    let with_base = |base: f64, front: f64, factor: f64, of_the_rest: f64| Shape {
        prefill: rows
            .iter()
            .map(|row| {
                let own = base * factor + floor.per_token_ns * row.uncached;
                let rest = (row.wait() as f64 - front - own).max(0.0);
                (own + of_the_rest * rest).min(row.wait() as f64)
            })
            .collect(),
        front,
        after: vec![0.0; rows.len()],
    };
    let shape = |factor: f64, of_the_rest: f64| with_base(base, floor.front_ns(), factor, of_the_rest);
    let slower = slower.max(1.0);
    // With a reported mean, only the spread matters: it follows from each request's wait beyond the floor.
    let (likely, ends) = if told {
        (shape(1.0, 0.5), vec![shape(1.0, 0.0), shape(slower, 0.25), shape(1.0, 0.95)])
    } else {
        // A prefill has a fixed cost beyond its tokens, unlike a decode. It is one step, or, if all prompts have one
        // length, the whole front time.
        let own = if floor.lengths_differ { floor.gap_ns.min(floor.front_ns()) } else { floor.front_ns() };
        let dear = with_base(base + own, floor.front_ns() - own, slower, 0.0);
        (shape(slower, 0.0), vec![shape(1.0, 0.0), shape(slower, 0.6), dear])
    };
    Shapes { likely, ends, source: WaitSource::Floor, front_half: 2.0 * floor.spread_ns }
}

/// Returns the shapes from reported means only. The ends: equal prefill times, and parts in proportion to the wait.
pub(super) fn by_means(rows: &[ClientRow<'_>], queue: f64, prefill: f64) -> Shapes {
    let mean = |of: fn(&ClientRow<'_>) -> f64| rows.iter().map(of).sum::<f64>() / rows.len().max(1) as f64;
    let (wait, tokens) = (mean(|row| row.wait() as f64).max(1.0), mean(|row| row.uncached).max(1.0));
    let share = (prefill / wait).clamp(0.0, 1.0);
    let front = (wait - queue - prefill).max(0.0);
    let shape = |of: &dyn Fn(&ClientRow<'_>) -> f64| Shape {
        prefill: rows.iter().map(|row| of(row).clamp(0.0, row.wait() as f64)).collect(),
        front,
        after: vec![0.0; rows.len()],
    };
    let by_length = |row: &ClientRow<'_>| prefill * row.uncached / tokens;
    Shapes {
        likely: shape(&|row| 0.5 * prefill + 0.5 * by_length(row)),
        ends: vec![shape(&|_| prefill), shape(&by_length), shape(&|row| share * row.wait() as f64)],
        source: WaitSource::Means,
        front_half: 0.0,
    }
}

/// The reported means that a shape is fitted to, and the rows of each.
#[derive(Clone)]
pub(super) struct KnownMeans {
    pub queue: Option<(ReportedMean, Vec<usize>)>,
    pub prefill: Option<(ReportedMean, Vec<usize>)>,
}

impl KnownMeans {
    /// Finds the rows of each reported mean.
    pub fn of(rows: &[ClientRow<'_>], told: &ReportedStages, with_waiting: bool) -> KnownMeans {
        let members = |told: ReportedMean| {
            let within = |row: &ClientRow<'_>| row.end > told.from.0 && row.end <= told.to.0;
            let members: Vec<usize> = (0..rows.len()).filter(|i| within(&rows[*i])).collect();
            (members.len() >= 20).then_some((told, members))
        };
        let waiting = told.waiting.filter(|_| with_waiting);
        KnownMeans {
            queue: told.queue.or(waiting).and_then(members),
            prefill: told.prefill.and_then(members),
        }
    }
}

/// Fits the means to a shape and splits every wait. Times in ns: front, queue, prefill.
///
/// The rest of a wait after the prefill is queue and front. The front is equal for all requests, so one constant is
/// searched with which the queue has its reported mean.
pub(super) fn lay(rows: &[ClientRow<'_>], shape: &Shape, pins: &KnownMeans) -> Vec<[f64; 3]> {
    let mut prefill = shape.prefill.clone();
    if let Some((told, members)) = &pins.prefill {
        let mean = members.iter().map(|i| prefill[*i]).sum::<f64>() / members.len() as f64;
        let factor = if mean > 0.0 { told.mean_ns / mean } else { 1.0 };
        for (i, value) in prefill.iter_mut().enumerate() {
            *value = (*value * factor).min(rows[i].wait() as f64);
        }
    }
    let left: Vec<f64> = rows
        .iter()
        .zip(&prefill)
        .zip(&shape.after)
        .map(|((row, prefill), after)| (row.wait() as f64 - prefill - after).max(0.0))
        .collect();
    let front = match &pins.queue {
        Some((told, members)) => constant(&left, members, told.mean_ns),
        None => shape.front,
    };
    left.iter()
        .zip(prefill)
        .zip(rows)
        .map(|((left, prefill), row)| {
            let queue = (left - front).max(0.0);
            // Rounding may make the rest negative.
            [(row.wait() as f64 - queue - prefill).max(0.0), queue, prefill]
        })
        .collect()
}

/// Returns the c for which the mean of max(left − c, 0) over the members is `mean`; at least 0.
fn constant(left: &[f64], members: &[usize], mean: f64) -> f64 {
    let with = |c: f64| members.iter().map(|i| (left[*i] - c).max(0.0)).sum::<f64>() / members.len() as f64;
    let (mut low, mut high) = (0.0, members.iter().map(|i| left[*i]).fold(0.0, f64::max));
    if with(low) <= mean {
        return 0.0;
    }
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if with(middle) > mean { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// Returns the complete split of a request with this split of its wait.
pub(super) fn whole(row: &ClientRow<'_>, [front, queue, prefill]: [f64; 3]) -> Split {
    let connect = row.connected.map_or(0, |at| at - row.due);
    let client = row.sent - row.due - connect;
    [
        client as f64,
        connect as f64,
        front,
        queue,
        prefill,
        (row.last - row.first) as f64,
        (row.end - row.last) as f64,
    ]
}

/// Returns the server-reported parts of one request in ns: front, queue, prefill. Returns `None` if queue or prefill
/// is missing.
pub(super) fn reported(row: &ClientRow<'_>) -> Option<[f64; 3]> {
    let of = |name: &str| {
        let stage = row.attempt.answer.stages.iter().find(|stage| stage.name == name)?;
        Some(stage.took.0.max(0) as f64)
    };
    let (queue, prefill, wait) = (of("queue")?, of("prefill")?, row.wait() as f64);
    // The server's clock may report more than the client's wait; then the whole wait is divided in proportion.
    let scale = if queue + prefill > wait { wait / (queue + prefill).max(1.0) } else { 1.0 };
    Some([(wait - (queue + prefill) * scale).max(0.0), queue * scale, prefill * scale])
}

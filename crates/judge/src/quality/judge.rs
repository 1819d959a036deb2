//! Evaluation of answers: agreement, noise floor, scores.
//!
//! Intervals are by item. Shares use Clopper and Pearson, and score differences use Tango. Means use a bootstrap over items,
//! because the rounds of one question are not independent.

use plimsoll_math::bootstrap;
use plimsoll_math::paired::{difference, mcnemar};
use plimsoll_math::proportion::clopper_pearson;
use plimsoll_math::rng::Stream;

use super::score::ScoreRule;
use super::tokens::{alike, first_divergence, tokens};
use super::{
    Agreement, AnswerSimilarity, CompleteAnswerScores, ItemFinding, ItemSpec, QUALITY_SCHEMA, Quality,
    QualityFigure, QualityTarget, Quartiles, Rounds, ScoreVerdict, Scores, TargetAnswers,
};
use plimsoll_measure::order::LEVEL;

const REPLICATES: usize = 2000;

/// Evaluates answers. `items` contain their lines and rules; `a` and `b` contain each item's rounds in the order of `items`.
pub fn judge(
    (eval, targets): (String, [QualityTarget; 2]),
    items: &[(u64, ItemSpec, Option<ScoreRule>)],
    (a, b): (&TargetAnswers, &TargetAnswers),
    margin: f64,
) -> Quality {
    let rounds = a.rounds.first().map_or(0, Vec::len) as u32;
    let pairs: Vec<(&Rounds, &Rounds)> = a.rounds.iter().zip(&b.rounds).collect();
    let cut = |item: usize| [a, b].map(|said| said.cut.get(item).is_some_and(|cut| *cut));
    let [mut of_a, mut of_b] = targets;
    (of_a.cut, of_b.cut) =
        (a.cut.iter().filter(|cut| **cut).count() as u64, b.cut.iter().filter(|cut| **cut).count() as u64);
    Quality {
        schema: QUALITY_SCHEMA,
        eval,
        targets: vec![of_a, of_b],
        rounds,
        agreement: agreement(&pairs),
        scores: scores(items, &pairs, margin)
            .map(|all| Scores { uncut: uncut(items, &pairs, &cut, margin), ..all }),
        items: (0..)
            .zip(items.iter().zip(&pairs))
            .map(|(at, (item, pair))| finding(item, *pair, cut(at)))
            .collect(),
    }
}

/// Returns the scores of the items with two uncut first answers; `None` if no answer was cut.
fn uncut(
    items: &[(u64, ItemSpec, Option<ScoreRule>)],
    pairs: &[(&Rounds, &Rounds)],
    cut: &impl Fn(usize) -> [bool; 2],
    margin: f64,
) -> Option<CompleteAnswerScores> {
    let whole: Vec<usize> = (0..pairs.len()).filter(|at| cut(*at) == [false; 2]).collect();
    if whole.len() == pairs.len() {
        return None;
    }
    let items: Vec<_> = whole.iter().map(|at| items[*at].clone()).collect();
    let pairs: Vec<_> = whole.iter().map(|at| pairs[*at]).collect();
    scores(&items, &pairs, margin)
        .map(|found| CompleteAnswerScores { difference: found.difference, verdict: found.verdict })
}

fn finding(
    (line, item, rule): &(u64, ItemSpec, Option<ScoreRule>),
    (a, b): (&Rounds, &Rounds),
    [cut_a, cut_b]: [bool; 2],
) -> ItemFinding {
    let (first_a, first_b) = (first(a), first(b));
    let words_a = first_a.map(tokens);
    let words_b = first_b.map(tokens);
    let both = words_a.as_ref().zip(words_b.as_ref());
    let right = |text: Option<&str>| rule.as_ref().zip(text).map(|(rule, text)| rule.is_right(text));
    ItemFinding {
        line: *line,
        id: item.id.clone(),
        same: first_a.zip(first_b).map(|(a, b)| a == b),
        first_divergence: both.and_then(|(a, b)| first_divergence(a, b)).map(|at| at as u64),
        tokens_a: words_a.as_ref().map(|words| words.len() as u64),
        tokens_b: words_b.as_ref().map(|words| words.len() as u64),
        right_a: right(first_a),
        right_b: right(first_b),
        cut_a,
        cut_b,
        answers_a: None,
        answers_b: None,
    }
}

fn first(rounds: &Rounds) -> Option<&str> {
    rounds.first().and_then(Option::as_deref)
}

/// Returns the agreement of the answers to one item over all pairs of rounds: (identical, equal tokens).
///
/// `None` if there is no pair.
fn alike_in<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Option<(f64, f64)> {
    let (mut n, mut same, mut shares) = (0.0, 0.0, 0.0);
    for (a, b) in pairs {
        n += 1.0;
        same += f64::from(u8::from(a == b));
        shares += alike(&tokens(a), &tokens(b));
    }
    (n > 0.0).then(|| (same / n, shares / n))
}

/// Returns the agreement over pairs of different rounds of one target.
fn itself(rounds: &Rounds) -> Option<(f64, f64)> {
    let said: Vec<&str> = rounds.iter().flatten().map(String::as_str).collect();
    let pairs = (0..said.len()).flat_map(|i| (i + 1..said.len()).map(move |j| (i, j)));
    alike_in(pairs.map(|(i, j)| (said[i], said[j])))
}

fn between((a, b): (&Rounds, &Rounds)) -> Option<(f64, f64)> {
    let said_b = || b.iter().flatten().map(String::as_str);
    alike_in(a.iter().flatten().flat_map(|a| said_b().map(move |b| (a.as_str(), b))))
}

fn agreement(pairs: &[(&Rounds, &Rounds)]) -> Agreement {
    let each: Vec<Option<(f64, f64)>> = pairs.iter().map(|pair| between(*pair)).collect();
    let own_a: Vec<_> = pairs.iter().map(|(a, _)| itself(a)).collect();
    let own_b: Vec<_> = pairs.iter().map(|(_, b)| itself(b)).collect();
    let beyond: Vec<f64> = each
        .iter()
        .zip(own_a.iter().zip(&own_b))
        .filter_map(|(between, (a, b))| Some(0.5 * ((*a)?.1 + (*b)?.1) - (*between)?.1))
        .collect();
    let firsts: Vec<(Vec<&str>, Vec<&str>)> =
        pairs.iter().filter_map(|(a, b)| Some((tokens(first(a)?), tokens(first(b)?)))).collect();
    let mut parts: Vec<f64> =
        firsts.iter().filter_map(|(a, b)| first_divergence(a, b)).map(|at| at as f64).collect();
    let longer = firsts.iter().filter(|(a, b)| b.len() > a.len()).count() as u64;
    let shorter = firsts.iter().filter(|(a, b)| b.len() < a.len()).count() as u64;
    Agreement {
        between: alike_of(&each, "between").unwrap_or(NOTHING),
        a_itself: alike_of(&own_a, "a"),
        b_itself: alike_of(&own_b, "b"),
        beyond_noise: mean(&beyond, "beyond", (-1.0, 1.0)),
        first_divergence: quartiles(&mut parts),
        length_ratio: length_ratio(&firsts),
        longer_shorter: (longer, shorter),
    }
}

/// Agreement if no item was answered by both targets.
const NOTHING: AnswerSimilarity = {
    let unknown = QualityFigure { value: 0.0, lower: 0.0, upper: 1.0, n: 0 };
    AnswerSimilarity { exact: unknown, tokens: unknown }
};

fn alike_of(items: &[Option<(f64, f64)>], name: &str) -> Option<AnswerSimilarity> {
    let known: Vec<(f64, f64)> = items.iter().flatten().copied().collect();
    let exact: Vec<f64> = known.iter().map(|(exact, _)| *exact).collect();
    let shares: Vec<f64> = known.iter().map(|(_, tokens)| *tokens).collect();
    let n = known.len() as f64;
    // The rounds of an item are one question, so an item counts once, by the share of its identical pairs.
    let same: f64 = exact.iter().sum();
    let bounds = clopper_pearson(same, n, LEVEL);
    let (lower, upper) = (bounds.lower, bounds.upper);
    let exact = QualityFigure { value: same / n.max(1.0), lower, upper, n: known.len() as u64 };
    Some(AnswerSimilarity { exact, tokens: mean(&shares, name, (0.0, 1.0))? })
}

/// Returns a mean over items in a range with its bootstrap interval.
///
/// If all values are equal, a bootstrap shows no spread. The interval then includes as many other values as n items can have
/// missed, each at the far end of the range.
fn mean(values: &[f64], name: &str, (least, most): (f64, f64)) -> Option<QualityFigure> {
    let n = values.len();
    let value = values.iter().sum::<f64>() / n as f64;
    let first = values.first()?;
    if values.iter().all(|value| value == first) {
        let missed = clopper_pearson(0.0, n as f64, LEVEL).upper;
        let with = |other: f64| value + missed * (other - value);
        return Some(QualityFigure { value, lower: with(least), upper: with(most), n: n as u64 });
    }
    let mut stream = Stream::new(0, name, n as u64);
    let drawn = |indices: &[usize]| indices.iter().map(|i| values[*i]).sum::<f64>() / n as f64;
    let found = bootstrap::interval(&mut stream, n, REPLICATES, LEVEL, drawn);
    Some(QualityFigure { value, lower: found.lower, upper: found.upper, n: n as u64 })
}

fn quartiles(values: &mut [f64]) -> Option<Quartiles> {
    use plimsoll_math::quantile::{of_sorted, sort};
    sort(values);
    let at = |p: f64| of_sorted(values, p);
    Some(Quartiles { p25: at(0.25)?, p50: at(0.5)?, p75: at(0.75)?, n: values.len() as u64 })
}

fn length_ratio(firsts: &[(Vec<&str>, Vec<&str>)]) -> Option<QualityFigure> {
    let sums = |indices: &mut dyn Iterator<Item = usize>| {
        indices.fold((0.0, 0.0), |(a, b), i| (a + firsts[i].0.len() as f64, b + firsts[i].1.len() as f64))
    };
    let n = firsts.len();
    let (a, b) = sums(&mut (0..n));
    if a == 0.0 {
        return None;
    }
    let mut stream = Stream::new(0, "length", n as u64);
    let drawn = |indices: &[usize]| {
        let (a, b) = sums(&mut indices.iter().copied());
        b / a.max(1.0)
    };
    let found = bootstrap::interval(&mut stream, n, REPLICATES, LEVEL, drawn);
    Some(QualityFigure { value: b / a, lower: found.lower, upper: found.upper, n: n as u64 })
}

fn scores(
    items: &[(u64, ItemSpec, Option<ScoreRule>)],
    pairs: &[(&Rounds, &Rounds)],
    margin: f64,
) -> Option<Scores> {
    let scored: Vec<(&ScoreRule, &Rounds, &Rounds)> =
        items.iter().zip(pairs).filter_map(|((_, _, rule), (a, b))| Some((rule.as_ref()?, *a, *b))).collect();
    let right: Vec<(bool, bool)> = scored
        .iter()
        .filter_map(|(rule, a, b)| Some((rule.is_right(first(a)?), rule.is_right(first(b)?))))
        .collect();
    let n = right.len() as u64;
    let count = |is: fn(&(bool, bool)) -> bool| right.iter().filter(|pair| is(pair)).count() as u64;
    let (only_a, only_b) = (count(|(a, b)| *a && !b), count(|(a, b)| !a && *b));
    let bounds = difference(only_a, only_b, n, LEVEL)?;
    let share = |k: u64| {
        let bounds = clopper_pearson(k as f64, n as f64, LEVEL);
        QualityFigure { value: k as f64 / n as f64, lower: bounds.lower, upper: bounds.upper, n }
    };
    let (a, b) = (share(count(|(a, _)| *a)), share(count(|(_, b)| *b)));
    let verdict = match (bounds.upper < -margin, bounds.lower >= -margin) {
        (true, _) => ScoreVerdict::Worse,
        (false, true) => ScoreVerdict::NotWorse,
        (false, false) => ScoreVerdict::Inconclusive,
    };
    Some(Scores {
        a,
        b,
        difference: QualityFigure { value: b.value - a.value, lower: bounds.lower, upper: bounds.upper, n },
        only_a,
        only_b,
        p: mcnemar(only_a, only_b),
        a_flips: flips(scored.iter().map(|(rule, a, _)| (*rule, *a))),
        b_flips: flips(scored.iter().map(|(rule, _, b)| (*rule, *b))),
        margin,
        verdict,
        uncut: None,
    })
}

/// Returns the number of items whose answers from one target are sometimes right and sometimes wrong.
///
/// `None` if there was one round.
fn flips<'a>(scored: impl Iterator<Item = (&'a ScoreRule, &'a Rounds)>) -> Option<u64> {
    let mut repeated = scored.filter(|(_, rounds)| rounds.len() > 1).peekable();
    repeated.peek()?;
    let flips = |(rule, rounds): &(&ScoreRule, &Rounds)| {
        let mut right = rounds.iter().flatten().map(|text| rule.is_right(text));
        let first = right.next();
        right.any(|right| Some(right) != first)
    };
    Some(repeated.filter(flips).count() as u64)
}

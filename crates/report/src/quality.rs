//! Renders the effect of a change on the quality of answers.

use plimsoll_judge::quality::{AnswerSimilarity, Quality, QualityFigure, ScoreVerdict, Scores};

use crate::figure;
use crate::table::TextTable;

/// Share of tokens that an endpoint must repeat itself before agreement with another endpoint has meaning.
const STEADY: f64 = 0.5;

/// Returns the whole finding as text.
pub fn text(found: &Quality) -> String {
    let mut out = String::new();
    for (name, target) in ["A", "B"].iter().zip(&found.targets) {
        let model = target.model.as_deref().unwrap_or("–");
        out.push_str(&format!("{name}  {}  model {model}\n", target.url));
    }
    let times = match found.rounds {
        1 => "sent once at temperature 0: the noise floor of an endpoint is unknown (use --repeat 2)"
            .to_owned(),
        n => format!("sent {n} times at temperature 0"),
    };
    out.push_str(&format!("{}, {times}\n\n", figure::counted(found.items.len() as u64, "item")));
    out.push_str(&agreement(found));
    out.push_str("Tokens are words and punctuation marks, not the tokens of the servers\n");
    if let Some(scores) = &found.scores {
        out.push_str(&format!("\n{}", judged(scores)));
    }
    for (name, target) in ["A", "B"].iter().zip(&found.targets).filter(|(_, target)| target.unanswered > 0) {
        let why = target.why.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        let n = target.unanswered;
        out.push_str(&format!(
            "\n{name} left {} without an answer{why}: in no figure\n",
            figure::counted(n, "request")
        ));
    }
    out.push_str(&cut(found));
    out.trim_end().to_owned()
}

/// Describes the answers that ended at the token limit, and whether the scores depend on it.
fn cut(found: &Quality) -> String {
    let [a, b] = [0, 1].map(|i| found.targets.get(i).map_or(0, |target| target.cut));
    if a + b == 0 {
        return String::new();
    }
    let mut out = format!(
        "\nCut off at --max-tokens: {a} of A's and {b} of B's first answers of {}. Only the received part is compared; raise \
         --max-tokens to compare whole answers\n",
        found.items.len()
    );
    if let Some(scores) = &found.scores {
        let without = match &scores.uncut {
            Some(uncut) => {
                let verdict = verdict(uncut.verdict, scores.margin);
                format!("B less A {} over {} items, {verdict}", points(&uncut.difference), uncut.difference.n)
            }
            None => "nothing is left to score".to_owned(),
        };
        out.push_str(&format!("Scores include these answers; without them: {without}\n"));
    }
    out
}

/// Returns one line, for a comparison.
pub fn line(found: &Quality) -> String {
    let between = figure::percent(found.agreement.between.tokens.value);
    let itself = found
        .agreement
        .a_itself
        .map_or(String::new(), |own| format!(" (A with itself {})", figure::percent(own.tokens.value)));
    let agree = format!("answers share {between} of their tokens{itself}");
    match &found.scores {
        None => format!("Quality  {agree}; nothing was scored"),
        Some(scores) => format!(
            "Quality  {} right against {}: {} ({}, {} items); {agree}",
            figure::percent(scores.b.value),
            figure::percent(scores.a.value),
            points(&scores.difference),
            verdict(scores.verdict, scores.margin),
            scores.difference.n
        ),
    }
}

fn agreement(found: &Quality) -> String {
    let agreement = &found.agreement;
    let mut table = TextTable::new(&["<", "same answer", "[95 %]", "same tokens", "[95 %]", "items"]);
    let rows = [
        ("A against B", Some(agreement.between)),
        ("A against itself", agreement.a_itself),
        ("B against itself", agreement.b_itself),
    ];
    for (name, alike) in rows {
        let Some(AnswerSimilarity { exact, tokens }) = alike else { continue };
        let cells = [exact, tokens].map(|f| [figure::percent(f.value), ends(&f)]);
        let [[exact_value, exact_ends], [tokens_value, tokens_ends]] = cells;
        let n = figure::count(exact.n);
        table.row([name.into(), exact_value, exact_ends, tokens_value, tokens_ends, n]);
    }
    let mut out = table.render(0);
    if let Some(beyond) = agreement.beyond_noise {
        let turned =
            QualityFigure { value: -beyond.value, lower: -beyond.upper, upper: -beyond.lower, ..beyond };
        out.push_str(&format!("Beyond the noise floor  same tokens {}\n", points(&turned)));
    }
    let own = [("A", agreement.a_itself), ("B", agreement.b_itself)];
    let unsteady = own.iter().filter(|(_, own)| own.is_some_and(|own| own.tokens.upper < STEADY));
    let unsteady: Vec<&str> = unsteady.map(|(name, _)| *name).collect();
    if !unsteady.is_empty() {
        out.push_str(&format!(
            "Answers of {} differ between repeats: agreement cannot show the change, only scores can\n",
            unsteady.join(" and ")
        ));
    }
    if let Some(parts) = agreement.first_divergence {
        out.push_str(&format!(
            "They diverge in {} of {} items, after {} tokens at the median (quartiles {} and {})\n",
            parts.n, agreement.between.exact.n, parts.p50, parts.p25, parts.p75
        ));
    }
    if let Some(ratio) = agreement.length_ratio {
        let (longer, shorter) = agreement.longer_shorter;
        let ends = figure::interval(&figure::number(ratio.lower), &figure::number(ratio.upper));
        let value = figure::number(ratio.value);
        out.push_str(&format!(
            "B's answers are {value} × as long {ends}: {longer} longer, {shorter} shorter\n"
        ));
    }
    out
}

fn judged(scores: &Scores) -> String {
    let side = |name: &str, share: &QualityFigure| {
        format!("{name} {} {}", figure::percent(share.value), ends(share))
    };
    let flips = match (scores.a_flips, scores.b_flips) {
        (Some(a), Some(b)) => format!("; right and wrong in turn: {a} on A, {b} on B"),
        _ => String::new(),
    };
    format!(
        "Right    {}   {}\nB less A {}, p {} (McNemar, exact: {} right only on A, {} only on B{flips})\nVerdict  {}\n",
        side("A", &scores.a),
        side("B", &scores.b),
        points(&scores.difference),
        figure::number(scores.p),
        scores.only_a,
        scores.only_b,
        verdict(scores.verdict, scores.margin)
    )
}

fn verdict(verdict: ScoreVerdict, margin: f64) -> String {
    let margin = figure::number(100.0 * margin);
    match verdict {
        ScoreVerdict::Worse => format!("worse by more than {margin} points"),
        ScoreVerdict::NotWorse => format!("not worse by more than {margin} points"),
        ScoreVerdict::Inconclusive => format!("inconclusive at a margin of {margin} points: more items"),
    }
}

/// Formats a difference of shares in points: `−6.7 points [−12, −1.2]`.
fn points(difference: &QualityFigure) -> String {
    let of = |share: f64| format!("{}{}", if share > 0.0 { "+" } else { "" }, figure::number(100.0 * share));
    format!(
        "{} points {}",
        of(difference.value),
        figure::interval(&of(difference.lower), &of(difference.upper))
    )
}

fn ends(share: &QualityFigure) -> String {
    let of = |share: f64| figure::percent(share.clamp(0.0, 1.0)).trim_end_matches(" %").to_owned();
    figure::interval(&of(share.lower), &of(share.upper))
}

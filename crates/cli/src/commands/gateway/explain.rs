//! `plimsoll gateway explain RUN [REQUEST]` explains routing decisions from a gateway record.

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll_gateway::explain::{ChoiceReason, ExplainRecord, PageTerm, RouteExplanation, SelectedModel};
use plimsoll_model::{Attempt, How};
use plimsoll_policy::PageStanding;
use plimsoll_report::figure::{self, counted};
use plimsoll_report::table::TextTable;
use serde::Serialize;

use super::record::{EXPLAINED, KIND};
use crate::exit::{Exit, Stop};
use crate::flags::OutputFormat;
use crate::{named, out, rows};

/// Explains one request, or summarises all.
pub fn run(format: OutputFormat, run: &str, request: Option<&str>) -> Result<Exit, Stop> {
    let dir = named::run(run).map_err(Stop::usage)?;
    let name = dir.display();
    let recorded = rows::whole(&dir)?;
    if recorded.manifest.kind != KIND {
        return Err(Stop::usage(format!(
            "{name}: is no gateway's record; plimsoll gateway --record DIR makes one"
        )));
    }
    let explained = read(&dir)?;
    let Some(request) = request else {
        let whole = Whole::of(&recorded.attempts, &explained);
        match format {
            OutputFormat::Text => out::line(&whole.text()),
            OutputFormat::Json => out::json(&whole),
        }
        return Ok(Exit::Done);
    };
    let asked: Option<u64> = request.parse().ok();
    let is = |one: &&ExplainRecord| one.id == request || asked == Some(one.request);
    let Some(one) = explained.iter().find(is) else {
        let (of, all) = (counted(explained.len() as u64, "request"), recorded.attempts.len());
        return Err(Stop::usage(format!(
            "{request}: not among the {of} of {all} rows that are explained here; record: {{explain: 1}} in the gateway's file explains all"
        )));
    };
    let tries: Vec<&Attempt> = recorded.attempts.iter().filter(|row| row.request == one.request).collect();
    match format {
        OutputFormat::Text => out::line(&request_text(one, &tries)),
        OutputFormat::Json => out::json(&serde_json::json!({"explained": one, "attempts": tries})),
    }
    Ok(Exit::Done)
}

/// Reads the recorded decisions. A line that a kill cut off is skipped.
fn read(dir: &Path) -> Result<Vec<ExplainRecord>, Stop> {
    let path = dir.join(EXPLAINED);
    let text = std::fs::read_to_string(&path).map_err(|e| out::unread(path.display(), &e))?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

// -------------------------------------------------------------------------------------------- one request

fn request_text(one: &ExplainRecord, tries: &[&Attempt]) -> String {
    let mut page = Vec::new();
    for (n, choice) in one.choices.iter().enumerate() {
        let row = tries.iter().find(|row| row.answer.replica.as_deref() == Some(&choice.chosen));
        page.push(format!(
            "Request {} ({}){}: {}, because {}",
            one.request,
            one.id,
            if one.choices.len() > 1 { format!(", choice {}", n + 1) } else { String::new() },
            choice.chosen,
            choice.because().words()
        ));
        page.extend(choice.asked_of.as_ref().map(asked_of));
        page.push(candidates(choice));
        let out: Vec<String> = choice
            .left_out
            .iter()
            .map(|left| {
                let why = match left.standing {
                    Some(standing) => super::words(standing),
                    // The first decision excludes replicas without room, later decisions exclude replicas
                    // that were tried.
                    None if n == 0 => "had no room",
                    None => "had been tried",
                };
                format!("{} {why}", left.replica)
            })
            .collect();
        if !out.is_empty() {
            page.push(format!("  Left out: {}.", out.join("; ")));
        }
        page.push(format!("  Retries left in the budget: {:.1}.", choice.retries_left));
        page.extend(row.map(|row| came_of_it(choice, row)));
    }
    page.join("\n")
}

/// Describes the choice between several models.
fn asked_of(of: &SelectedModel) -> String {
    let passed = of.passed_over.iter().map(|passed| match passed.late_s {
        Some(late_s) => {
            format!("of {} it would have been {} late", passed.model, figure::duration_ns(late_s * 1e9))
        }
        None => format!("no replica of {} might get it", passed.model),
    });
    let passed: Vec<String> = passed.collect();
    let because = if passed.is_empty() { String::new() } else { format!(": {}", passed.join("; ")) };
    format!("  Sent to {}{because}.", of.model)
}

/// Returns a table with the cost terms of each candidate, ms.
fn candidates(choice: &RouteExplanation) -> String {
    let mut table = TextTable::new(&[
        "<replica",
        "requests",
        "of others",
        "page",
        "waiting",
        "decoding",
        "cached",
        "base ms",
        "wait",
        "prompt",
        "step",
        "others",
        "penalty",
        "cost",
    ]);
    for one in &choice.candidates {
        let ms = |s: Option<f64>| s.map_or("–".to_owned(), |s| format!("{:.2}", 1e3 * s));
        let terms = one.terms;
        let mark = if one.replica == choice.chosen { "→ " } else { "  " };
        table.row([
            format!("{mark}{}", one.replica),
            one.requests.to_string(),
            one.others.to_string(),
            one.page.map_or("–".to_owned(), page),
            one.waiting_tokens.to_string(),
            one.decoding.to_string(),
            format!("{}/{}", one.cached, choice.prompt_tokens),
            ms(terms.map(|t| t.base_s)),
            ms(terms.map(|t| t.wait_s)),
            ms(terms.map(|t| t.own_s)),
            ms(terms.map(|t| t.step_s)),
            ms(terms.map(|t| t.others_s)),
            ms(terms.map(|t| t.penalty_s)),
            ms(terms.map(|t| t.cost_s())),
        ]);
    }
    table.render(2).trim_end().to_owned()
}

/// Describes the age of a replica's own metrics, and their state if they were not used as reported.
fn page(page: PageTerm) -> String {
    let age = figure::duration_ns(page.age_s * 1e9);
    match page.standing {
        PageStanding::Believed => age,
        other => format!("{age}, {}", other.words()),
    }
}

fn came_of_it(choice: &RouteExplanation, row: &Attempt) -> String {
    let waited = row.answer.stages.iter().find(|stage| stage.name == "gateway_hold");
    let waited = waited.map_or(String::new(), |stage| {
        format!("waited {} while no replica could take it; ", figure::duration_ns(stage.took.0 as f64))
    });
    let first = row.first_token.map_or(String::new(), |at| {
        format!(", first token {} after it came", figure::duration_ns((at - row.due).0 as f64))
    });
    let cached = match (expected_share(choice), row.answer.tokens.prompt, row.answer.tokens.cached) {
        (Some(share), Some(prompt), Some(cached)) => format!(
            "; {:.0} of {prompt} prompt tokens were expected to be cached, the server took {cached}",
            share * f64::from(prompt)
        ),
        _ => String::new(),
    };
    format!("  {waited}{}{first}{cached}.", row.outcome.how.name().replace('_', " "))
}

/// Returns the expected cached share of the prompt on the chosen replica. The gateway estimates tokens from
/// bytes, so the server's count can differ.
fn expected_share(choice: &RouteExplanation) -> Option<f64> {
    let cached = choice.winner()?.cached;
    Some(f64::from(cached) / f64::from(choice.prompt_tokens.max(1)))
}

// -------------------------------------------------------------------------------------------- all of them

/// The summary of all requests.
#[derive(Serialize)]
struct Whole {
    requests: u64,
    explained: u64,
    /// Attempts by replica, with the explained ones by reason.
    replicas: BTreeMap<String, ReplicaTotals>,
    because: BTreeMap<ChoiceReason, u64>,
    /// Expected cached prompt tokens, and the cached tokens that servers reported for these requests.
    expected_cached: f64,
    reported_cached: f64,
    /// Reported share of the expected cached tokens; `None` if none was expected.
    came_true: Option<f64>,
    retries: u64,
    shed: u64,
}

#[derive(Serialize, Default)]
struct ReplicaTotals {
    attempts: u64,
    finished: u64,
    shed: u64,
    failed: u64,
}

impl Whole {
    fn of(attempts: &[Attempt], explained: &[ExplainRecord]) -> Whole {
        let mut whole = Whole {
            requests: attempts.iter().filter(|row| row.attempt == 0).count() as u64,
            explained: explained.len() as u64,
            replicas: BTreeMap::new(),
            because: BTreeMap::new(),
            expected_cached: 0.0,
            reported_cached: 0.0,
            came_true: None,
            retries: attempts.iter().filter(|row| row.attempt > 0).count() as u64,
            shed: attempts.iter().filter(|row| row.outcome.how == How::Shed).count() as u64,
        };
        for row in attempts {
            let name = row.answer.replica.clone().unwrap_or_else(|| "(none)".to_owned());
            let went = whole.replicas.entry(name).or_default();
            went.attempts += 1;
            match row.outcome.how {
                How::Finished | How::Cancelled => went.finished += 1,
                How::Shed => went.shed += 1,
                _ => went.failed += 1,
            }
        }
        let last: BTreeMap<u64, &Attempt> = attempts.iter().map(|row| (row.request, row)).collect();
        let mut kept = 0.0;
        for one in explained {
            one.choices.iter().for_each(|choice| *whole.because.entry(choice.because()).or_default() += 1);
            let tokens = last.get(&one.request).map(|row| row.answer.tokens);
            let share = one.choices.last().and_then(expected_share);
            if let (Some(share), Some((prompt, cached))) =
                (share, tokens.and_then(|tokens| tokens.prompt.zip(tokens.cached)))
            {
                let expected = share * f64::from(prompt);
                whole.expected_cached += expected;
                whole.reported_cached += f64::from(cached);
                kept += expected.min(f64::from(cached));
            }
        }
        whole.came_true = (whole.expected_cached > 0.0).then(|| kept / whole.expected_cached);
        whole
    }

    fn text(&self) -> String {
        let mut table = TextTable::new(&["<replica", "attempts", "share", "answered", "shed", "failed"]);
        let all: u64 = self.replicas.values().map(|went| went.attempts).sum();
        for (name, went) in &self.replicas {
            table.row([
                name.clone(),
                went.attempts.to_string(),
                format!("{:.1} %", 100.0 * went.attempts as f64 / all.max(1) as f64),
                went.finished.to_string(),
                went.shed.to_string(),
                went.failed.to_string(),
            ]);
        }
        let mut page = vec![
            format!(
                "{}, {} retried, {} shed",
                counted(self.requests, "request"),
                counted(self.retries, "attempt"),
                counted(self.shed, "attempt")
            ),
            table.render(2).trim_end().to_owned(),
            format!("Why, of the {} that are explained:", counted(self.explained, "request")),
        ];
        let mut because: Vec<(&ChoiceReason, &u64)> = self.because.iter().collect();
        because.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        page.extend(because.iter().map(|(because, count)| format!("  {count:>6}  {}", because.words())));
        page.push(match self.came_true {
            Some(share) => format!(
                "Of {:.0} prompt tokens that were expected to be cached {:.1} % were; the servers took {:.0} from their caches.",
                self.expected_cached,
                100.0 * share,
                self.reported_cached
            ),
            None => "No server reported cached tokens for an explained request.".to_owned(),
        });
        page.join("\n")
    }
}

//! Reads a budget file from YAML or JSON, with line and column of every key.
//!
//! Errors come from the YAML reader, the schema and the file's own check; all have the form `FILE:LINE:COLUMN: problem`. The places are read in a
//! second pass, because a deserialised value has none. The gate's SARIF uses them too.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use plimsoll_judge::budget::{Amount, BUDGET_VERSION, Budget, BudgetFile, BudgetMetric, check_shape};
use plimsoll_measure::findings::{BudgetSpec, Ceiling};
use plimsoll_report::figure::centile;
use plimsoll_workload::SpecError;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

use crate::exit::Stop;
use crate::resolve;

/// Line and column, from 1.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct TextPlace {
    pub line: u32,
    pub column: u32,
}

/// A budget file with the places of its keys.
pub struct BudgetText {
    pub path: PathBuf,
    pub file: BudgetFile,
    /// SLOs of `--slo`; empty if a file sets the budget.
    pub slo: Vec<String>,
    /// Place of each key, by its dotted path.
    places: BTreeMap<String, TextPlace>,
}

impl BudgetText {
    /// Parses the SLOs of `--slo` into a budget.
    ///
    /// # Errors
    /// Fails if an SLO is malformed.
    pub fn inline(slo: &[String]) -> Result<BudgetText, Stop> {
        let asked = resolve::budget(slo)?.unwrap_or_default();
        let refused = |e: String| Stop::usage(format!("--slo{e}"));
        let latency = asked.latency.iter().map(|Ceiling { metric, percentile, limit_s }| {
            let id = format!("{} p{}", metric.name(), centile(*percentile));
            Budget::ceiling(id, (*metric).into(), Some(*percentile), Amount::seconds(*limit_s))
        });
        let errors = asked
            .error_rate
            .map(|share| Budget::ceiling("errors", BudgetMetric::ErrorRate, None, Amount::share(share)));
        let budgets: Vec<Budget> = latency.chain(errors).collect();
        let text = serde_json::json!({ "version": BUDGET_VERSION, "name": asked.name, "budgets": budgets });
        let (file, places) = parse(&text.to_string()).map_err(refused)?;
        let slo = slo.iter().map(|ceiling| ceiling.trim().to_owned()).collect();
        Ok(BudgetText { path: "--slo".into(), file, slo, places })
    }

    /// Returns the flags that select this budget.
    pub fn flags(&self) -> String {
        match self.slo.as_slice() {
            [] => format!("--budget {}", resolve::quoted(&self.path.display().to_string())),
            slo => slo
                .iter()
                .map(|ceiling| format!("--slo {}", resolve::quoted(ceiling)))
                .collect::<Vec<_>>()
                .join(" "),
        }
    }

    /// Returns the place of a path, or of the nearest enclosing key.
    pub fn place(&self, path: &str) -> TextPlace {
        place(&self.places, path)
    }
}

/// Reads and checks a budget file.
pub fn read(path: &Path) -> Result<BudgetText, Stop> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|e| crate::out::unread(&name, &e))?;
    let (file, places) = parse(&text).map_err(|refused| Stop::usage(format!("{name}{refused}")))?;
    Ok(BudgetText { path: path.to_path_buf(), file, slo: Vec::new(), places })
}

/// Returns the ceilings of a budget file for every request. `what` describes their use, for the error without any.
pub fn per_request(path: &Path, what: &str) -> Result<BudgetSpec, Stop> {
    let budget = read(path)?.file.per_request();
    if budget.latency.is_empty() {
        let name = path.display();
        return Err(Stop::usage(format!("{name}: no ceiling on ttft, tpot or e2e of all requests; {what}")));
    }
    Ok(budget)
}

/// Parses a budget file. An error begins with `:LINE:COLUMN: `.
fn parse(text: &str) -> Result<(BudgetFile, BTreeMap<String, TextPlace>), String> {
    let of_yaml = |e: serde_saphyr::Error| crate::yaml::wrong(&e);
    let value: Value = serde_saphyr::from_str(text).map_err(of_yaml)?;
    if !value.is_object() {
        return Err(":1:1: a budget file is a mapping (see: plimsoll schema budget)".to_owned());
    }
    let tree: Spanned<Tree> = serde_saphyr::from_str(text).map_err(of_yaml)?;
    let mut places = BTreeMap::new();
    tree.value.walk("", &mut places);
    let refused = |e: SpecError| {
        let at = place(&places, &path_of(&e));
        format!(":{}:{}: {e}", at.line, at.column)
    };
    check_shape(&value).map_err(refused)?;
    let file: BudgetFile = serde_saphyr::from_str(text).map_err(of_yaml)?;
    file.check().map_err(refused)?;
    Ok((file, places))
}

fn path_of(error: &SpecError) -> String {
    match error {
        SpecError::UnknownKey { path, key, .. } if path.is_empty() => key.clone(),
        SpecError::UnknownKey { path, key, .. } => format!("{path}.{key}"),
        SpecError::UnknownValue { path, .. }
        | SpecError::Value { path, .. }
        | SpecError::Missing { path, .. }
        | SpecError::Conflict { path, .. } => path.clone(),
        SpecError::File { .. } | SpecError::Trace(_) => String::new(),
    }
}

fn place(places: &BTreeMap<String, TextPlace>, path: &str) -> TextPlace {
    let mut path = path;
    loop {
        if let Some(found) = places.get(path) {
            return *found;
        }
        match path.rsplit_once('.') {
            Some((around, _)) => path = around,
            None => return TextPlace { line: 1, column: 1 },
        }
    }
}

/// The structure of a document with its places, without values.
enum Tree {
    Map(Vec<(String, TextPlace, Tree)>),
    List(Vec<(TextPlace, Tree)>),
    Leaf,
}

impl Tree {
    fn walk(&self, at: &str, places: &mut BTreeMap<String, TextPlace>) {
        let join = |key: &str| if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
        match self {
            Tree::Map(entries) => {
                for (key, place, inner) in entries {
                    places.insert(join(key), *place);
                    inner.walk(&join(key), places);
                }
            }
            Tree::List(items) => {
                for (i, (place, inner)) in items.iter().enumerate() {
                    places.insert(join(&i.to_string()), *place);
                    inner.walk(&join(&i.to_string()), places);
                }
            }
            Tree::Leaf => {}
        }
    }
}

fn of<T>(spanned: &Spanned<T>) -> TextPlace {
    TextPlace { line: spanned.referenced.line() as u32, column: spanned.referenced.column() as u32 }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Tree, D::Error> {
        d.deserialize_any(Walk)
    }
}

struct Walk;

macro_rules! leaves {
    ($($visit:ident: $type:ty),+) => {
        $(fn $visit<E>(self, _: $type) -> Result<Tree, E> { Ok(Tree::Leaf) })+
    };
}

impl<'de> Visitor<'de> for Walk {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a document")
    }
    leaves!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_i128: i128, visit_u128: u128, visit_f64: f64, visit_str: &str);
    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }
    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf)
    }
    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Tree, D::Error> {
        d.deserialize_any(Walk)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Spanned<Tree>>()? {
            items.push((of(&item), item.value));
        }
        Ok(Tree::List(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let at = of(&key);
            match map.next_value::<Spanned<Tree>>() {
                Ok(inner) => entries.push((key.value, at, inner.value)),
                Err(_) => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Tree::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
version: 1
baseline: runs/last
load: {rate: 12/s, duration: 5m}
bursts:
  lunch: {traffic: burst, arrivals: gamma:3}
stages:
  total: 3s
  margin: 150ms
  slices: {gateway: 30ms, auth: 20ms, embed: 50ms, search: 100ms, rerank: 100ms, prompt: 50ms, prefill: 400ms, decode: 2s, post: 50ms, response: 50ms}
budgets:
  - {id: ttft-p99, metric: ttft, p: 99, max: 350ms, relative: +10%, owner: serving}
  - id: errors at lunch
    metric: error_and_retry_rate
    max: 1%
    under: lunch
  - {id: chat, metric: tpot, p: p95, max: 45ms, slice: {class: chat, prompt_tokens: 0..512}}
  - {id: sustained, metric: throughput_before_onset, min: 10/s}
  - {id: rho, metric: utilisation, max: 80%}
  - {id: tail, metric: ttft_tail_ratio, max: 3}
  - {id: price, metric: cost_per_good_request, max: 0.0031 USD}
  - {id: watched price, metric: cost_per_request}
";

    #[test]
    fn a_whole_file_is_read_and_writes_itself_back() {
        let (file, places) = parse(GOOD).expect("valid");
        assert_eq!(file.budgets.len(), 8);
        assert_eq!(file.budgets[0].max.as_ref().map(|max| max.value), Some(0.35));
        assert_eq!(file.budgets[1].max.as_ref().map(|max| max.value), Some(0.01));
        assert_eq!(places.get("budgets.1.max"), Some(&TextPlace { line: 14, column: 5 }));
        assert_eq!(places.get("budgets.0").map(|at| at.line), Some(11));
        let again = serde_json::to_string(&file).expect("JSON");
        assert_eq!(parse(&again).expect("JSON is YAML").0, file);
    }

    #[test]
    fn ceilings_stand_for_a_file() {
        let slo = ["ttft p99 < 500ms", " e2e p95 < 2s", "errors < 1%"].map(str::to_owned);
        let budget = BudgetText::inline(&slo).expect("sound");
        let shown: Vec<(&str, Option<f64>)> = budget
            .file
            .budgets
            .iter()
            .map(|b| (b.id.as_str(), b.max.as_ref().map(|max| max.value)))
            .collect();
        assert_eq!(shown, [("ttft p99", Some(0.5)), ("e2e p95", Some(2.0)), ("errors", Some(0.01))]);
        assert_eq!(budget.flags(), "--slo 'ttft p99 < 500ms' --slo 'e2e p95 < 2s' --slo 'errors < 1%'");
        assert!(BudgetText::inline(&["ttft p99 > 1s".to_owned()]).is_err());
    }

    /// 2850 of 3000 ms with a margin of 150 ms are valid; 250 ms more are not.
    #[test]
    fn slices_that_add_up_past_the_total_name_the_sum() {
        let over = GOOD.replace("prefill: 400ms", "prefill: 650ms").replace("  margin: 150ms\n", "");
        let refused = parse(&over).map(|_| ()).expect_err("refused");
        assert!(refused.starts_with(":8:"), "{refused}");
        assert!(refused.contains("add up to 3100 ms: 100 ms more than the total of 3000 ms"), "{refused}");
        let margin = GOOD.replace("margin: 150ms", "margin: 10%");
        let refused = parse(&margin).map(|_| ()).expect_err("refused");
        assert!(refused.contains("2850 ms and 300 ms of margin, 3150 ms in all: 150 ms more"), "{refused}");
    }

    #[test]
    fn a_slip_is_answered_with_its_line_and_the_nearest_word() {
        for (from, to, at, says) in [
            ("metric: tpot", "metric: tpto", ":16:", "did you mean `tpot`?"),
            ("owner: serving", "ownr: serving", ":11:", "did you mean `owner`?"),
            ("max: 350ms", "max: 350", ":11:", "a length of time"),
            ("max: 350ms", "max: soon", ":11:", "`soon` is not an amount"),
            ("max: 350ms", "max: 1%", ":11:", "a length of time"),
            ("p: 99,", "p: 0.99,", ":11:", "99 (not 0.99)"),
            ("p: 99,", "", ":11:", "the percentile to check"),
            ("under: lunch", "under: lunhc", ":15:", "did you mean `lunch`?"),
            ("min: 10/s", "max: 10/s", ":17:", "give it a floor with `min`"),
            ("metric: utilisation", "metric: gpu_utilization", ":18:", "no measure of load"),
            ("metric: utilisation", "metric: DCGM_FI_DEV_GPU_UTIL", ":18:", "no measure of load"),
            ("id: rho", "id: tail", ":19:", "names two budgets"),
            ("relative: +10%", "relative: 10%", ":11:", "such as +10%"),
            ("version: 1", "version: 2", ":1:", "the only version"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let refused = parse(&GOOD.replacen(from, to, 1)).map(|_| ()).expect_err(to);
            assert!(refused.starts_with(at), "{to}: {refused}");
            assert!(refused.contains(says), "{to}: {refused}");
        }
        let refused = parse("version: 1\nbudgets: [\n").map(|_| ()).expect_err("no YAML");
        assert!(refused.starts_with(":"), "{refused}");
    }
}

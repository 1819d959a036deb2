//! Fuzzing of files next to the code that users may edit: prices, evaluation items and their results, the history of a baseline.

use plimsoll_judge::cost::{Price, PriceSpec};
use plimsoll_judge::history::{HistoryEntry, line};
use plimsoll_judge::quality::score::ScoreRule;
use plimsoll_judge::quality::{ItemSpec, Quality};

pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = Price::parse(text);
    if let Ok(spec) = serde_saphyr::from_str::<PriceSpec>(text)
        && let Ok(bill) = spec.bill()
    {
        assert!(bill.of(1000.0, 1000.0, 10.0) >= 0.0, "{bill:?}");
    }
    let lines = || text.lines();
    for item in lines().filter_map(|line| serde_json::from_str::<ItemSpec>(line).ok()) {
        if let Some(Ok(rule)) = item.score.as_ref().map(ScoreRule::new) {
            let _ = rule.is_right(text);
        }
    }
    let _ = serde_json::from_str::<Quality>(text);
    let entries: Vec<HistoryEntry> = lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let _ = line(&entries, "pinned", 1);
}

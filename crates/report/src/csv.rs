//! Renders the requests of a run as comma-separated values, one row each. An unknown number is empty, an infinite one is `inf`.

use plimsoll_measure::requests::RequestRow;

/// Column names in the order of the values.
const HEADER: &str = "level,request,attempts,due_s,ttft_s,e2e_s,tpot_s,prompt_tokens,output_tokens,outcome\n";

/// Returns the table with its header.
pub fn render(rows: &[RequestRow]) -> String {
    let mut text = String::from(HEADER);
    let time = |seconds: Option<f64>| seconds.map(|s| format!("{s}")).unwrap_or_default();
    let count = |tokens: Option<u32>| tokens.map(|n| n.to_string()).unwrap_or_default();
    for row in rows {
        text.push_str(&format!(
            "{},{},{},{},{},{},{},{},{},{}\n",
            row.level,
            row.request,
            row.attempts,
            row.due_s,
            time(row.ttft_s),
            time(row.e2e_s),
            time(row.tpot_s),
            count(row.prompt),
            count(row.output),
            row.how.name()
        ));
    }
    text
}

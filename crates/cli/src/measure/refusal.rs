//! Diagnoses a target that refuses a request before the load: a wrong model, a wrong key or a failing target.

use plimsoll_client::probe::{MAYBE_A_KEY, forbidden};
use plimsoll_model::{Attempt, How};
use plimsoll_workload::TargetSpec;

use crate::exit::Stop;

/// Maximum number of models named in one line.
const NAMED_MAX: usize = 8;

/// Returns the first row if every row has an HTTP error that the load would meet too.
/// A shed or late request may succeed under the load itself, and the load counts broken connections.
pub fn of(rows: &[Attempt]) -> Option<&Attempt> {
    let refused =
        |row: &Attempt| matches!(row.outcome.how, How::ClientError | How::ServerError | How::StreamError);
    rows.first().filter(|_| rows.iter().all(refused))
}

/// Returns whether a target that is waited for may answer later: true except for a request that is invalid.
pub fn may_pass(row: &Attempt) -> bool {
    row.outcome.how != How::ClientError
        || row.answer.status.is_some_and(|status| matches!(status, 404 | 408 | 409 | 425))
}

/// Returns whether the configured model is missing from the endpoint's list.
pub fn is_unlisted(target: &TargetSpec, listed: &[String]) -> bool {
    target.model.as_ref().is_some_and(|name| !listed.is_empty() && !listed.contains(name))
}

/// Returns the error line and its exit code.
pub fn stop(target: &TargetSpec, row: &Attempt, listed: &[String]) -> Stop {
    let url = &target.url;
    let Some(status) = row.answer.status else {
        let why = row.answer.error.as_deref().unwrap_or(row.outcome.how.name());
        return Stop::unreachable(format!(
            "{url}: no answer to a first request, as the load would send it: {why}; --force sends the load anyway"
        ));
    };
    let reason = row.answer.error.as_deref().unwrap_or("no reason given").trim_end_matches('.');
    let is_key =
        |name: &String| name.eq_ignore_ascii_case("authorization") || name.to_lowercase().contains("key");
    let given = [&target.key_env, &target.key_file].into_iter().any(Option::is_some)
        || target.token.is_some()
        || target.headers.keys().any(is_key);
    if matches!(status, 401 | 403) {
        return Stop::unreachable(forbidden(url, (status, reason), given));
    }
    let model = target.model.as_deref().unwrap_or_default();
    let is_wrong_model = row.outcome.how == How::ClientError
        && (is_unlisted(target, listed)
            || (listed.is_empty() && !model.is_empty() && reason.contains(model)));
    if is_wrong_model {
        let lists = match listed {
            [] => "it lists none".to_owned(),
            [only] => format!("it lists {only}"),
            several => {
                let names = several.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
                let more = several.len().saturating_sub(NAMED_MAX);
                if more > 0 {
                    format!("it lists {names} and {more} more")
                } else {
                    format!("it lists {names}")
                }
            }
        };
        return Stop::usage(format!(
            "--model {model}: {url} does not serve it ({lists}); HTTP {status}: {reason}; --force sends the load anyway"
        ));
    }
    let key = if row.outcome.how == How::ServerError && !given { MAYBE_A_KEY } else { "" };
    Stop::unreachable(format!(
        "{url} fails: a first request, as the load would send it, gave HTTP {status}: {reason}{key}; --force sends the load anyway"
    ))
}

#[cfg(test)]
mod tests {
    use plimsoll_model::{At, By, Outcome};

    use super::*;
    use crate::exit::Exit;

    /// Responses of real servers to an unknown model: vLLM 0.32, LiteLLM 1.106, transformers 5.23.
    const UNKNOWN: [(u16, &str); 3] = [
        (404, "The model `nope` does not exist. Valid aliases: tiny."),
        (
            400,
            "/chat/completions: Invalid model name passed in model=nope. Call `/v1/models` to view available models for your key.",
        ),
        (400, "Server is pinned to 'models/tiny-llama64'; requested 'nope'."),
    ];

    fn row(status: u16, error: &str) -> Attempt {
        let mut row = Attempt::new(0, 0, 0, At::ZERO);
        let how = if status < 500 { How::ClientError } else { How::ServerError };
        row.outcome = Outcome::new(how, By::Server, false);
        (row.answer.status, row.answer.error) = (Some(status), Some(error.into()));
        row
    }

    fn asked(model: &str) -> TargetSpec {
        TargetSpec { url: "http://h/v1".into(), model: Some(model.into()), ..TargetSpec::default() }
    }

    #[test]
    fn a_model_that_is_not_served_is_a_wrong_flag() {
        for (status, error) in UNKNOWN {
            for listed in [&["tiny".to_owned()][..], &[]] {
                let stop = stop(&asked("nope"), &row(status, error), listed);
                assert_eq!(stop.exit, Exit::Usage, "{stop}");
                assert!(stop.line.starts_with("--model nope:") && stop.line.contains("--force"), "{stop}");
                assert!(listed.is_empty() || stop.line.contains("it lists tiny"), "{stop}");
            }
        }
    }

    #[test]
    fn a_target_that_fails_is_no_source() {
        for row in [row(502, "bad gateway"), row(422, "Unexpected fields in the request: {'seed'}")] {
            let stop = stop(&asked("tiny"), &row, &["tiny".into()]);
            assert_eq!(stop.exit, Exit::Unreachable, "{stop}");
            assert!(stop.line.contains("http://h/v1 fails") && stop.line.contains("HTTP"), "{stop}");
        }
    }

    #[test]
    fn a_key_that_is_missing_and_one_that_is_wrong_are_told_apart() {
        let mut asked = asked("tiny");
        let missing = stop(&asked, &row(401, "no"), &[]).line;
        asked.key_env = Some("KEY".into());
        let wrong = stop(&asked, &row(401, "no"), &[]).line;
        assert!(missing.contains("give a key") && wrong.contains("the key was refused"), "{missing} {wrong}");
    }

    #[test]
    fn one_good_answer_is_enough() {
        let mut good = row(404, "");
        good.outcome = Outcome::FINISHED;
        assert!(of(&[row(404, ""), good]).is_none() && of(&[]).is_none());
    }
}

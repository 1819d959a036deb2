//! Drops or replaces an optional field of the request after a server rejected the field.
//!
//! Rejections differ in structure but name the field, so their text is searched for the request's field names. (`wire`
//! appends a name that only the structure contains.) A list of servers and their formats was rejected, because it is never
//! complete. Fields that the user added are never dropped.

use plimsoll_model::{Carries, Protocol};
use plimsoll_workload::TargetSpec;
use serde_json::{Value, json};

const SHORTER: &str = "max_tokens";
const LONGER: &str = "max_completion_tokens";
const STREAM_OPTIONS: &str = "stream_options";

/// Changes the target after the rejection `said` and returns a line about the change. Each change happens once.
///
/// Returns `None` if the rejection names no optional field of the request.
pub fn fall_back(target: &mut TargetSpec, said: &str) -> Option<String> {
    if target.body_template.is_some() || !target.protocol.streams() {
        return None;
    }
    let has_names = matches!(target.protocol, Protocol::Chat | Protocol::Completions);
    let has_options = target.stream && has_names;
    let blames = |field: &str| names(said, field);
    let is_own = |target: &TargetSpec, field: &str| target.extra.contains_key(field);
    if has_options && blames("continuous_usage_stats") && !is_own(target, STREAM_OPTIONS) {
        target.extra.insert(STREAM_OPTIONS.into(), usage_alone());
        return Some("the server rejects stream_options.continuous_usage_stats: retried without it; the tokens per event are then unknown".into());
    }
    let options = target.extra.get(STREAM_OPTIONS);
    if has_options
        && (blames(STREAM_OPTIONS) || blames("include_usage"))
        && options.is_none_or(|options| *options == usage_alone())
    {
        target.extra.insert(STREAM_OPTIONS.into(), Value::Null);
        return Some(
            "the server rejects stream_options: retried without it; the server may then report no usage"
                .into(),
        );
    }
    if target.ignore_eos && blames("ignore_eos") && !is_own(target, "ignore_eos") {
        target.ignore_eos = false;
        return Some("the server rejects ignore_eos: retried without it; answers end where the model ends them (--natural-length)".into());
    }
    if has_names
        && target.length_field.is_none()
        && !is_own(target, SHORTER)
        && (blames(SHORTER) || blames(LONGER))
        && is_unknown(said)
    {
        target.length_field = Some(LONGER.into());
        return Some(format!("the server rejects {SHORTER}: retried with {LONGER}, of the drawn lengths"));
    }
    if target.temperature.is_some() && blames("temperature") && !is_own(target, "temperature") {
        target.temperature = None;
        return Some(
            "the server rejects temperature: retried without it; the server's default applies".into(),
        );
    }
    None
}

fn usage_alone() -> Value {
    json!({"include_usage": true})
}

/// Returns whether `text` has this field's name as a word.
fn names(text: &str, field: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(field).any(|(at, _)| {
        let (before, after) = (text[..at].chars().next_back(), text[at + field.len()..].chars().next());
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Returns whether the field itself was rejected. Its value may be rejected too, as too large, and another name does not
/// help then.
fn is_unknown(said: &str) -> bool {
    let said = said.to_lowercase();
    [
        "unsupported",
        "not supported",
        "n't support",
        "not support",
        "unrecognized",
        "unrecognised",
        "unknown",
        "unexpected",
        "extra ",
        "extra_",
        "additional propert",
        "not permitted",
        "not allowed",
        "forbidden",
        "not a valid",
        "not valid",
        "invalid field",
        "invalid parameter",
        "no field",
        "deprecated",
        "removed",
        "instead",
        "use max_completion_tokens",
        "use 'max_completion_tokens'",
    ]
    .iter()
    .any(|word| said.contains(word))
}

/// Returns whether this target's requests have fields that a server may refuse and that can be left out.
pub fn has_optional_fields(target: &TargetSpec) -> bool {
    target.body_template.is_none()
        && target.protocol.takes_output_length()
        && target.protocol.carries() != Carries::Tensors
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of pydantic (vLLM, Mistral, NIM), OpenAI, Azure, transformers, Gemini, Go's decoder and serde.
    #[test]
    fn any_words_that_name_a_field_drop_it() {
        for said in [
            "ignore_eos: Extra inputs are not permitted",
            "[{'type': 'extra_forbidden', 'loc': ('body', 'ignore_eos'), 'msg': 'Extra inputs are not permitted'}]",
            "Unrecognized request argument supplied: ignore_eos",
            "Unexpected fields in the request: {'ignore_eos'}",
            "Invalid JSON payload received. Unknown name \"ignore_eos\": Cannot find field.",
            "json: unknown field \"ignore_eos\"",
            "unknown field `ignore_eos`, expected one of `model`, `messages`",
        ] {
            let mut target = TargetSpec::default();
            let line = fall_back(&mut target, said).expect(said);
            assert!(line.contains("ignore_eos") && !target.ignore_eos, "{said}: {line}");
            assert_eq!(fall_back(&mut target, said), None, "once: {said}");
        }
    }

    #[test]
    fn the_length_gets_another_name_and_only_where_the_name_is_refused() {
        for said in [
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
            "max_tokens: Extra inputs are not permitted",
        ] {
            let mut target = TargetSpec::default();
            assert!(fall_back(&mut target, said).is_some_and(|line| line.contains(LONGER)));
            assert_eq!(target.length_field.as_deref(), Some(LONGER));
        }
        for said in [
            "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
            "This model's maximum context length is 4096 tokens. However, you requested 5000 (4000 in the messages, 1000 in max_tokens)",
            "max_tokens must be at least 16",
        ] {
            assert_eq!(fall_back(&mut TargetSpec::default(), said), None, "{said}");
        }
    }

    #[test]
    fn the_options_of_a_stream_are_left_out_step_by_step() {
        let mut target = TargetSpec::default();
        let said = "stream_options.continuous_usage_stats: Extra inputs are not permitted";
        assert!(fall_back(&mut target, said).is_some());
        assert_eq!(target.extra[STREAM_OPTIONS], usage_alone());
        assert!(fall_back(&mut target, "stream_options: Extra inputs are not permitted").is_some());
        assert_eq!(target.extra[STREAM_OPTIONS], Value::Null);
        assert_eq!(fall_back(&mut target, "stream_options: Extra inputs are not permitted"), None);
    }

    #[test]
    fn what_is_the_users_own_or_is_not_sent_stays() {
        let mut target = TargetSpec { ignore_eos: false, ..TargetSpec::default() };
        target.extra.insert("top_k".into(), 3.into());
        for said in
            ["top_k: Extra inputs", "ignore_eos: Extra inputs", "temperature: no", "my_ignore_eos_x unknown"]
        {
            assert_eq!(fall_back(&mut target, said), None, "{said}");
        }
        let mut target = TargetSpec { temperature: Some(0.0), ..TargetSpec::default() };
        let said = "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported.";
        assert!(fall_back(&mut target, said).is_some() && target.temperature.is_none());
        let mut own = TargetSpec { body_template: Some("{}".into()), ..TargetSpec::default() };
        assert_eq!(fall_back(&mut own, "ignore_eos: no"), None);
    }
}

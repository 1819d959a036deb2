//! The finish reasons that report a failed generation.
//!
//! Servers end a failed stream under status 200, often without an error object, with one of these reasons:
//!
//! - `error`: OpenRouter, Mistral, vLLM
//! - `abort`: vLLM, SGLang
//! - `cancelled` and `timeout`: TensorRT-LLM
//! - `network_error`: Zhipu
//! - `insufficient_system_resource`: DeepSeek
//!
//! A list of exact reasons was rejected, because it
//! would miss the next server's; so the words inside a reason decide. `content_filter` and `refusal` are regular answers.

/// Words of failure, each the beginning of a word of a reason.
const WORDS: [&str; 15] = [
    "error",
    "abort",
    "cancel",
    "fail",
    "timeout",
    "timedout",
    "exception",
    "crash",
    "kill",
    "malformed",
    "insufficient",
    "overload",
    "unavailable",
    "interrupt",
    "disconnect",
];

/// Returns whether a finish reason (`stop_reason`, `done_reason`, `status`) reports a failed generation.
pub fn is_failure(reason: &str) -> bool {
    let lower = reason.to_ascii_lowercase().replace("timed_out", "timedout");
    let mut words = lower.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| WORDS.iter().any(|failure| word.starts_with(failure)))
}

#[cfg(test)]
mod tests {
    use super::is_failure;

    #[test]
    fn failures_are_told_from_ends() {
        for reason in [
            "error",
            "ERROR",
            "abort",
            "aborted",
            "cancelled",
            "canceled",
            "failed",
            "timeout",
            "timed_out",
            "server_error",
            "network_error",
            "insufficient_system_resource",
            "MALFORMED_FUNCTION_CALL",
            "engine-error",
            "USER_CANCEL",
        ] {
            assert!(is_failure(reason), "{reason}");
        }
        for reason in [
            "",
            "stop",
            "length",
            "tool_calls",
            "content_filter",
            "end_turn",
            "max_tokens",
            "stop_sequence",
            "refusal",
            "eos_token",
            "load",
            "completed",
            "limit",
            "function_call",
            "pause_turn",
            "model_length",
            "repetition",
            "SAFETY",
            "null",
        ] {
            assert!(!is_failure(reason), "{reason}");
        }
    }
}

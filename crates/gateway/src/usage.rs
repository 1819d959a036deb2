//! Prompt-cache usage of a response, read from the raw bytes without decoding them.
//!
//! A value that is split across two frames is missed; later responses contain the same information.

use std::sync::LazyLock;

use memchr::memmem::{self, Finder};

static CACHED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"cached_tokens\":"));

static CACHE_READ: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"cache_read_input_tokens\":"));

/// Returns the cached share of the prompt if the bytes contain a `usage` object with
/// `prompt_tokens_details.cached_tokens`. OpenAI defines this field; vLLM, SGLang and llama.cpp use it too. Generated
/// text cannot imitate it, because quotes in the text are escaped.
///
/// Anthropic's `input_tokens` excludes cached tokens.
pub fn cached_share(data: &[u8]) -> Option<f64> {
    if let Some(at) = CACHE_READ.find(data) {
        let cached = number(&data[at + CACHE_READ.needle().len()..])?;
        let of = |name: &[u8]| number(&data[memmem::find(data, name)? + name.len()..]);
        let written = of(b"\"cache_creation_input_tokens\":").unwrap_or(0);
        let prompt = of(b"\"input_tokens\":")?.saturating_add(cached).saturating_add(written);
        return (prompt > 0).then(|| cached as f64 / prompt as f64);
    }
    let at = CACHED.find(data)?;
    let cached = number(&data[at + CACHED.needle().len()..])?;
    let name = b"\"prompt_tokens\":";
    let prompt = number(&data[memmem::find(data, name)? + name.len()..])?;
    (prompt > 0 && cached <= prompt).then(|| cached as f64 / prompt as f64)
}

fn number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::cached_share;

    #[test]
    fn the_share_is_read_where_it_stands_and_nowhere_else() {
        // llama.cpp's last chunk, shortened.
        let chunk = br#"data: {"choices":[],"usage":{"completion_tokens":8,"prompt_tokens":40,"total_tokens":48,"prompt_tokens_details":{"cached_tokens":30}}}"#;
        assert_eq!(cached_share(chunk), Some(0.75));
        assert_eq!(
            cached_share(
                br#"{"usage": {"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": 0}}}"#
            ),
            Some(0.0)
        );
        let told =
            br#"data: {"choices":[{"delta":{"content":"{\"prompt_tokens\": 4, \"cached_tokens\": 4}"}}]}"#;
        assert_eq!(cached_share(told), None);
        // The example of Anthropic's reference for prompt caching, shortened: 188 086 of 188 107 tokens were cached.
        let delta = br#"data: {"type":"message_delta","usage":{"cache_creation_input_tokens":0,"cache_read_input_tokens":188086,"input_tokens":21,"output_tokens":393}}"#;
        assert_eq!(cached_share(delta), Some(188_086.0 / 188_107.0));
        assert_eq!(cached_share(br#"{"usage":{"cache_read_input_tokens":null,"input_tokens":3}}"#), None);
        let odd: [&[u8]; 4] = [
            b"\"cached_tokens\":",
            b"\"cached_tokens\":7",
            b"\"cached_tokens\":7,\"prompt_tokens\":0",
            b"\"cached_tokens\":null,\"prompt_tokens\":9",
        ];
        odd.iter().for_each(|data| assert_eq!(cached_share(data), None));
        assert_eq!(cached_share(b"\"prompt_tokens\":9,\"cached_tokens\":99999999999999999999999"), None);
    }
}

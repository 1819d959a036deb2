//! Path allowlist for clients: the public API of engines, and further paths from the configuration.
//!
//! A blocklist lost, because engines add administrative paths with each release. An API key for chat must not pause
//! an engine (vLLM's `/pause`), load weights or execute code in it (`/collective_rpc`).

use std::borrow::Cow;
use std::collections::HashSet;

use plimsoll_policy::SettingError;

use crate::error::conflict;

/// Word that represents [`PUBLIC`] in the configuration.
pub(crate) const PUBLIC_WORD: &str = "public";

/// Public API paths. `*` matches one segment; a final `**` matches any number of segments, including zero.
pub(crate) const PUBLIC: &[&str] = &[
    // OpenAI.
    "/v1/chat/completions/**",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/models/**",
    "/v1/responses/**",
    "/v1/conversations/**",
    "/v1/moderations",
    "/v1/audio/**",
    "/v1/images/**",
    "/v1/videos/**",
    "/v1/files/**",
    "/v1/uploads/**",
    "/v1/batches/**",
    "/v1/vector_stores/**",
    "/v1/assistants/**",
    "/v1/threads/**",
    "/v1/realtime/**",
    // Azure's form of the OpenAI paths.
    "/openai/deployments/*/chat/completions",
    "/openai/deployments/*/completions",
    "/openai/deployments/*/embeddings",
    "/openai/deployments/*/audio/*",
    "/openai/deployments/*/images/*",
    "/openai/responses/**",
    "/openai/models/**",
    "/openai/files/**",
    "/openai/batches/**",
    // Anthropic.
    "/v1/messages/**",
    "/v1/complete",
    // Gemini.
    "/v1beta/models/**",
    // Cohere, Jina, vLLM: rankings, scores, classes and pooled embeddings.
    "/v1/chat",
    "/v2/chat",
    "/v1/embed",
    "/v2/embed",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/reranking",
    "/v1/reranking",
    "/score",
    "/v1/score",
    "/classify",
    "/v1/classify",
    "/v1/rank",
    "/v1/ranking",
    "/pooling",
    "/v1/pooling",
    // Mistral.
    "/v1/fim/completions",
    "/v1/ocr",
    // Tokenisers.
    "/tokenize",
    "/detokenize",
    "/v1/tokenize",
    "/v1/detokenize",
    // Text Generation Inference, Text Embeddings Inference, SGLang.
    "/",
    "/generate",
    "/generate_stream",
    "/info",
    "/chat_tokenize",
    "/embed",
    "/embed_all",
    "/embed_sparse",
    "/encode",
    "/similarity",
    "/predict",
    "/decode",
    "/get_model_info",
    "/model_info",
    // SageMaker.
    "/invocations",
    "/ping",
    // llama.cpp.
    "/completion",
    "/completions",
    "/chat/completions",
    "/embedding",
    "/embeddings",
    "/infill",
    "/apply-template",
    "/models",
    // Ollama.
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/embeddings",
    "/api/tags",
    "/api/show",
    "/api/version",
    // KServe v2 and Triton.
    "/v2",
    "/v2/health/*",
    "/v2/models/*",
    "/v2/models/*/ready",
    "/v2/models/*/config",
    "/v2/models/*/infer",
    "/v2/models/*/generate",
    "/v2/models/*/generate_stream",
    "/v2/models/*/versions/*",
    "/v2/models/*/versions/*/ready",
    "/v2/models/*/versions/*/config",
    "/v2/models/*/versions/*/infer",
    "/v2/models/*/versions/*/generate",
    "/v2/models/*/versions/*/generate_stream",
    // Health and version.
    "/health",
    "/v1/health/**",
    "/version",
];

#[derive(Clone, Debug)]
pub struct OpenPaths {
    /// Paths without a wildcard, in a hash set because it avoids a scan.
    exact: HashSet<String>,
    patterns: Vec<String>,
}

impl OpenPaths {
    /// Returns the paths that a configuration lists.
    ///
    /// # Errors
    /// Fails if a line is neither a path nor `public`.
    pub fn new(named: &[String]) -> Result<OpenPaths, SettingError> {
        let mut open = OpenPaths { exact: HashSet::new(), patterns: Vec::new() };
        for line in named {
            if line == PUBLIC_WORD {
                PUBLIC.iter().for_each(|path| open.add(path));
                continue;
            }
            let wrong = |why: &str| conflict("paths", format!("{line:?} {why}"));
            let inside = line.strip_suffix("/**").unwrap_or(line);
            let wildcards = inside.split('/').filter(|segment| segment.contains('*'));
            if !line.starts_with('/') || line.contains(['?', '#']) || has_dot_segment(line) {
                return wrong("is neither a path such as /pause nor the word public");
            }
            if wildcards.into_iter().any(|segment| segment != "*") {
                return wrong("has a * inside a segment; write /a/* for one segment, /a/** for all below");
            }
            open.add(line);
        }
        Ok(open)
    }

    fn add(&mut self, path: &str) {
        let whole = path.strip_suffix("/**").unwrap_or(path);
        if !whole.contains('*') {
            self.exact.insert(whole.to_owned());
        }
        if path.contains('*') {
            self.patterns.push(path.to_owned());
        }
    }

    /// Returns whether clients may request this path. OpenAI paths are also accepted below `/openai`, and a final
    /// slash is ignored.
    pub fn has(&self, path: &str) -> bool {
        let path = path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(path);
        let is_open = |path: &str| {
            self.exact.contains(path) || self.patterns.iter().any(|pattern| matches(pattern, path))
        };
        is_open(path)
            || path.strip_prefix("/openai").is_some_and(|path| path.starts_with("/v1/") && is_open(path))
    }
}

fn matches(pattern: &str, path: &str) -> bool {
    let mut segments = path.split('/');
    for wanted in pattern.split('/') {
        let segment = match wanted {
            "**" => return true,
            _ => segments.next(),
        };
        let fits = segment.is_some_and(|segment| wanted == segment || wanted == "*" && !segment.is_empty());
        if !fits {
            return false;
        }
    }
    segments.next().is_none()
}

/// Returns whether a server may read a segment of this path as `.` or `..`, and so leave the path of its URL. Servers
/// treat `%2e` as a dot (RFC 3986, 6.2.2), and nginx treats `%2F` as a slash. Others accept a backslash, and Tomcat
/// cuts a segment at `;`. Escapes are resolved once, as servers do.
pub fn has_dot_segment(path: &str) -> bool {
    if memchr::memchr2(b'.', b'%', path.as_bytes()).is_none() {
        return false;
    }
    let path = unescaped(path);
    path.split(|byte| matches!(byte, b'/' | b'\\')).any(|segment| {
        let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        matches!(name.trim_ascii(), b"." | b"..")
    })
}

/// Returns the text with percent escapes resolved. Invalid escapes stay unchanged.
pub fn unescaped(text: &str) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    if !bytes.contains(&b'%') {
        return Cow::Borrowed(bytes);
    }
    let digit = |at: usize| char::from(*bytes.get(at)?).to_digit(16);
    let (mut plain, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                plain.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                plain.push(byte);
                at += 1;
            }
        }
    }
    Cow::Owned(plain)
}

/// Returns a name escaped as one path segment.
pub fn escaped(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    name.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(lines: &[&str]) -> Result<OpenPaths, SettingError> {
        OpenPaths::new(&lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn the_public_api_is_open_and_engines_administration_is_not() {
        let public = open(&["public"]).expect("sound");
        let known = plimsoll_model::Protocol::ALL.into_iter().filter_map(plimsoll_model::Protocol::path);
        known.for_each(|path| assert!(public.has(path) || public.has(&format!("/v1{path}")), "{path}"));
        for path in [
            "/v1/chat/completions",
            "/v1/chat/completions/",
            "/openai/v1/chat/completions",
            "/v1/models",
            "/v1/models/org/alpha",
            "/v1/models/gemini:generateContent",
            "/v1/responses/resp_1/input_items",
            "/v1/messages/count_tokens",
            "/v2/models/llama/versions/2/infer",
            "/openai/deployments/llama/chat/completions",
            "/v1/audio/transcriptions",
            "/api/chat",
            "/health",
            "/tokenize",
            "/",
        ] {
            assert!(public.has(path), "{path}");
        }
        for path in [
            // vLLM.
            "/pause",
            "/resume",
            "/is_paused",
            "/sleep",
            "/wake_up",
            "/is_sleeping",
            "/abort_requests",
            "/update_weights",
            "/init_weight_transfer_engine",
            "/reset_prefix_cache",
            "/reset_mm_cache",
            "/collective_rpc",
            "/server_info",
            "/load",
            "/metrics",
            "/scale_elastic_ep",
            "/start_profile",
            "/stop_profile",
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter",
            "/tokenizer_info",
            // SGLang.
            "/flush_cache",
            "/update_weights_from_disk",
            "/update_weights_from_tensor",
            "/release_memory_occupation",
            "/get_server_info",
            "/set_internal_state",
            "/open_session",
            "/v1/loads",
            "/configure_logging",
            // llama.cpp.
            "/slots",
            "/slots/0",
            "/props",
            "/lora-adapters",
            "/models/load",
            "/models/unload",
            // Ollama.
            "/api/pull",
            "/api/push",
            "/api/create",
            "/api/delete",
            "/api/copy",
            "/api/blobs/sha256:1",
            "/api/ps",
            // Triton.
            "/v2/repository/index",
            "/v2/repository/models/llama/load",
            "/v2/systemsharedmemory/region/a/register",
            "/v2/logging",
            "/v2/trace/setting",
            "/v2/models/llama/trace/setting",
            "/v2/models/llama/stats",
            // These paths resemble public paths.
            "//pause",
            "/pause/",
            "/v1//pause",
            "/V1/chat/completions",
            "/v1/chat/completions2",
            "/v1",
            "/openai/pause",
            "/openai/v1/pause",
            "/v1/%70ause",
            "/openai/deployments/llama",
            "/docs",
            "/openapi.json",
            "*",
            "",
        ] {
            assert!(!public.has(path), "{path}");
        }
        let more = open(&["public", "/pause", "/slots/*", "/own/**"]).expect("sound");
        assert!(["/pause", "/slots/3", "/own", "/own/a/b", "/v1/models"].iter().all(|path| more.has(path)));
        assert!(!["/slots", "/slots/3/4", "/owner", "/sleep"].iter().any(|path| more.has(path)));
        let only = open(&["/v1/embeddings"]).expect("sound");
        assert!(only.has("/v1/embeddings") && !only.has("/v1/chat/completions"));
        assert!(open(&["/**"]).expect("sound").has("/pause"));
    }

    #[test]
    fn a_line_that_is_no_path_is_named() {
        for (line, word) in [
            ("pause", "neither"),
            ("/a?b", "neither"),
            ("/a/../b", "neither"),
            ("/a*", "inside a segment"),
            ("/**/a", "inside a segment"),
            ("", "neither"),
        ] {
            let why = open(&[line]).expect_err("no path").to_string();
            assert!(why.contains("paths") && why.contains(word), "{why}");
        }
    }

    #[test]
    fn dot_segments_are_seen_however_they_are_written() {
        for path in [
            "/..",
            "/../a",
            "/a/..",
            "/a/./b",
            "/%2e%2e/a",
            "/%2E./a",
            "/.%2e/a",
            "/a/..%2fb",
            "/a%2f..%2Fb",
            "/a\\..\\b",
            "/a%5c..%5Cb",
            "/..;x=1/a",
            "/..%3bx/a",
            "/%2e%2e",
            "/a/%2e",
            "/..%20/a",
            "/.. /a",
            "/..%09/a",
        ] {
            assert!(has_dot_segment(path), "{path}");
        }
        for path in [
            "/",
            "/v1/models/llama-3.1-8b",
            "/a/...",
            "/a/..b",
            "/a/b..",
            "/%252e%252e/a",
            "/a/.well-known/b",
            "/v1/models/org%2Falpha",
            "/100%",
            "/%zz",
        ] {
            assert!(!has_dot_segment(path), "{path}");
        }
        assert_eq!(&*unescaped("/a%2Fb%zz%4"), b"/a/b%zz%4");
        assert_eq!(escaped("org/a b-1.0"), "org%2Fa%20b-1.0");
    }
}

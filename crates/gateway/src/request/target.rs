//! Request path parsing: the model, the stream flag and the stored object.

use std::borrow::Cow;
use std::ops::Range;

use http::Method;

use crate::paths::unescaped;

/// Path prefixes before a model name that is one segment.
const MODEL_SEGMENT: [&str; 2] = ["/v2/models/", "/openai/deployments/"];
/// Path prefixes before a model name that extends to a verb behind a colon.
const MODEL_REST: [&str; 3] = ["/v1/models/", "/v1beta/models/", "/openai/v1/models/"];
/// Paths of objects that a server stores, behind `/v1` or another prefix.
const KEPT: [&str; 9] = [
    "/responses",
    "/conversations",
    "/files",
    "/uploads",
    "/batches",
    "/messages/batches",
    "/videos",
    "/vector_stores",
    "/threads",
];
const PREFIXES: [&str; 3] = ["/v1", "/openai/v1", "/openai"];

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RequestTarget<'a> {
    /// Model name; `None` if the path contains no model.
    pub model: Option<Cow<'a, [u8]>>,
    /// Byte range of the model name in the path.
    pub model_at: Range<usize>,
    /// Set if the path requests a stream.
    pub streams: bool,
    pub object: Option<&'a str>,
}

impl RequestTarget<'_> {
    pub fn read<'a>(method: &Method, path: &'a str) -> RequestTarget<'a> {
        let model_at = model(method, path);
        let last = path.rsplit(['/', ':']).next().unwrap_or_default();
        RequestTarget {
            model: model_at.clone().map(|at| unescaped(&path[at])),
            model_at: model_at.unwrap_or_default(),
            streams: matches!(last, "generate_stream" | "streamGenerateContent"),
            object: below(path).and_then(|(_, rest)| rest.split('/').next()).filter(|id| !id.is_empty()),
        }
    }
}

/// Returns whether a request to this path creates an object that the server stores.
pub(crate) fn makes_object(path: &str) -> bool {
    below(path).is_some_and(|(_, rest)| rest.is_empty())
}

/// Returns the collection of stored objects that a path belongs to, and the rest of the path.
fn below(path: &str) -> Option<(&'static str, &str)> {
    PREFIXES.iter().find_map(|prefix| {
        let path = path.strip_prefix(prefix)?;
        KEPT.iter().find_map(|kind| match path.strip_prefix(kind)? {
            "" => Some((*kind, "")),
            rest => Some((*kind, rest.strip_prefix('/')?)),
        })
    })
}

fn model(method: &Method, path: &str) -> Option<Range<usize>> {
    let behind = |heads: &[&str]| heads.iter().find(|head| path.starts_with(**head)).map(|head| head.len());
    let range = match behind(&MODEL_SEGMENT) {
        Some(from) => from..path[from..].find('/').map_or(path.len(), |length| from + length),
        None => {
            let from = behind(&MODEL_REST)?;
            // A GET request has no verb. The colon may belong to the name, because names of Ollama contain colons.
            let verb = || path[from..].rfind(':').filter(|_| *method == Method::POST);
            let to = verb().map_or(path.len(), |length| from + length);
            // TensorFlow Serving appends the version to the model name.
            let to = path[from..to].find("/versions/").map_or(to, |length| from + length);
            from..to
        }
    };
    Some(range).filter(|range| !range.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_read_off_each_form_of_path() {
        let post = |path: &'static str| {
            RequestTarget::read(&Method::POST, path)
                .model
                .map(|name| String::from_utf8_lossy(&name).into_owned())
        };
        for (path, model) in [
            ("/v2/models/llama/infer", "llama"),
            ("/v2/models/org%2Fllama/versions/3/infer", "org/llama"),
            ("/v2/models/llama", "llama"),
            ("/openai/deployments/llama/chat/completions", "llama"),
            ("/v1/models/llama:predict", "llama"),
            ("/v1/models/llama/versions/3:predict", "llama"),
            ("/v1/models/llama3:8b:generateContent", "llama3:8b"),
            ("/v1beta/models/org/llama:streamGenerateContent", "org/llama"),
        ] {
            assert_eq!(post(path).as_deref(), Some(model), "{path}");
        }
        for path in [
            "/v1/models",
            "/v1/models/",
            "/v2/models",
            "/v2/models//infer",
            "/v1/chat/completions",
            "/v2/health/ready",
        ] {
            assert_eq!(post(path), None, "{path}");
        }
        let get = RequestTarget::read(&Method::GET, "/v1/models/llama3:8b");
        assert_eq!(get.model.as_deref(), Some(&b"llama3:8b"[..]));
        let streams = |path| RequestTarget::read(&Method::POST, path).streams;
        assert!(
            streams("/v2/models/a/generate_stream")
                && streams("/v1beta/models/a:streamGenerateContent")
                && streams("/generate_stream")
        );
        assert!(!streams("/v2/models/generate_stream/infer") && !streams("/v2/models/a/generate"));
    }

    #[test]
    fn stored_objects_are_told_from_what_makes_them() {
        let object = |path: &'static str| RequestTarget::read(&Method::GET, path).object;
        for (path, id) in [
            ("/v1/responses/resp_1", Some("resp_1")),
            ("/v1/responses/resp_1/cancel", Some("resp_1")),
            ("/openai/responses/resp_1/input_items", Some("resp_1")),
            ("/openai/v1/files/file-1/content", Some("file-1")),
            ("/v1/messages/batches/b1/results", Some("b1")),
            ("/v1/responses", None),
            ("/v1/responses/", None),
            ("/v1/responsesx/a", None),
            ("/v1/messages", None),
            ("/v1/chat/completions/c1", None),
        ] {
            assert_eq!(object(path), id, "{path}");
        }
        assert!(
            makes_object("/v1/responses") && makes_object("/v1/files") && makes_object("/openai/v1/batches")
        );
        assert!(
            !makes_object("/v1/responses/resp_1")
                && !makes_object("/v1/chat/completions")
                && !makes_object("/v1/messages")
        );
    }
}

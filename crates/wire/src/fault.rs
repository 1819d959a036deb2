//! What servers say went wrong, in all the shapes they say it.
//!
//! `{"error":{"message":…,"type":…,"code":…}}` (OpenAI, vLLM, LiteLLM, llama.cpp), `{"error":"…"}` (Triton, transformers),
//! `{"type":"error","error":{"type":"overloaded_error","message":…}}` (Anthropic), `{"detail":"…"}` and `{"detail":[{"msg":…,"loc":[…]}]}` (FastAPI), `{"message":…}`, or plain text.

use serde_json::Value;

use crate::head::bounded;

/// Longest error text kept, in bytes.
const TEXT_MAX: usize = 512;

/// An error as told by a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    /// Bounded, on one line.
    pub text: String,
    /// A numeric code between 100 and 599, where one is given as number or text.
    pub code: Option<u16>,
}

impl Fault {
    /// From the value of an `error` field, or a whole error body.
    pub fn from_json(json: &str) -> Fault {
        match serde_json::from_str::<Value>(json) {
            Ok(value) => Fault::from_value(&value),
            Err(_) => Fault { text: bounded(json.trim(), TEXT_MAX), code: None },
        }
    }

    /// From the body of an error answer, whatever it is made of.
    pub fn from_body(body: &[u8]) -> Option<Fault> {
        let text = String::from_utf8_lossy(body);
        let text = text.trim();
        let text = text.strip_prefix("data:").map_or(text, str::trim);
        (!text.is_empty()).then(|| Fault::from_json(text.split("\n\n").next().unwrap_or(text)))
    }

    fn from_value(value: &Value) -> Fault {
        let inner = ["error", "detail", "message", "msg", "reason"]
            .iter()
            .find_map(|key| value.get(key).filter(|found| !found.is_null()));
        let code = code(value).or(inner.and_then(code));
        match (value, inner) {
            (Value::Object(_), Some(inner)) => {
                let deeper = Fault::from_value(inner);
                Fault { text: deeper.text, code: code.or(deeper.code) }
            }
            (Value::Array(items), _) if !items.is_empty() => Fault { code, ..Fault::from_value(&items[0]) },
            (Value::String(text), _) => Fault { text: bounded(text, TEXT_MAX), code },
            (other, _) => Fault { text: bounded(&other.to_string(), TEXT_MAX), code },
        }
    }
}

/// The status that Anthropic's word for an error stands for; OpenAI uses some of them alike.
fn kind(word: &str) -> Option<u16> {
    Some(match word {
        "invalid_request_error" => 400,
        "authentication_error" => 401,
        "permission_error" => 403,
        "not_found_error" => 404,
        "request_too_large" => 413,
        "rate_limit_error" => 429,
        "api_error" => 500,
        "timeout_error" => 504,
        "overloaded_error" => 529,
        _ => return None,
    })
}

fn code(value: &Value) -> Option<u16> {
    let Some(found) = value.get("code").or_else(|| value.get("status")).filter(|found| !found.is_null())
    else {
        return kind(value.get("type")?.as_str()?);
    };
    let number = found.as_u64().or_else(|| found.as_str()?.parse().ok())?;
    u16::try_from(number).ok().filter(|n| (100..600).contains(n))
}

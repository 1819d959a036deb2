//! Parses the error messages of servers, in all their forms.
//!
//! - `{"error":{"message":…,"type":…,"code":…}}`: OpenAI, vLLM, LiteLLM, llama.cpp
//! - `{"error":"…"}`: Triton, transformers
//! - `{"type":"error","error":{"type":"overloaded_error","message":…}}`: Anthropic
//! - `{"detail":"…"}` and `{"detail":[{"msg":…,"loc":[…]}]}`: FastAPI
//! - `{"message":…}`, or plain text
//!
//! A rejected field that only the structure names (`param`, `loc`, `field`) is appended to the text.

use serde_json::Value;

use crate::head::bounded;

/// Longest error text kept, in bytes.
const TEXT_MAX: usize = 512;
/// Limit of errors kept from a list.
const LIST_MAX: usize = 8;
/// Keys under which servers name the rejected field of a request.
const FIELD_KEYS: [&str; 7] = ["param", "loc", "field", "parameter", "property", "pointer", "path"];

/// An error that a server reported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    /// Message on one line, at most `TEXT_MAX` bytes.
    pub text: String,
    /// Numeric code between 100 and 599, from a number or a text; `None` if there is no code.
    pub code: Option<u16>,
}

/// Bytes that violate the protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ProtocolFault {
    /// Type of the bytes, and the expected type.
    what: String,
    /// Beginning of the bytes; `None` if it is the beginning of the body.
    begins: Option<String>,
    detail: String,
}

/// Longest quoted beginning of unreadable bytes, in bytes.
pub(crate) const BEGINNING: usize = 60;

impl ProtocolFault {
    /// Creates the error of an event or a body that is not JSON.
    pub fn json(what: &str, text: &str, why: &serde_json::Error) -> ProtocolFault {
        let begins = Some(bounded(text.trim_start(), BEGINNING));
        ProtocolFault {
            what: format!("{what} that is not the JSON it should be"),
            begins,
            detail: why.to_string(),
        }
    }

    /// Returns the message for users: the type, the content type, and the beginning of the bytes. The body began with `start`.
    pub fn told(&self, content_type: Option<&str>, start: &[u8]) -> String {
        let start = || bounded(String::from_utf8_lossy(start).trim_start(), BEGINNING);
        let begins = self.begins.clone().unwrap_or_else(start);
        let under = content_type
            .map_or("no content type".to_owned(), |kind| format!("content type {}", bounded(kind, 60)));
        let detail =
            if self.detail.is_empty() { String::new() } else { format!(": {}", bounded(&self.detail, 100)) };
        match begins.is_empty() {
            true => format!("{} ({under}){detail}", self.what),
            false => format!("{} ({under}, begins with {begins:?}){detail}", self.what),
        }
    }
}

impl From<String> for ProtocolFault {
    fn from(what: String) -> ProtocolFault {
        ProtocolFault { what, begins: None, detail: String::new() }
    }
}

impl From<&str> for ProtocolFault {
    fn from(what: &str) -> ProtocolFault {
        ProtocolFault::from(what.to_owned())
    }
}

impl Fault {
    /// Parses the value of an `error` field, or a whole error body.
    pub fn from_json(json: &str) -> Fault {
        match serde_json::from_str::<Value>(json) {
            Ok(value) => Fault::from_item(&value),
            Err(_) => Fault { text: bounded(json.trim(), TEXT_MAX), code: None },
        }
    }

    /// Parses the body of an error response in any format.
    pub(crate) fn from_body(body: &[u8]) -> Option<Fault> {
        let text = String::from_utf8_lossy(body);
        let text = text.trim();
        let text = text.strip_prefix("data:").map_or(text, str::trim);
        (!text.is_empty()).then(|| Fault::from_json(text.split("\n\n").next().unwrap_or(text)))
    }

    /// Parses one of several errors, with the field that it names.
    fn from_item(value: &Value) -> Fault {
        let fault = Fault::from_value(value);
        match named(value).filter(|name| !fault.text.contains(name.as_str())) {
            Some(name) => Fault { text: bounded(&format!("{} ({name})", fault.text), TEXT_MAX), ..fault },
            None => fault,
        }
    }

    fn from_value(value: &Value) -> Fault {
        let said =
            |found: &&Value| !matches!(found, Value::Null | Value::Bool(_)) && found.as_str() != Some("");
        let keys = ["error", "detail", "message", "msg", "error_msg", "reason", "errors", "title"];
        let choice =
            || value.get("choices")?.as_array()?.iter().find_map(|choice| choice.get("error").filter(said));
        let inner = keys.iter().find_map(|key| value.get(key).filter(said)).or_else(choice);
        let code = code(value).or(inner.and_then(code));
        match (value, inner) {
            (Value::Object(_), Some(inner)) => {
                let deeper = Fault::from_value(inner);
                Fault { text: deeper.text, code: code.or(deeper.code) }
            }
            (Value::Array(items), _) if !items.is_empty() => {
                let faults: Vec<Fault> = items.iter().take(LIST_MAX).map(Fault::from_item).collect();
                let words: Vec<&str> = faults.iter().map(|fault| fault.text.as_str()).collect();
                Fault { text: bounded(&words.join("; "), TEXT_MAX), code: code.or(faults[0].code) }
            }
            (Value::String(text), _) => Fault { text: bounded(text, TEXT_MAX), code },
            (other, _) => Fault { text: bounded(&other.to_string(), TEXT_MAX), code },
        }
    }
}

/// Returns the request field that an error names, by the keys that servers use; below `body`, as in pydantic.
fn named(value: &Value) -> Option<String> {
    let place = |value: &Value| match value {
        Value::String(name) => Some(name.trim_start_matches(['/', '$', '.']).to_owned()),
        Value::Array(steps) => {
            let steps: Vec<&str> =
                steps.iter().filter_map(Value::as_str).filter(|step| *step != "body").collect();
            Some(steps.join("."))
        }
        _ => None,
    };
    match value {
        Value::Object(fields) => FIELD_KEYS
            .iter()
            .find_map(|key| fields.get(*key).and_then(place).filter(|name| !name.is_empty()))
            .or_else(|| fields.values().find_map(named)),
        Value::Array(items) => items.iter().find_map(named),
        _ => None,
    }
}

/// Returns the status for an error type of Anthropic; OpenAI uses some of these types with an equal meaning.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The forms of pydantic, OpenAI, vLLM as text, RFC 9457 and plain lists.
    #[test]
    fn a_field_that_only_the_structure_names_is_in_the_words() {
        for (body, want) in [
            (
                r#"{"message":{"detail":[{"type":"extra_forbidden","loc":["body","ignore_eos"],"msg":"Extra inputs are not permitted"}]}}"#,
                "Extra inputs are not permitted (ignore_eos)",
            ),
            (
                r#"{"detail":[{"loc":["body","a"],"msg":"no"},{"loc":["body","b","c"],"msg":"no"}]}"#,
                "no (a); no (b.c)",
            ),
            (
                r#"{"error":{"message":"Unsupported value","param":"temperature"}}"#,
                "Unsupported value (temperature)",
            ),
            (
                r#"{"error":{"message":"'max_tokens' is not supported","param":"max_tokens"}}"#,
                "'max_tokens' is not supported",
            ),
            (
                r#"{"message":"Validation failed","errors":[{"field":"ignore_eos","message":"unknown"}]}"#,
                "Validation failed (ignore_eos)",
            ),
            (r#"{"errors":{"ignore_eos":["unknown field"]}}"#, r#"{"ignore_eos":["unknown field"]}"#),
            (r#"{"title":"Bad Request","errors":[{"pointer":"/ignore_eos"}]}"#, r#"ignore_eos"#),
            ("ignore_eos is no field", "ignore_eos is no field"),
        ] {
            let text = Fault::from_json(body).text;
            assert!(text.contains(want), "{body}: {text}");
        }
    }
}

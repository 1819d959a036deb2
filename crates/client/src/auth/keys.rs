//! Resolves the key of a target: a fixed value, a file that is rewritten, or a token server.
//!
//! Targets of one process with the same file or token share one key and one renewal thread. A load on eight endpoints
//! therefore requests one token and not eight.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use plimsoll_model::Span;
use plimsoll_workload::{TargetSpec, TokenSpec};

use crate::auth::renewed::{RefreshReason, RefreshedValue};
use crate::auth::secret::{Key, Secret, SecretError};
use crate::auth::token::TokenServer;
use crate::clock::monotonic_ns;

/// Shortest interval between two token requests, so that a server that rejects every token is not queried at each
/// rejection.
const ASK_APART: Span = Span::from_secs(5);

/// Returns the key of this target; `None` = the target names no key.
pub fn of(spec: &TargetSpec, given: Option<Secret>) -> Result<Option<Key>, SecretError> {
    Ok(match (given, &spec.key_env, &spec.key_file, &spec.token) {
        (Some(key), ..) => Some(RefreshedValue::fixed(key)),
        (None, Some(name), ..) => Some(RefreshedValue::fixed(Secret::from_env(name)?)),
        (None, None, Some(file), _) => Some(of_file(file)?),
        (None, None, None, Some(token)) => Some(of_token(spec, token)?),
        (None, None, None, None) => None,
    })
}

static FILES: Mutex<Vec<(String, Weak<RefreshedValue<Secret>>)>> = Mutex::new(Vec::new());

fn of_file(file: &str) -> Result<Key, SecretError> {
    let now = Secret::from_file(Path::new(file))?;
    let mut known = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(_, key)| key.strong_count() > 0);
    if let Some(key) = known.iter().find(|(path, _)| path == file).and_then(|(_, key)| key.upgrade()) {
        if *key.get() != now {
            key.set(now);
        }
        return Ok(key);
    }
    let (path, mut last) = (file.to_owned(), now.clone());
    let key = RefreshedValue::start(now, move |_| {
        // A file that is being rewritten may be missing or empty for a moment, so the current key stays until a new one is
        // read.
        let read = Secret::from_file(Path::new(&path)).map_err(|e| e.to_string())?;
        Ok((read != last).then(|| {
            last = read.clone();
            read
        }))
    });
    known.push((file.to_owned(), Arc::downgrade(&key)));
    Ok(key)
}

static TOKENS: Mutex<Vec<(TokenSpec, Key)>> = Mutex::new(Vec::new());

fn of_token(target: &TargetSpec, token: &TokenSpec) -> Result<Key, SecretError> {
    let mut known = TOKENS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, key)) = known.iter().find(|(spec, _)| spec == token) {
        return Ok(Arc::clone(key));
    }
    let server = TokenServer::new(target, token)?;
    let asked = monotonic_ns();
    let first = server.ask()?;
    let (mut last, mut renew) = (asked, first.renew_at(asked));
    let mut failed = None;
    let key = RefreshedValue::start(first.key, move |why| {
        let now = monotonic_ns();
        let due = why == RefreshReason::Refused || failed.is_some() || renew.is_some_and(|at| now >= at);
        if !due || now - last < ASK_APART.0 {
            return failed.clone().map_or(Ok(None), Err);
        }
        last = now;
        let next = server.ask().map_err(|e| e.to_string());
        failed = next.as_ref().err().cloned();
        let next = next?;
        renew = next.renew_at(now);
        Ok(Some(next.key))
    });
    known.push((token.clone(), Arc::clone(&key)));
    Ok(key)
}

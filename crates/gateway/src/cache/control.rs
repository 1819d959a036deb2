//! Cache directives of requests and responses, as a shared cache applies them (RFC 9111, 5.2).

use http::header::{CACHE_CONTROL, PRAGMA, VARY};
use http::{HeaderMap, HeaderName};

/// Returns the directives of all `Cache-Control` headers with their values.
fn directives(headers: &HeaderMap) -> impl Iterator<Item = (&str, Option<&str>)> {
    let lines = headers.get_all(CACHE_CONTROL).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(|part| match part.split_once('=') {
        Some((name, value)) => (name.trim(), Some(value.trim().trim_matches('"'))),
        None => (part.trim(), None),
    })
}

fn says(headers: &HeaderMap, words: &[&str]) -> bool {
    directives(headers).any(|(name, _)| words.iter().any(|word| name.eq_ignore_ascii_case(word)))
}

fn seconds(headers: &HeaderMap, word: &str) -> Option<f64> {
    let mut stated = directives(headers).filter(|(name, _)| name.eq_ignore_ascii_case(word));
    // An invalid value means stale.
    stated.next().map(|(_, value)| value.and_then(|value| value.parse::<u32>().ok()).map_or(0.0, f64::from))
}

/// Returns whether a request forbids both reading and storing a cached response.
pub(super) fn refuses_kept(headers: &HeaderMap) -> bool {
    let is_old = !headers.contains_key(CACHE_CONTROL)
        && headers.get(PRAGMA).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"no-cache"));
    is_old || says(headers, &["no-store", "no-cache"]) || max_age(headers) == Some(0.0)
}

/// Returns the maximum age in s of a response that the request accepts, or `None` without a limit.
pub(super) fn max_age(headers: &HeaderMap) -> Option<f64> {
    seconds(headers, "max-age")
}

/// Returns whether a response may be stored for other requests.
pub(super) fn may_keep(headers: &HeaderMap) -> bool {
    !says(headers, &["no-store", "private", "no-cache"]) && lasts_s(headers) != Some(0.0)
}

/// Returns the lifetime of a response in s, or `None` if the response does not set one.
pub(super) fn lasts_s(headers: &HeaderMap) -> Option<f64> {
    seconds(headers, "s-maxage").or_else(|| seconds(headers, "max-age"))
}

/// Returns the request headers that a response depends on, or `None` for `Vary: *` and invalid names.
pub(super) fn varies(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    let lines = headers.get_all(VARY).iter().map(|line| line.to_str().unwrap_or("*"));
    let names = lines.flat_map(|line| line.split(',')).map(str::trim).filter(|name| !name.is_empty());
    // `HeaderName` accepts `*`, so it is excluded explicitly.
    names.map(|name| HeaderName::try_from(name).ok().filter(|_| name != "*")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut all = HeaderMap::new();
        for (name, value) in lines {
            all.append(*name, value.parse().expect("a value"));
        }
        all
    }

    #[test]
    fn what_answers_and_requests_say_is_kept_to() {
        let control = |value: &str| headers(&[("cache-control", value)]);
        for kept in ["", "public", "max-age=60", "must-revalidate, Max-Age=5", "x-private-thing"] {
            assert!(may_keep(&control(kept)), "{kept}");
        }
        for not in [
            "no-store",
            "Private",
            "max-age=60, no-cache",
            "max-age=0",
            "s-maxage=0, max-age=9",
            "max-age=soon",
            "private=\"x-user\"",
        ] {
            assert!(!may_keep(&control(not)), "{not}");
        }
        assert!(!may_keep(&headers(&[("cache-control", "public"), ("cache-control", "no-store")])));
        assert_eq!(lasts_s(&control("max-age=60, s-maxage=\"7\"")), Some(7.0));
        assert!(refuses_kept(&control("max-age=0")) && refuses_kept(&headers(&[("pragma", "No-Cache")])));
        assert!(!refuses_kept(&control("max-age=5")) && max_age(&control("max-age=5")) == Some(5.0));
        let vary = |value: &str| varies(&headers(&[("vary", value)]));
        assert_eq!(vary("*"), None);
        assert_eq!(vary("a b"), None);
        assert_eq!(vary("X-User, Accept").map(|names| names.len()), Some(2));
        assert_eq!(varies(&HeaderMap::new()), Some(Vec::new()));
    }
}

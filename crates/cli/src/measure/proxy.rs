//! Detects a proxy that the environment names for curl and reports that it is not used.
//!
//! Requests through a proxy were rejected: a proxy pools connections and buffers answers, and its own latency would be in every figure.

use plimsoll_client::target::without_user;

/// Returns a line about the variable that sets curl's proxy for this URL. The upper-case `HTTP_PROXY` is ignored, because CGI
/// servers set it from a request's header.
pub(super) fn unused(url: &str, read: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let is_https = matches!(scheme, "https" | "grpcs");
    let names: &[&str] = match is_https {
        true => &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
        false => &["http_proxy", "all_proxy", "ALL_PROXY"],
    };
    let host = host_of(rest);
    let except = read("no_proxy").or_else(|| read("NO_PROXY")).unwrap_or_default();
    if is_excepted(host, &except) {
        return None;
    }
    let (name, proxy) =
        names.iter().find_map(|name| Some((*name, read(name).filter(|proxy| !proxy.trim().is_empty())?)))?;
    let proxy = without_user(proxy.trim());
    Some(format!("{name} is set ({proxy}) and not used: requests go straight to {host}"))
}

/// Returns the host, without brackets, of a URL without its scheme.
fn host_of(rest: &str) -> &str {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let authority = authority.rsplit('@').next().unwrap_or_default();
    match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    }
}

/// Returns whether `no_proxy` covers the host: by `*`, by the name, by a parent domain or by a network of its address.
fn is_excepted(host: &str, except: &str) -> bool {
    let host = host.trim_end_matches('.').to_lowercase();
    except.split([',', ' ']).map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        let entry =
            entry.trim_start_matches('.').trim_end_matches('.').trim_matches(['[', ']']).to_lowercase();
        let is_above = || host.strip_suffix(entry.as_str()).is_some_and(|rest| rest.ends_with('.'));
        entry == "*" || host == entry || is_above() || is_in_network(&host, &entry)
    })
}

/// Returns whether an address is in a network such as `10.0.0.0/8`.
fn is_in_network(host: &str, network: &str) -> bool {
    use std::net::IpAddr;
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)) << 96, 32),
        IpAddr::V6(v6) => (u128::from(v6), 128),
    };
    let parse = || {
        let (base, length) = network.split_once('/')?;
        let (address, base, length) =
            (host.parse::<IpAddr>().ok()?, base.parse::<IpAddr>().ok()?, length.parse::<u32>().ok()?);
        let ((address, width), (base, of)) = (bits(address), bits(base));
        let same = length == 0 || (address ^ base).checked_shr(128 - length).unwrap_or(0) == 0;
        Some(width == of && length <= width && same)
    };
    parse().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(url: &str, set: &[(&str, &str)]) -> Option<String> {
        unused(url, |name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    /// Expected values are from ENVIRONMENT in curl's manual.
    #[test]
    fn the_variable_that_curl_would_use_is_named() {
        let http = "http://llm.invalid:8000/v1";
        for (url, set, name) in [
            (http, ("http_proxy", "http://p:3128"), Some("http_proxy is set (http://p:3128)")),
            (http, ("HTTP_PROXY", "http://p:3128"), None),
            (http, ("https_proxy", "http://p:3128"), None),
            (http, ("ALL_PROXY", "socks5://p"), Some("ALL_PROXY")),
            (http, ("http_proxy", " "), None),
            ("https://h/v1", ("HTTPS_PROXY", "http://u:secret@p"), Some("HTTPS_PROXY is set (http://***@p)")),
            ("https://h/v1", ("http_proxy", "http://p"), None),
        ] {
            let said = line(url, &[set]);
            assert_eq!(said.is_some(), name.is_some(), "{url} {set:?}: {said:?}");
            assert!(name.is_none_or(|name| said.unwrap_or_default().contains(name)), "{url} {set:?}");
        }
    }

    #[test]
    fn no_proxy_covers_names_domains_and_networks() {
        for (url, except, covered) in [
            ("http://127.0.0.1:8000/v1", "127.0.0.1", true),
            ("http://127.0.0.1:8000/v1", "127.0.0.0/8,x", true),
            ("http://10.1.2.3/v1", "127.0.0.0/8", false),
            ("http://a.b.internal/v1", "x, .internal", true),
            ("http://a.b.internal/v1", "internal", true),
            ("http://ainternal/v1", "internal", false),
            ("http://h/v1", "*", true),
            ("http://[::1]:8000/v1", "::1", true),
            ("http://h/v1", "", false),
        ] {
            let said = line(url, &[("http_proxy", "http://p"), ("no_proxy", except)]);
            assert_eq!(said.is_none(), covered, "{url} {except}: {said:?}");
        }
    }
}

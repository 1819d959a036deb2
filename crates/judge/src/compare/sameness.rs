//! Comparability of two runs: differences in load, prompts, lengths, client, path and clocks, and known properties of the targets.
//!
//! The comparison covers the client's settings and traffic. The target's address and model are excluded because they are the
//! subject. The distance of two remote hosts is not known from their names, so it is noted and not rejected.

use std::collections::BTreeMap;

use plimsoll_model::run::TimeBase;
use plimsoll_model::{Load, Manifest, StampSource};
use serde_json::Value;

use super::finding::{Difference, Fact};
use super::pairs::LevelPair;
use plimsoll_measure::say::number;

/// Parts of a scenario that must be equal, with their subject.
///
/// The nonce is left out: with another nonce the prompts have different words, but equal lengths and shared parts.
const PARTS: [(&str, &str); 17] = [
    ("/arrivals", "load"),
    ("/load", "load"),
    ("/sizes", "lengths"),
    ("/classes", "lengths"),
    ("/prompts", "prompts"),
    ("/seed", "prompts"),
    ("/client", "client"),
    ("/target/protocol", "client"),
    ("/target/stream", "client"),
    ("/target/http", "client"),
    ("/target/streams_per_connection", "client"),
    ("/target/ignore_eos", "lengths"),
    ("/target/temperature", "client"),
    ("/target/body_template", "prompts"),
    ("/target/tensors", "lengths"),
    ("/target/extra", "client"),
    ("/target/tls_verify", "network path"),
];

/// Returns the differences between two manifests.
pub fn of_manifests(base: &Manifest, candidate: &Manifest) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut differ = |about: &str, base: String, candidate: String| {
        if base != candidate {
            found.push(Difference { about: about.to_owned(), base, candidate });
        }
    };
    let (is_sweep, sweeps) = (is_sweep(base), is_sweep(base) && is_sweep(candidate));
    if is_sweep == self::is_sweep(candidate) {
        for (path, about) in PARTS {
            // A sweep chooses its levels itself.
            if sweeps && path == "/load" {
                continue;
            }
            let part = |manifest: &Manifest| manifest.scenario.pointer(path).cloned().unwrap_or(Value::Null);
            let (a, b) = (part(base), part(candidate));
            if a != b {
                let (a, b) = apart(path.trim_start_matches('/'), &a, &b);
                differ(about, a, b);
            }
        }
    } else {
        let kind = |manifest: &Manifest| if self::is_sweep(manifest) { "a sweep" } else { "a single load" };
        differ("load", kind(base).to_owned(), kind(candidate).to_owned());
    }
    let clock = |manifest: &Manifest| match manifest.time {
        TimeBase::Real => "real time".to_owned(),
        TimeBase::Virtual => "virtual time".to_owned(),
    };
    differ("clock", clock(base), clock(candidate));
    let endpoints = |manifest: &Manifest| {
        let further = manifest.scenario.pointer("/target/further_urls").and_then(Value::as_array);
        (1 + further.map_or(0, Vec::len)).to_string()
    };
    differ("endpoints", endpoints(base), endpoints(candidate));
    differ("network path", path_of(&base.target.url), path_of(&candidate.target.url));
    found
}

/// Returns the differences between paired levels.
///
/// If the scenarios differ, their schedules differ too, which is not reported again.
pub fn of_levels(pairs: &[LevelPair], known: &[Difference], one_nonce: bool) -> Vec<Difference> {
    let drawn = |known: &Difference| matches!(known.about.as_str(), "load" | "lengths" | "prompts");
    let explained = known.iter().any(drawn);
    let mut found = Vec::new();
    for pair in pairs {
        let (a, b) = (pair.base.level, pair.candidate.level);
        let mut differ = |about: &str, base: String, candidate: String| {
            if base != candidate {
                let which = |what: String| format!("level {}: {what}", a.id);
                found.push(Difference {
                    about: about.to_owned(),
                    base: which(base),
                    candidate: which(candidate),
                });
            }
        };
        if !explained {
            differ("load", load(&a.load, &a.traffic), load(&b.load, &b.traffic));
        }
        let seconds = |span: plimsoll_model::Span| format!("{} s", number(span.as_secs_f64()));
        let open = matches!(a.load, Load::Open { .. });
        if open && !explained {
            differ("load", seconds(a.window()), seconds(b.window()));
        }
        // In a closed loop the hash covers the sent requests, which depend on the target's speed.
        let same_schedule = !open || a.schedule_hash == b.schedule_hash;
        if !explained && !same_schedule {
            differ("schedule", hash(&a.schedule_hash), hash(&b.schedule_hash));
        }
        differ("clock", stamps(a.generator.stamps), stamps(b.generator.stamps));
        let (sizes, prompts) = if same_schedule && !explained { pair.unlike() } else { (0, 0) };
        if sizes > 0 {
            differ("lengths", "its own".to_owned(), format!("{sizes} requests of another length or class"));
        }
        if prompts > 0 && one_nonce {
            differ("prompts", "its own".to_owned(), format!("{prompts} requests with another prompt"));
        }
    }
    found
}

/// Compares the known properties of the targets. A property that a side lacks is unknown.
pub fn facts(base: &Manifest, candidate: &Manifest) -> BTreeMap<String, Fact> {
    let names = base.target.facts.keys().chain(candidate.target.facts.keys());
    let fact = |name: &String| {
        let of = |manifest: &Manifest| manifest.target.facts.get(name).cloned().flatten();
        match (of(base), of(candidate)) {
            (Some(a), Some(b)) if a == b => Fact::Same,
            (Some(base), Some(candidate)) => Fact::Changed { base, candidate },
            _ => Fact::Unknown,
        }
    };
    names.map(|name| (name.clone(), fact(name))).collect()
}

/// Returns a note on two remote hosts, whose distance their addresses do not show.
pub fn unknown_path(base: &Manifest, candidate: &Manifest) -> Option<String> {
    let (a, b) = (host(&base.target.url), host(&candidate.target.url));
    let far = |manifest: &Manifest| path_of(&manifest.target.url).ends_with("another host");
    (a != b && far(base) && far(candidate))
        .then(|| format!("the hosts {a} and {b} may be at different distances: the runs do not record it"))
}

/// Returns whether the run searches for capacity limits.
pub fn is_sweep(manifest: &Manifest) -> bool {
    manifest.levels.iter().any(|level| {
        !matches!(level.purpose.as_str(), "run" | "warmup" | plimsoll_measure::purpose::ISOLATED)
    })
}

/// Returns the first path at which two parts differ, with both values.
fn apart(path: &str, a: &Value, b: &Value) -> (String, String) {
    if let (Value::Object(first), Value::Object(second)) = (a, b) {
        for key in first.keys().chain(second.keys()) {
            let (x, y) = (&a[key.as_str()], &b[key.as_str()]);
            if x != y {
                return apart(&format!("{path}.{key}"), x, y);
            }
        }
    }
    let path = path.replace('/', ".");
    let short = |value: &Value| -> String {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.chars().take(60).collect()
    };
    (format!("{path} {}", short(a)), format!("{path} {}", short(b)))
}

/// Returns the network path to the target, if its address shows it.
fn path_of(url: &str) -> String {
    let (scheme, _) = url.split_once(':').unwrap_or(("", url));
    let host = host(url);
    let near = host == "localhost" || host.starts_with("127.") || host == "[::1]";
    match scheme {
        "simulated" => "simulated".to_owned(),
        _ if near => format!("{scheme} to this machine"),
        _ => format!("{scheme} to another host"),
    }
}

fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    match authority.rfind(':') {
        Some(colon) if !authority.ends_with(']') => &authority[..colon],
        _ => authority,
    }
}

fn load(load: &Load, traffic: &str) -> String {
    format!("{traffic}, {}", load_words(load))
}

/// Describes a load in a few words.
pub fn load_words(load: &Load) -> String {
    match load {
        Load::Open { rate_per_s } => match number(*rate_per_s).as_str() {
            "1" => "1 request/s".to_owned(),
            rate => format!("{rate} requests/s"),
        },
        Load::Closed { concurrency } => format!("{concurrency} in flight (closed loop)"),
        Load::Wave { requests } => format!("one wave of {requests}"),
        Load::Saturating { concurrency } => format!("{concurrency} in flight (saturating)"),
    }
}

fn hash(hash: &str) -> String {
    format!("schedule {}", if hash.is_empty() { "unknown" } else { hash })
}

fn stamps(source: StampSource) -> String {
    format!("{source:?} stamps").to_lowercase()
}

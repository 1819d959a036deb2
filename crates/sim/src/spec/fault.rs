//! The configuration of faults: kind, place and time.
//!
//! A fault is one line, `slow:factor=3,at=20s,for=5s,replica=1`, on the command line and in a file. In a file it may
//! also be a map with these keys (`kind: slow`, `factor: 3`, …). One parser reads both, and an unknown key is an
//! error that lists the known keys. Derived deserializers were rejected, because a flattened kind can't reject
//! unknown keys.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;

use plimsoll_model::{At, Span};
use plimsoll_policy::{ParsedSetting, SettingError};
use plimsoll_workload::units::{TextOrNumber, format_span, parse_span};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

#[derive(Clone, PartialEq, Debug)]
pub struct FaultSpec {
    pub kind: FaultKind,
    pub at: Span,
    /// Duration, of each occurrence if the fault repeats (`every`); `None` until the end of the run.
    pub lasts: Option<Span>,
    /// Affected replica; `None` for all.
    pub replica: Option<u32>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum FaultKind {
    /// Steps take `factor` times as long.
    Slow {
        /// Factor on the duration of a step, at least 1.
        factor: f64,
    },
    /// An intermittent noisy neighbour: steps take `factor` times as long while the neighbour is active. Active and
    /// idle periods are exponential.
    Noisy {
        /// Factor on the duration of a step, at least 1.
        factor: f64,
        /// Mean length of the active periods.
        on: Span,
        /// Mean length of the idle periods.
        off: Span,
    },
    /// Steps neither begin nor end. The stall repeats `times` times, or until the end of the run.
    Stall {
        /// Time between the starts of two stalls; `None` for one stall.
        every: Option<Span>,
        /// Number of stalls; `None` for no limit.
        times: Option<u32>,
    },
    /// Every step takes this much longer.
    HostBound {
        /// Additional time per step.
        step: Span,
    },
    /// A share of the KV blocks is unavailable.
    KvPressure {
        /// Unavailable share, over 0 and below 1.
        share: f64,
    },
    /// The prefix cache is emptied, once or at intervals.
    CacheFlush {
        /// Interval between flushes; `None` for one flush.
        every: Option<Span>,
    },
    /// The engine crashes. Requests without output get a 500, streams are cut. The engine responds with 500 until it
    /// has restarted: after the duration of the fault, or else after the restart part of a cold start.
    Crash {
        /// Time until the router stops sending to the replica; `None` for never.
        notice: Option<Span>,
    },
    /// The machine is lost: its requests, and those sent there later, are reset.
    Lost {
        /// Time until the router stops sending to the replica; `None` for never.
        notice: Option<Span>,
    },
    /// At most `limit` requests are admitted simultaneously, `backlog` more wait for admission, others are reset.
    ConnectionLimit {
        limit: u32,
        /// Maximum number of requests that wait for admission.
        backlog: u32,
    },
    /// Requests are admitted together at the end of each window.
    BatchWindow {
        /// Length of the window in which requests are collected.
        window: Span,
    },
    /// A share of the requests is rejected with a status.
    Error {
        /// Rejected share, over 0 up to 1.
        share: f64,
        /// HTTP status, 400 to 599.
        status: u16,
        /// Value of `Retry-After`; `None` for no header.
        retry_after: Option<Span>,
    },
    /// A share of the requests is reset before a response.
    Reset {
        /// Reset share, over 0 up to 1.
        share: f64,
    },
    /// A token bucket: requests over the rate get a 429.
    RateLimit {
        /// Refill rate of the bucket in requests per second.
        rate: f64,
        /// Tokens in the full bucket.
        burst: f64,
        /// Value of `Retry-After`; `None` for the time until the next token.
        retry_after: Option<Span>,
    },
    /// A share of the responses is cut in the middle.
    Disconnect {
        /// Cut share, over 0 up to 1.
        share: f64,
        /// Number of tokens before the cut; `None` for a uniform draw over the response.
        tokens: Option<u32>,
    },
    /// A proxy buffers tokens and sends them in groups.
    Buffering {
        /// Maximum time after the first buffered token; `None` for no limit.
        every: Option<Span>,
        /// Number of tokens per group; `None` for no limit.
        tokens: Option<u32>,
    },
    /// A dependency in front of the engine (a guardrail, a vector store) delays every request.
    Dependency {
        /// Mean delay of a request in the dependency.
        delay: Span,
        spread: DelayDistribution,
        /// Share of affected requests, 1 by default.
        share: f64,
        /// Number of requests that the dependency serves simultaneously; others wait. `None` for no limit.
        servers: Option<u32>,
    },
    /// Idle replicas are removed; the next request waits for a cold start.
    ScaleToZero {
        /// Idle time after which the replicas are removed.
        idle: Span,
    },
}

#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum DelayDistribution {
    #[default]
    Fixed,
    Exponential,
}

/// Names of the kinds in files and flags.
pub const FAULT_KINDS: [&str; 17] = [
    "slow",
    "noisy",
    "stall",
    "host_bound",
    "kv_pressure",
    "cache_flush",
    "crash",
    "lost",
    "connection_limit",
    "batch_window",
    "error",
    "reset",
    "rate_limit",
    "disconnect",
    "buffering",
    "dependency",
    "scale_to_zero",
];

const SPAN: &str = "a span of time such as 250ms, 20s or 1m30s";
const SHARE: &str = "a share over 0, at most 1";

impl FaultSpec {
    /// Parses `kind:key=value,key=value`.
    ///
    /// # Errors
    /// Fails if a kind, key or value is unknown; the error lists the valid ones.
    pub fn parse(text: &str) -> Result<FaultSpec, SettingError> {
        FaultSpec::read(ParsedSetting::parse(text)?)
    }

    fn read(mut written: ParsedSetting) -> Result<FaultSpec, SettingError> {
        let kind = FaultKind::read(&mut written)?;
        let at = span(&mut written, "at")?.unwrap_or(Span::ZERO);
        let lasts = positive_span(&mut written, "for")?;
        let replica = written.take("replica", "the number of a replica, from 0", |_: &u32| true)?;
        let spec = FaultSpec { kind, at, lasts, replica };
        spec.fits(&written)?;
        written.finish()?;
        Ok(spec)
    }

    /// Fails if parameters contradict each other.
    fn fits(&self, written: &ParsedSetting) -> Result<(), SettingError> {
        match &self.kind {
            FaultKind::Stall { .. } if self.lasts.is_none() => {
                Err(written.missing("for", "how long it lasts, such as for=2s"))
            }
            FaultKind::Stall { every: Some(every), .. }
                if self.lasts.is_some_and(|lasts| *every <= lasts) =>
            {
                Err(written.conflict("every must be longer than for, or it never ends"))
            }
            FaultKind::Stall { every: None, times: Some(_) } => {
                Err(written.conflict("times without every; add every=10s"))
            }
            FaultKind::CacheFlush { .. } if self.lasts.is_some() => {
                Err(written.conflict("a flush takes no time; leave out for"))
            }
            FaultKind::ScaleToZero { .. } if self.replica.is_some() => {
                Err(written.conflict("it is about all replicas; leave out replica"))
            }
            FaultKind::Buffering { every: None, tokens: None } => {
                Err(written.missing("every", "give every=200ms, tokens=16 or both"))
            }
            _ => Ok(()),
        }
    }

    pub fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Returns the end of the fault, of its first occurrence if it repeats; `None` if it lasts until the end.
    pub fn ends(&self) -> Option<At> {
        self.lasts.map(|lasts| At(self.at.0) + lasts)
    }
}

/// Checks that no fault begins after the end of the load, because no request would start under it.
pub fn check(faults: &[FaultSpec], end: Span) -> Result<(), SettingError> {
    match faults.iter().find(|fault| fault.at >= end) {
        None => Ok(()),
        Some(late) => {
            let (at, end) = (format_span(late.at), format_span(end));
            let why =
                format!("it begins at {at}, and the load ends at {end}; begin it earlier or run longer");
            Err(SettingError::Conflict { name: format!("fault {}", late.name()), why })
        }
    }
}

impl FaultKind {
    fn read(written: &mut ParsedSetting) -> Result<FaultKind, SettingError> {
        Ok(match written.name.as_str() {
            "slow" => FaultKind::Slow { factor: factor(written)? },
            "noisy" => FaultKind::Noisy {
                factor: factor(written)?,
                on: positive_span(written, "on")?.unwrap_or(Span::from_secs(2)),
                off: positive_span(written, "off")?.unwrap_or(Span::from_secs(8)),
            },
            "stall" => FaultKind::Stall {
                every: positive_span(written, "every")?,
                times: written.take("times", "a whole number from 1", |&times: &u32| times > 0)?,
            },
            "host_bound" => FaultKind::HostBound { step: needed(written, "step", SPAN, positive_span)? },
            "kv_pressure" => FaultKind::KvPressure {
                share: needed(written, "share", "the share that is taken away", |written, key| {
                    written.take(key, "a share over 0, below 1", |&share: &f64| share > 0.0 && share < 1.0)
                })?,
            },
            "cache_flush" => FaultKind::CacheFlush { every: positive_span(written, "every")? },
            "crash" => FaultKind::Crash { notice: span(written, "notice")? },
            "lost" => FaultKind::Lost { notice: span(written, "notice")? },
            "connection_limit" => FaultKind::ConnectionLimit {
                limit: needed(written, "limit", "concurrent requests", |written, key| {
                    written.take(key, "a whole number from 1", |&limit: &u32| limit > 0)
                })?,
                backlog: written.take("backlog", "a whole number from 0", |_: &u32| true)?.unwrap_or(128),
            },
            "batch_window" => {
                FaultKind::BatchWindow { window: needed(written, "window", SPAN, positive_span)? }
            }
            "error" => FaultKind::Error {
                share: share(written)?,
                status: written
                    .take("status", "an HTTP status from 400 to 599", |status: &u16| {
                        (400..600).contains(status)
                    })?
                    .unwrap_or(500),
                retry_after: span(written, "retry_after")?,
            },
            "reset" => FaultKind::Reset { share: share(written)? },
            "rate_limit" => read_rate_limit(written)?,
            "disconnect" => FaultKind::Disconnect {
                share: share(written)?,
                tokens: written.take("tokens", "a whole number from 1", |&tokens: &u32| tokens > 0)?,
            },
            "buffering" => FaultKind::Buffering {
                every: positive_span(written, "every")?,
                tokens: written.take("tokens", "a whole number from 2", |&tokens: &u32| tokens > 1)?,
            },
            "dependency" => FaultKind::Dependency {
                delay: needed(written, "delay", SPAN, positive_span)?,
                spread: written
                    .take_with("spread", "fixed or exponential", |text| match text {
                        "fixed" => Some(DelayDistribution::Fixed),
                        "exponential" => Some(DelayDistribution::Exponential),
                        _ => None,
                    })?
                    .unwrap_or_default(),
                share: written
                    .take("share", SHARE, |&share: &f64| share > 0.0 && share <= 1.0)?
                    .unwrap_or(1.0),
                servers: written.take("servers", "a whole number from 1", |&servers: &u32| servers > 0)?,
            },
            "scale_to_zero" => FaultKind::ScaleToZero { idle: needed(written, "idle", SPAN, positive_span)? },
            _ => {
                let (asked, known) = (written.name.clone(), FAULT_KINDS.to_vec());
                return Err(SettingError::UnknownName { what: "fault", asked, known });
            }
        })
    }

    fn name(&self) -> &'static str {
        match self {
            FaultKind::Slow { .. } => "slow",
            FaultKind::Noisy { .. } => "noisy",
            FaultKind::Stall { .. } => "stall",
            FaultKind::HostBound { .. } => "host_bound",
            FaultKind::KvPressure { .. } => "kv_pressure",
            FaultKind::CacheFlush { .. } => "cache_flush",
            FaultKind::Crash { .. } => "crash",
            FaultKind::Lost { .. } => "lost",
            FaultKind::ConnectionLimit { .. } => "connection_limit",
            FaultKind::BatchWindow { .. } => "batch_window",
            FaultKind::Error { .. } => "error",
            FaultKind::Reset { .. } => "reset",
            FaultKind::RateLimit { .. } => "rate_limit",
            FaultKind::Disconnect { .. } => "disconnect",
            FaultKind::Buffering { .. } => "buffering",
            FaultKind::Dependency { .. } => "dependency",
            FaultKind::ScaleToZero { .. } => "scale_to_zero",
        }
    }

    /// Returns whether the fault needs an engine with steps.
    pub(crate) fn needs_steps(&self) -> bool {
        matches!(
            self,
            FaultKind::Slow { .. }
                | FaultKind::Noisy { .. }
                | FaultKind::Stall { .. }
                | FaultKind::HostBound { .. }
        )
    }

    /// Returns whether the fault needs a KV cache.
    pub(crate) fn needs_cache(&self) -> bool {
        matches!(self, FaultKind::KvPressure { .. } | FaultKind::CacheFlush { .. })
    }

    /// Returns whether the fault affects every request that is in flight during it.
    pub(crate) fn needs_engine(&self) -> bool {
        self.needs_steps() || matches!(self, FaultKind::KvPressure { .. })
    }

    /// Returns the parameters as in a file.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let optional = |key, span: &Option<Span>| span.map(|span| (key, format_span(span)));
        match self {
            FaultKind::Slow { factor } => vec![("factor", factor.to_string())],
            FaultKind::Noisy { factor, on, off } => {
                vec![("factor", factor.to_string()), ("on", format_span(*on)), ("off", format_span(*off))]
            }
            FaultKind::Stall { every, times } => {
                let times = times.map(|times| ("times", times.to_string()));
                optional("every", every).into_iter().chain(times).collect()
            }
            FaultKind::HostBound { step } => vec![("step", format_span(*step))],
            FaultKind::KvPressure { share } | FaultKind::Reset { share } => {
                vec![("share", share.to_string())]
            }
            FaultKind::CacheFlush { every } => optional("every", every).into_iter().collect(),
            FaultKind::Crash { notice } | FaultKind::Lost { notice } => {
                optional("notice", notice).into_iter().collect()
            }
            FaultKind::ConnectionLimit { limit, backlog } => {
                vec![("limit", limit.to_string()), ("backlog", backlog.to_string())]
            }
            FaultKind::BatchWindow { window } => vec![("window", format_span(*window))],
            FaultKind::Error { share, status, retry_after } => {
                let said = optional("retry_after", retry_after);
                [("share", share.to_string()), ("status", status.to_string())]
                    .into_iter()
                    .chain(said)
                    .collect()
            }
            FaultKind::RateLimit { rate, burst, retry_after } => {
                let said = optional("retry_after", retry_after);
                [("rate", rate.to_string()), ("burst", burst.to_string())].into_iter().chain(said).collect()
            }
            FaultKind::Disconnect { share, tokens } => {
                let tokens = tokens.map(|tokens| ("tokens", tokens.to_string()));
                [("share", share.to_string())].into_iter().chain(tokens).collect()
            }
            FaultKind::Buffering { every, tokens } => {
                let tokens = tokens.map(|tokens| ("tokens", tokens.to_string()));
                optional("every", every).into_iter().chain(tokens).collect()
            }
            FaultKind::Dependency { delay, spread, share, servers } => {
                let spread = if *spread == DelayDistribution::Fixed { "fixed" } else { "exponential" };
                let share = (*share < 1.0).then(|| ("share", share.to_string()));
                let servers = servers.map(|servers| ("servers", servers.to_string()));
                let always = [("delay", format_span(*delay)), ("spread", spread.to_owned())];
                always.into_iter().chain(share).chain(servers).collect()
            }
            FaultKind::ScaleToZero { idle } => vec![("idle", format_span(*idle))],
        }
    }
}

fn read_rate_limit(written: &mut ParsedSetting) -> Result<FaultKind, SettingError> {
    let rate = needed(written, "rate", "requests per second", |written, key| {
        written.take(key, "a number over 0", |&rate: &f64| rate.is_finite() && rate > 0.0)
    })?;
    let burst = written.take("burst", "a number from 1", |&burst: &f64| burst.is_finite() && burst >= 1.0)?;
    let retry_after = span(written, "retry_after")?;
    Ok(FaultKind::RateLimit { rate, burst: burst.unwrap_or(1.0), retry_after })
}

fn span(written: &mut ParsedSetting, key: &'static str) -> Result<Option<Span>, SettingError> {
    written.take_with(key, SPAN, |text| parse_span(text).ok())
}

fn positive_span(written: &mut ParsedSetting, key: &'static str) -> Result<Option<Span>, SettingError> {
    written.take_with(key, SPAN, |text| parse_span(text).ok().filter(|span| *span > Span::ZERO))
}

fn factor(written: &mut ParsedSetting) -> Result<f64, SettingError> {
    needed(written, "factor", "how many times as long, such as factor=3", |written, key| {
        written.take(key, "a number from 1 to 1000000", |factor: &f64| (1.0..=1e6).contains(factor))
    })
}

fn share(written: &mut ParsedSetting) -> Result<f64, SettingError> {
    needed(written, "share", "the share of the requests, such as share=0.1", |written, key| {
        written.take(key, SHARE, |&share: &f64| share > 0.0 && share <= 1.0)
    })
}

fn needed<T>(
    written: &mut ParsedSetting,
    key: &'static str,
    want: &'static str,
    take: impl FnOnce(&mut ParsedSetting, &'static str) -> Result<Option<T>, SettingError>,
) -> Result<T, SettingError> {
    take(written, key)?.ok_or_else(|| written.missing(key, want))
}

impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:at={}", self.name(), format_span(self.at))?;
        if let Some(lasts) = self.lasts {
            write!(f, ",for={}", format_span(lasts))?;
        }
        if let Some(replica) = self.replica {
            write!(f, ",replica={replica}")?;
        }
        self.kind.fields().iter().try_for_each(|(key, value)| write!(f, ",{key}={value}"))
    }
}

impl Serialize for FaultSpec {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FaultSpec {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<FaultSpec, D::Error> {
        d.deserialize_any(LineOrMap)
    }
}

/// A visitor that reads a fault as one line or as a map.
struct LineOrMap;

impl<'de> de::Visitor<'de> for LineOrMap {
    type Value = FaultSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fault such as stall:at=20s,for=2s, or a map with kind, at, for and its parameters")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<FaultSpec, E> {
        FaultSpec::parse(text).map_err(E::custom)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<FaultSpec, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, Scalar>()? {
            if fields.insert(key.clone(), value.0).is_some() {
                return Err(de::Error::custom(format!("{key} is there twice")));
            }
        }
        let missing = || de::Error::custom(format!("kind is missing; there are: {}", FAULT_KINDS.join(", ")));
        let kind = fields.remove("kind").ok_or_else(missing)?;
        FaultSpec::read(ParsedSetting::new(&kind, fields)).map_err(de::Error::custom)
    }
}

/// A text or a number, as text.
struct Scalar(String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Scalar, D::Error> {
        let as_it_is = |text: &str| Ok::<Scalar, Infallible>(Scalar(text.to_owned()));
        d.deserialize_any(TextOrNumber("a text or a number", as_it_is))
    }
}

impl JsonSchema for FaultSpec {
    fn schema_name() -> Cow<'static, str> {
        "FaultSpec".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "string", "examples": ["stall:at=20s,for=2s", "slow:factor=3,at=1m,for=30s,replica=1"] },
                {
                    "type": "object",
                    "required": ["kind"],
                    "properties": { "kind": { "type": "string", "enum": FAULT_KINDS } },
                    "additionalProperties": { "type": ["string", "number"] }
                }
            ]
        })
    }
}

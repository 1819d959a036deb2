//! The caps of a server on load: allowed hosts, and what all calls together may use.
//!
//! The caps apply for the life of the server, not per call, because an agent can call a tool in a loop.

use plimsoll_judge::cost::Bill;
use plimsoll_report::figure;

use crate::resolve::SCHEMES;

/// Amount that all calls may cost if a price is known and no amount is set.
const SPEND: f64 = 10.0;

/// Amounts of load.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct LoadAmount {
    /// Requests.
    pub requests: u64,
    /// Prompt and output tokens.
    pub tokens: u64,
    /// Time under load, s.
    pub seconds: f64,
    /// Cost; 0 without a price.
    pub cost: f64,
}

/// A load that a call requests.
#[derive(Copy, Clone, Debug)]
pub struct LoadAsk {
    /// Number of requests; `None` if it depends on the target.
    pub requests: Option<u64>,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// Longest time of the load, s.
    pub seconds: f64,
    /// Requests that can be in flight beyond a limit on requests.
    pub in_flight: u32,
}

/// The caps and their used amounts.
#[derive(Debug)]
pub struct LoadCaps {
    most: LoadAmount,
    price: Option<Bill>,
    used: LoadAmount,
}

impl LoadCaps {
    /// Returns caps without any used amount.
    pub fn new(
        requests: u64,
        tokens: u64,
        minutes: f64,
        (spend, price): (Option<f64>, Option<Bill>),
    ) -> LoadCaps {
        let most = LoadAmount { requests, tokens, seconds: minutes * 60.0, cost: spend.unwrap_or(SPEND) };
        LoadCaps { most, price, used: LoadAmount::default() }
    }

    /// Returns the cost of a load; 0 without a price.
    pub fn cost(&self, (prompt, output): (f64, f64), seconds: f64) -> f64 {
        self.price.as_ref().map_or(0.0, |bill| bill.of(prompt, output, seconds))
    }

    /// Returns the number of requests that a load may send.
    ///
    /// # Errors
    /// Fails if the load would exceed a cap. The text names the cap.
    pub fn allow(&self, ask: &LoadAsk) -> Result<u64, String> {
        let left = self.left();
        let refuse = |wanted: String, left: String, flag: &str| {
            Err(format!(
                "{wanted} requested, {left} left of {flag}; request less, or let the user restart the server with a higher {flag}"
            ))
        };
        if ask.seconds > left.seconds {
            let minutes = |s: f64| format!("{} min", figure::number(s / 60.0));
            return refuse(minutes(ask.seconds), minutes(left.seconds), "--max-minutes");
        }
        let sizes = (f64::from(ask.prompt_tokens), f64::from(ask.output_tokens));
        let time_cost = self.cost((0.0, 0.0), ask.seconds);
        let request_cost = self.cost(sizes, 0.0);
        let size = u64::from(ask.prompt_tokens) + u64::from(ask.output_tokens);
        let count = ask.requests.unwrap_or(0).max(1 + u64::from(ask.in_flight));
        if count > left.requests {
            return refuse(figure::counted(count, "request"), figure::count(left.requests), "--max-requests");
        }
        if count.saturating_mul(size) > left.tokens {
            let wanted = format!("{} tokens", figure::count(count.saturating_mul(size)));
            return refuse(wanted, figure::count(left.tokens), "--max-tokens");
        }
        let cost = time_cost + count as f64 * request_cost;
        if cost > left.cost {
            return refuse(
                format!("a cost of {}", figure::number(cost)),
                figure::number(left.cost),
                "--max-spend",
            );
        }
        let by_tokens = left.tokens.checked_div(size).unwrap_or(u64::MAX);
        let by_cost =
            if request_cost > 0.0 { ((left.cost - time_cost) / request_cost) as u64 } else { u64::MAX };
        Ok(left.requests.min(by_tokens).min(by_cost) - u64::from(ask.in_flight))
    }

    /// Returns the cap that a running load has exceeded; `None` if it may go on.
    pub fn exceeded(&self, running: &LoadAmount) -> Option<&'static str> {
        let left = self.left();
        [
            (running.requests > left.requests, "--max-requests"),
            (running.tokens > left.tokens, "--max-tokens"),
            (running.cost > left.cost, "--max-spend"),
        ]
        .into_iter()
        .find_map(|(is_over, flag)| is_over.then_some(flag))
    }

    /// Counts a load that has ended.
    pub fn charge(&mut self, used: &LoadAmount) {
        self.used.requests += used.requests;
        self.used.tokens += used.tokens;
        self.used.seconds += used.seconds;
        self.used.cost += used.cost;
    }

    /// Returns the amounts that are left.
    pub fn left(&self) -> LoadAmount {
        LoadAmount {
            requests: self.most.requests.saturating_sub(self.used.requests),
            tokens: self.most.tokens.saturating_sub(self.used.tokens),
            seconds: (self.most.seconds - self.used.seconds).max(0.0),
            cost: if self.price.is_some() {
                (self.most.cost - self.used.cost).max(0.0)
            } else {
                f64::INFINITY
            },
        }
    }

    /// Returns a line with the amounts that are left.
    pub fn line(&self) -> String {
        let left = self.left();
        let cost =
            self.price.as_ref().map(|bill| format!(", {} {}", figure::number(left.cost), bill.currency));
        format!(
            "Left of the caps: {} requests, {} tokens, {} min{}",
            figure::count(left.requests),
            figure::count(left.tokens),
            figure::number(left.seconds / 60.0),
            cost.unwrap_or_default()
        )
    }
}

/// The hosts that load tools may test.
#[derive(Debug)]
pub struct AllowedHosts(Vec<(String, Option<u16>)>);

impl AllowedHosts {
    /// Reads the values of `--allow-load`.
    ///
    /// # Errors
    /// Fails if a value is no host.
    pub fn parse(entries: &[String]) -> Result<AllowedHosts, String> {
        let read = |entry: &String| {
            authority(entry).ok_or_else(|| {
                format!("--allow-load {entry}: no host; write HOST or HOST:PORT, such as localhost:8000")
            })
        };
        entries.iter().map(read).collect::<Result<_, _>>().map(AllowedHosts)
    }

    /// Checks the target of a load.
    ///
    /// # Errors
    /// Fails if the URL is wrong or its host is not allowed.
    pub fn check(&self, url: &str) -> Result<(), String> {
        let (host, port) =
            host_of(url).ok_or_else(|| format!("{url}: no URL of an endpoint; write http://host:8000/v1"))?;
        let is_allowed =
            |(allowed, at): &(String, Option<u16>)| *allowed == host && at.is_none_or(|at| at == port);
        if self.0.iter().any(is_allowed) {
            return Ok(());
        }
        Err(format!(
            "{host}:{port} may not be loaded; the user allows it with plimsoll mcp --allow-load {host}:{port}"
        ))
    }

    /// Returns the allowed hosts as text.
    pub fn line(&self) -> String {
        let one =
            |(host, port): &(String, Option<u16>)| port.map_or(host.clone(), |port| format!("{host}:{port}"));
        let all: Vec<String> = self.0.iter().map(one).collect();
        if all.is_empty() { "no host".to_owned() } else { all.join(", ") }
    }
}

/// Returns host and port of a URL. Its authority has no user and no escapes, so that no other reader of the URL can see another host.
fn host_of(url: &str) -> Option<(String, u16)> {
    let scheme = SCHEMES.iter().find(|scheme| url.starts_with(**scheme))?;
    let rest = &url[scheme.len()..];
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, port) = authority(&rest[..end])?;
    let default = if scheme.starts_with("https") || scheme.starts_with("grpcs") { 443 } else { 80 };
    Some((host, port.unwrap_or(default)))
}

fn authority(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (format!("[{host}]"), after.strip_prefix(':').or(after.is_empty().then_some(""))?)
        }
        None => text.split_once(':').map_or((text.to_owned(), ""), |(host, port)| (host.to_owned(), port)),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    if host.is_empty() || !host.chars().all(is_plain) {
        return None;
    }
    let port = if port.is_empty() && !text.ends_with(':') { None } else { Some(port.parse().ok()?) };
    Some((host.to_ascii_lowercase(), port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::price;

    fn ask(requests: Option<u64>) -> LoadAsk {
        LoadAsk { requests, prompt_tokens: 100, output_tokens: 50, seconds: 60.0, in_flight: 0 }
    }

    #[test]
    fn each_cap_refuses_by_its_flag() {
        let bill = price::read("1,2USD/Mtok").expect("a price").bill().expect("a bill");
        let caps = |requests, tokens, minutes, spend| {
            LoadCaps::new(requests, tokens, minutes, (Some(spend), Some(bill.clone())))
        };
        // 100 requests: 15 000 tokens, 100 × (100 × 1 + 50 × 2) / 1e6 = 0.02 USD.
        assert_eq!(caps(100, 15_000, 1.0, 0.021).allow(&ask(Some(100))), Ok(100));
        for (caps, flag) in [
            (caps(99, 15_000, 1.0, 0.021), "--max-requests"),
            (caps(100, 14_999, 1.0, 0.021), "--max-tokens"),
            (caps(100, 15_000, 0.9, 0.021), "--max-minutes"),
            (caps(100, 15_000, 1.0, 0.019), "--max-spend"),
        ] {
            assert!(caps.allow(&ask(Some(100))).is_err_and(|why| why.contains(flag)), "{flag}");
        }
    }

    #[test]
    fn a_load_of_unknown_size_gets_what_is_left() {
        let mut caps = LoadCaps::new(1000, 30_000, 10.0, (None, None));
        assert_eq!(caps.allow(&ask(None)), Ok(200));
        assert_eq!(caps.allow(&LoadAsk { in_flight: 16, ..ask(None) }), Ok(184));
        caps.charge(&LoadAmount { requests: 150, tokens: 22_500, seconds: 540.0, cost: 0.0 });
        assert_eq!(caps.allow(&ask(None)), Ok(50));
        assert!(caps.allow(&LoadAsk { seconds: 61.0, ..ask(None) }).is_err());
        assert_eq!(
            caps.exceeded(&LoadAmount { requests: 51, tokens: 7501, ..LoadAmount::default() }),
            Some("--max-tokens")
        );
        assert_eq!(caps.exceeded(&LoadAmount { requests: 50, tokens: 7500, ..LoadAmount::default() }), None);
    }

    #[test]
    fn only_a_named_host_and_port_is_allowed() {
        let hosts = ["localhost:8000", "Staging.example", "[::1]:9"].map(str::to_owned);
        let hosts = AllowedHosts::parse(&hosts).expect("hosts");
        for url in [
            "http://localhost:8000/v1",
            "https://staging.example/v1",
            "http://STAGING.example:81",
            "grpc://[::1]:9",
        ] {
            assert_eq!(hosts.check(url), Ok(()), "{url}");
        }
        for url in [
            "http://localhost:8001/v1",
            "http://localhost/v1",
            "http://staging.example.evil/v1",
            "http://localhost:8000@evil/v1",
            "http://evil#localhost:8000",
            "http://evil\\localhost:8000",
            "http://localhost%3a8000/",
            "http://[::2]:9",
            "file:///etc/passwd",
            "localhost:8000",
            "",
        ] {
            assert!(hosts.check(url).is_err(), "{url}");
        }
        assert!(AllowedHosts::parse(&["http://a".to_owned()]).is_err());
        assert!(AllowedHosts::parse(&["a:".to_owned()]).is_err());
    }
}

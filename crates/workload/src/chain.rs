//! Chains, and targets of single classes.
//!
//! In a chain the classes are the stages of one user request, such as embed, search, rerank, generate. Each start sends one
//! request per class, in the order of the classes. A chain is a session whose turns have different targets, so due times,
//! failures and `session_e2e` are the session's.

use plimsoll_math::rng::Stream;
use plimsoll_model::{Attempt, Span};

use crate::{Arrival, ArrivalSpec, Pause, Scenario, SpecError, TargetSpec};

/// Latencies of the classes that a simulated engine does not serve.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ExternalClasses {
    seed: u64,
    /// Latency by class; `None` for a class that the engine serves.
    latencies: Vec<Option<Pause>>,
}

impl ExternalClasses {
    /// Returns the external classes of a scenario.
    ///
    /// # Errors
    /// Fails if a class with its own target has no latency for simulations.
    pub fn of(scenario: &Scenario) -> Result<ExternalClasses, SpecError> {
        let missing = |class: &u16| scenario.classes[usize::from(*class)].simulated.is_none();
        if let Some(class) = scenario.own_targets().find(missing) {
            return Err(SpecError::Missing {
                path: format!("classes.{class}.simulated"),
                want: "the latency of this class, such as lognormal:20ms,0.3, because the simulated engine is not its target"
                    .into(),
            });
        }
        let latencies = scenario.classes.iter().map(|class| class.simulated.clone()).collect();
        Ok(ExternalClasses { seed: scenario.seed, latencies })
    }

    /// Returns the latency of a request; `None` if the engine serves it.
    pub fn latency(&self, arrival: &Arrival) -> Option<Span> {
        let law = self.latencies.get(usize::from(arrival.class))?.as_ref()?;
        let mut stream =
            Stream::new(self.seed ^ u64::from(arrival.level).rotate_left(32), "simulated", arrival.id);
        Some(law.draw(&mut stream))
    }

    /// Returns the share of the classes that the engine serves.
    pub fn served(&self) -> f64 {
        let own = self.latencies.iter().filter(|law| law.is_none()).count();
        if self.latencies.is_empty() { 1.0 } else { own as f64 / self.latencies.len() as f64 }
    }
}

impl Scenario {
    /// Returns the settings of a class's requests: its own, or the scenario's. Its URL may be incomplete ([`Scenario::target_of`]).
    pub fn requests_of(&self, class: u16) -> &TargetSpec {
        self.classes.get(usize::from(class)).and_then(|class| class.target.as_ref()).unwrap_or(&self.target)
    }

    /// Returns whether requests of a class ask for output. A class whose own target has no output length does not, such as
    /// an embedding.
    pub fn asks_output(&self, class: u16) -> bool {
        let own = self.classes.get(usize::from(class)).and_then(|class| class.target.as_ref());
        own.is_none_or(|target| target.protocol.takes_output_length())
    }

    /// Returns whether a class goes to the scenario's endpoints: it has no URL, or only a path such as `/v1/score`.
    pub fn shares_endpoint(&self, class: u16) -> bool {
        let url = &self.requests_of(class).url;
        url.is_empty() || url.starts_with('/')
    }

    /// Returns the target of a class. A target without host gets the scenario's endpoints and credentials.
    pub fn target_of(&self, class: u16) -> TargetSpec {
        let (own, main) = (self.requests_of(class), &self.target);
        let model = self.classes.get(usize::from(class)).and_then(|class| class.model.clone());
        let url = |base: &String| match own.url.as_str() {
            "" => base.clone(),
            path => format!("{}{path}", origin(base)),
        };
        let mut target = match self.shares_endpoint(class) {
            false => own.clone(),
            true => TargetSpec {
                url: url(&main.url),
                further_urls: main.further_urls.iter().map(url).collect(),
                http: main.http,
                streams_per_connection: main.streams_per_connection,
                key_env: main.key_env.clone(),
                key_file: main.key_file.clone(),
                token: main.token.clone(),
                client_cert: main.client_cert.clone(),
                client_key: main.client_key.clone(),
                tls_verify: main.tls_verify,
                ca_file: main.ca_file.clone(),
                headers: main
                    .headers
                    .iter()
                    .chain(&own.headers)
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect(),
                ..own.clone()
            },
        };
        target.model = model.or(target.model);
        target
    }

    /// Returns the target of the scenario, and those of classes with their own. Rows number the endpoints in this order.
    pub fn targets(&self) -> impl Iterator<Item = TargetSpec> + '_ {
        std::iter::once(self.target.clone()).chain(self.own_targets().map(|class| self.target_of(class)))
    }

    /// Returns the classes with their own target.
    pub fn own_targets(&self) -> impl Iterator<Item = u16> + '_ {
        let own = self.classes.iter().enumerate().filter(|(_, class)| class.target.is_some());
        own.map(|(place, _)| place as u16)
    }

    /// Returns the number of the first endpoint of a class.
    pub fn first_endpoint_of(&self, class: u16) -> u16 {
        if self.classes.get(usize::from(class)).is_none_or(|class| class.target.is_none()) {
            return 0;
        }
        let before = self.own_targets().take_while(|own| *own < class);
        let count = |target: &TargetSpec| 1 + target.further_urls.len() as u16;
        before.fold(count(&self.target), |sum, own| sum + count(self.endpoint_of(own)))
    }

    /// Returns the target whose URLs are the endpoints of a class.
    fn endpoint_of(&self, class: u16) -> &TargetSpec {
        if self.shares_endpoint(class) { &self.target } else { self.requests_of(class) }
    }

    /// Returns the row with its endpoint number set.
    pub fn placed(&self, row: Attempt) -> Attempt {
        let first = self.first_endpoint_of(row.class);
        let row = self.endpoint_of(row.class).placed(row);
        Attempt { target: first + row.target, ..row }
    }

    /// Returns the number of stages of a chain; `None` without one.
    pub fn stages(&self) -> Option<usize> {
        self.chain.then_some(self.classes.len())
    }

    /// Checks the settings of a chain, and the targets of classes.
    pub(crate) fn validate_chain(&self) -> Result<(), SpecError> {
        for (i, class) in self.classes.iter().enumerate() {
            if let Some(target) = &class.target {
                target.validate().map_err(|e| e.at(&format!("classes.{i}.target")))?;
            }
        }
        if !self.chain {
            return Ok(());
        }
        let conflict = |path: String, what: &str| Err(SpecError::Conflict { path, what: what.into() });
        if self.classes.len() < 2 {
            return conflict("chain".into(), "the classes are the stages: give at least two");
        }
        if let Some(i) = self.classes.iter().position(|class| class.weight != 1.0) {
            return conflict(format!("classes.{i}.weight"), "a chain sends each class once; drop the weight");
        }
        let has_sessions = |class: u16| self.prompts_of(class).sessions.is_some();
        if (0..self.class_count() as u16).any(has_sessions) {
            return conflict("prompts.sessions".into(), "a chain is a session already; drop sessions");
        }
        if matches!(self.arrivals, ArrivalSpec::Trace { .. }) {
            return conflict("arrivals".into(), "a chain needs a generated process, such as poisson");
        }
        Ok(())
    }
}

/// Returns scheme and authority of a URL.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find('/').map_or(url.len(), |at| host + at);
    &url[..end]
}

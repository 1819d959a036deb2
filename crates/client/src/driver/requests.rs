//! Prepares what all requests of a class share: target, options, and the number of the first endpoint.

use std::sync::Arc;

use plimsoll_model::Attempt;
use plimsoll_wire::{QueueOptions, RequestOptions, Template, TemplateError, encode};
use plimsoll_workload::{ClassSpec, Scenario, TargetSpec, TensorEncoding};

use crate::auth::secret::Secret;
use crate::http1::request::RequestOpening;
use crate::target::{Target, TargetError};

/// Errors of preparing requests.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The body template can't be parsed.
    #[error("cannot read the body template: {0}")]
    Template(#[from] TemplateError),
}

#[derive(Clone, Debug)]
pub struct Endpoint {
    pub target: Arc<Target>,
    pub opening: RequestOpening,
}

/// The requests of one class.
#[derive(Clone, Debug)]
pub struct ClassRequests {
    pub spec: TargetSpec,
    pub options: RequestOptions,
    /// Number of the first endpoint of `spec`.
    first: u16,
}

impl ClassRequests {
    /// Returns the row with its endpoint and the requested output length.
    pub(crate) fn row(&self, row: Attempt) -> Attempt {
        let row = self.spec.placed(row);
        let asked_output = self.options.asked_output(row.asked_output);
        Attempt { target: self.first + row.target, asked_output, ..row }
    }
}

/// The requests of all classes, and the endpoints that they go to.
#[derive(Clone, Debug)]
pub struct RequestKinds {
    /// Endpoints, indexed by the endpoint number of an attempt.
    pub endpoints: Arc<[Endpoint]>,
    /// Requests of the scenario's target, then of each class.
    kinds: Arc<[ClassRequests]>,
}

impl RequestKinds {
    pub(crate) fn new(
        target: &TargetSpec,
        classes: &[ClassSpec],
        key: Option<&Secret>,
    ) -> Result<RequestKinds, RequestError> {
        let scenario = Scenario { target: target.clone(), classes: classes.to_vec(), ..Scenario::default() };
        let mut endpoints = Vec::new();
        let mut add = |spec: &TargetSpec, key: Option<&Secret>| -> Result<(), RequestError> {
            let path = encode::path(&options_of(spec)?);
            for url in spec.urls() {
                let target = Target::new(&spec.only(url), key.cloned())?;
                let opening = target.posts(&target.uri(&path)?);
                endpoints.push(Endpoint { target: Arc::new(target), opening });
            }
            Ok(())
        };
        add(target, key)?;
        for class in scenario.own_targets() {
            let is_shared = scenario.shares_endpoint(class);
            add(&scenario.target_of(class), key.filter(|_| is_shared))?;
        }
        let mut kinds = vec![ClassRequests { options: options_of(target)?, spec: target.clone(), first: 0 }];
        for (place, class) in (0u16..).zip(classes) {
            let spec = scenario.target_of(place);
            let queue = QueueOptions { priority: class.priority, timeout: class.queue_timeout };
            let options = RequestOptions { queue, ..options_of(&spec)? };
            kinds.push(ClassRequests { spec, options, first: scenario.first_endpoint_of(place) });
        }
        Ok(RequestKinds { endpoints: endpoints.into(), kinds: kinds.into() })
    }

    /// Returns the place of a class in a list of all kinds; a class past the end has the scenario's requests.
    pub(crate) fn place_of(&self, class: u16) -> usize {
        let place = 1 + usize::from(class);
        if place < self.kinds.len() { place } else { 0 }
    }

    pub(crate) fn of(&self, class: u16) -> &ClassRequests {
        &self.kinds[self.place_of(class)]
    }

    /// Returns a copy of the options of all kinds, in which a worker sets the fields that differ between requests.
    pub(crate) fn options(&self) -> Vec<RequestOptions> {
        self.kinds.iter().map(|kind| kind.options.clone()).collect()
    }
}

/// Returns the options that all requests of this target share.
pub(crate) fn options_of(spec: &TargetSpec) -> Result<RequestOptions, TemplateError> {
    Ok(RequestOptions {
        protocol: spec.protocol,
        model: spec.model.clone(),
        queue: QueueOptions::default(),
        version: spec.version.clone(),
        binary: spec.tensors.encoding == Some(TensorEncoding::Binary),
        stream: spec.stream,
        max_tokens: None,
        length_field: spec.length_field.clone(),
        ignore_eos: spec.ignore_eos,
        temperature: spec.temperature,
        extra: spec.extra.clone(),
        template: spec.body_template.as_deref().map(Template::parse).transpose()?,
        id: String::new(),
    })
}

//! Envoy's external processing (ext_proc) for an endpoint picker: [`request`] parses Envoy's messages, [`response`] encodes the replies.
//!
//! Field numbers: `envoy/service/ext_proc/v3/external_processor.proto`, `envoy/config/core/v3/base.proto`, `google/protobuf/struct.proto`. Names of
//! headers and metadata: Gateway API inference extension, Endpoint Picker Protocol 1.0.0.

pub mod request;
pub mod response;

pub use request::{
    BodyMode, BodyModes, ExtProcError, HeaderLines, HttpMessage, HttpPiece, ProcessingRequest,
};
pub use response::{Answers, BodyChange, Mutation};

pub const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
/// Service name for health checks.
pub const SERVICE: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

/// The header, and the key of the dynamic metadata, with the destination of a request: `ip:port`, or several with commas between them.
///
/// The first destination is preferred.
pub const ENDPOINT: &str = "x-gateway-destination-endpoint";
pub(crate) const NAMESPACE: &str = "envoy.lb";
/// Key of the endpoint that served the request, in the same namespace.
pub(crate) const SERVED: &str = "x-gateway-destination-endpoint-served";
/// The attribute with Envoy's own record of the serving endpoint, if its filter requests it (`response_attributes: [upstream.address]`).
pub(crate) const UPSTREAM: &str = "upstream.address";
/// Namespace and key of the endpoints that the picker may choose.
pub(crate) const SUBSET: (&str, &str) = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");

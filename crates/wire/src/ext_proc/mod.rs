//! Envoy's external processing as an endpoint picker speaks it: [`request`] is what Envoy says of a request on its way, [`response`] what it is told.
//!
//! Field numbers: `envoy/service/ext_proc/v3/external_processor.proto`, `envoy/config/core/v3/base.proto`, `google/protobuf/struct.proto`. Names of
//! headers and metadata: Gateway API inference extension, Endpoint Picker Protocol 1.0.0.

pub mod request;
pub mod response;

pub use request::{BodyMode, BodyModes, ExtProcError, HeaderLines, HttpPiece, ProcessingRequest, Said};
pub use response::{Answers, BodyChange, Mutation};

/// The path of the one method.
pub const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
/// The service, as a health check asks after it.
pub const SERVICE: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

/// The header, and the key of the dynamic metadata, that say where a request goes: `ip:port`, or several with commas between them, the first choice first.
pub const ENDPOINT: &str = "x-gateway-destination-endpoint";
pub(crate) const NAMESPACE: &str = "envoy.lb";
/// In the same namespace: who served it.
pub(crate) const SERVED: &str = "x-gateway-destination-endpoint-served";
/// The attribute by which Envoy itself says who served it, where its filter asks for that (`response_attributes: [upstream.address]`).
pub(crate) const UPSTREAM: &str = "upstream.address";
/// Where it is said who may be chosen at all.
pub(crate) const SUBSET: (&str, &str) = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");

//! Behaviour of the wire crate, in one binary.

#[path = "all/support.rs"]
mod support;

#[path = "all/captures.rs"]
mod captures;
#[path = "all/exposition.rs"]
mod exposition;
#[path = "all/ext_proc.rs"]
mod ext_proc;
#[path = "all/feeds.rs"]
mod feeds;
#[path = "all/generated_media.rs"]
mod generated_media;
#[path = "all/hostile.rs"]
mod hostile;
#[path = "all/http1.rs"]
mod http1;
#[path = "all/kserve.rs"]
mod kserve;
#[path = "all/kserve_grpc.rs"]
mod kserve_grpc;
#[path = "all/messages.rs"]
mod messages;
#[path = "all/nsys.rs"]
mod nsys;
#[path = "all/ollama.rs"]
mod ollama;
#[path = "all/otlp_metrics.rs"]
mod otlp_metrics;
#[path = "all/public.rs"]
mod public;
#[path = "all/replay.rs"]
mod replay;
#[path = "all/requests.rs"]
mod requests;
#[path = "all/scores.rs"]
mod scores;
#[path = "all/server.rs"]
mod server;
#[path = "all/streams.rs"]
mod streams;
#[path = "all/traces.rs"]
mod traces;
#[path = "all/transcriptions.rs"]
mod transcriptions;

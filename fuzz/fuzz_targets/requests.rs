//! What clients ask of the simulated engine, and what KServe servers say of their models.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_wire::kserve::metadata;
use plimsoll_wire::openai::server::{Endpoint, parse};

const ALL: [Endpoint; 4] =
    [Endpoint::Chat, Endpoint::Completions, Endpoint::Responses, Endpoint::Embeddings];

fuzz_target!(|bytes: &[u8]| {
    for endpoint in ALL {
        let _ = parse(endpoint, bytes, 1 << 20);
    }
    let _ = metadata::read_server(bytes);
    let _ = metadata::read_model(bytes);
    let _ = metadata::read_config(bytes);
    let _ = metadata::read_index(bytes);
});

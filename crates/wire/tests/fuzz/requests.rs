//! Clients' requests to the simulated engine, their media, body templates, and the model metadata of KServe servers.

use plimsoll_model::Protocol;
use plimsoll_wire::kserve::metadata;
use plimsoll_wire::kserve::server::{FrontModel, ServedInput, parse as parse_inference};
use plimsoll_wire::media::read_head;
use plimsoll_wire::server::{parse, parse_form};
use plimsoll_wire::template::Template;

pub fn check(bytes: &[u8]) {
    for endpoint in Protocol::ALL {
        let _ = parse(endpoint, bytes, 1 << 20);
    }
    let _ = parse_form("multipart/form-data; boundary=b", bytes, 1 << 20);
    let model = FrontModel {
        name: "m".into(),
        max_batch: 8,
        dynamic_batching: None,
        instances: 1,
        inputs: vec![ServedInput::usual()],
    };
    let _ = parse_inference(&model, bytes, None);
    // In the format of Triton's clients: a number of JSON bytes, and the tensors after them.
    if let [length, body @ ..] = bytes {
        let _ = parse_inference(&model, body, Some(&length.to_string()));
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = read_head(text);
        let _ = Template::parse(text);
    }
    let _ = metadata::read_server(bytes);
    let _ = metadata::read_model(bytes);
    let _ = metadata::read_config(bytes);
    let _ = metadata::read_index(bytes);
}

//! KServe v2, both sides: servers' metadata, sent requests, and the embedded engine's parser.

use plimsoll_model::outcome::How;
use plimsoll_model::{Broken, Datatype, Payload, Protocol, Span, Tensor};
use plimsoll_wire::kserve::metadata::{read_config, read_index, read_model, read_server};
use plimsoll_wire::kserve::{path, rows, server};
use plimsoll_wire::{EncodedRequest, QueueOptions, RequestOptions, encode};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{capture, made, read};

const MODEL: &str = "m";

fn model(max_batch: u32) -> server::FrontModel {
    declared(
        max_batch,
        vec![server::ServedInput { name: "A".into(), datatype: Datatype::Fp32, dims: vec![-1] }],
    )
}

fn declared(max_batch: u32, inputs: Vec<server::ServedInput>) -> server::FrontModel {
    server::FrontModel { name: MODEL.into(), max_batch, dynamic_batching: None, instances: 1, inputs }
}

fn options() -> RequestOptions {
    RequestOptions { protocol: Protocol::Kserve, model: Some(MODEL.into()), ..RequestOptions::default() }
}

fn sent(tensors: Vec<Tensor>, binary: bool) -> EncodedRequest {
    encode(&Payload::Tensors(tensors), &RequestOptions { binary, ..options() })
}

fn tensor(datatype: Datatype, shape: &[u32], drawn: &[u8]) -> Tensor {
    Tensor { name: "IN".into(), datatype, shape: shape.to_vec(), drawn: drawn.to_vec() }
}

fn parse(body: &[u8], header: Option<usize>, max_batch: u32) -> Result<server::InferRequest, (u16, String)> {
    let header = header.map(|n| n.to_string());
    server::parse(&model(max_batch), body, header.as_deref()).map_err(|bad| (bad.status, bad.message))
}

#[test]
fn servers_and_models_say_what_they_are() {
    let triton = read_server(&capture("triton/server_metadata").body).expect("readable");
    assert_eq!((triton.name.as_str(), triton.version.as_str(), triton.binary), ("triton", "2.51.0", true));
    let mlserver = read_server(&capture("mlserver/server_metadata").body).expect("readable");
    assert_eq!((mlserver.name.as_str(), mlserver.version.as_str()), ("mlserver", "1.7.1"));
    assert!(!mlserver.binary);
    let model = read_model(&capture("triton/model_metadata").body).expect("readable");
    assert_eq!((model.name.as_str(), model.platform.as_str()), ("addsub", "python"));
    assert_eq!(model.versions, ["1"]);
    let inputs: Vec<_> = model.inputs.iter().map(|i| (i.name.as_str(), i.datatype, &i.shape[..])).collect();
    assert_eq!(inputs, [("A", Datatype::Fp32, &[-1, 4][..]), ("B", Datatype::Fp32, &[-1, 4])]);
    // These two report no inputs, and one reports no versions.
    for silent in ["kserve/model_metadata", "mlserver/model_metadata"] {
        assert!(read_model(&capture(silent).body).expect("readable").inputs.is_empty(), "{silent}");
    }
    assert_eq!(read_config(&capture("triton/model_config").body).map(|c| c.max_batch), Some(8));
    let index = read_index(&capture("triton/repository_index").body).expect("a list");
    assert_eq!(index, ["addsub", "slowid", "tokens"]);
}

#[test]
fn what_is_no_metadata_is_refused_in_words() {
    for body in ["", "[]", "{}", "{\"name\":7}", "<html>"] {
        assert!(read_server(body.as_bytes()).is_err() && read_model(body.as_bytes()).is_err(), "{body}");
    }
    let odd = r#"{"name":"m","inputs":[{"name":"A","datatype":"FP8","shape":[1]}]}"#;
    assert!(read_model(odd.as_bytes()).expect_err("an unknown type").contains("FP8"));
    let many =
        json!({"name": "m", "inputs": vec![json!({"name": "A", "datatype": "FP32", "shape": [1]}); 300]});
    assert!(read_model(many.to_string().as_bytes()).is_err());
}

/// Elements computed manually: 0, 128/256 = ½, 255/256, and 129 mod 128 = 1.
#[test]
fn elements_follow_from_their_bytes() {
    let spelt = |datatype| {
        let encoded = sent(vec![tensor(datatype, &[1, 4], &[0, 128, 255, 129])], false);
        assert_eq!((encoded.content_type, encoded.header_length), ("application/json", None));
        let body: Value = serde_json::from_slice(&encoded.body).expect("JSON");
        body["inputs"][0]["data"].clone()
    };
    assert_eq!(spelt(Datatype::Fp32), json!([0, 0.5, 0.99609375, 0.50390625]));
    assert_eq!(spelt(Datatype::Int64), json!([0, 0, 127, 1]));
    assert_eq!(spelt(Datatype::Bool), json!([false, false, true, true]));
    assert_eq!(spelt(Datatype::Bytes), json!(["load", "load", "log", "line"]));

    let raw = |datatype| {
        let encoded = sent(vec![tensor(datatype, &[1, 4], &[0, 128, 255, 129])], true);
        assert_eq!(encoded.content_type, "application/octet-stream");
        encoded.body[encoded.header_length.expect("told")..].to_vec()
    };
    // IEEE 754: ½ is 3f000000, 255/256 is 3f7f0000, 129/256 is 3f010000; in half precision 3800, 3bf8, 3808.
    assert_eq!(
        raw(Datatype::Fp32),
        [0u32, 0x3f00_0000, 0x3f7f_0000, 0x3f01_0000].map(u32::to_le_bytes).concat()
    );
    assert_eq!(raw(Datatype::Fp16), [0u16, 0x3800, 0x3bf8, 0x3808].map(u16::to_le_bytes).concat());
    assert_eq!(raw(Datatype::Bf16), [0u16, 0x3f00, 0x3f7f, 0x3f01].map(u16::to_le_bytes).concat());
    assert_eq!(raw(Datatype::Int16), [0, 0, 0, 0, 127, 0, 1, 0]);
    assert_eq!(raw(Datatype::Bytes)[..8], *b"\x04\0\0\0load");
}

#[test]
fn the_path_names_model_and_version() {
    assert_eq!(sent(Vec::new(), false).path, "/models/m/infer");
    assert_eq!(path("m", Some("3")), "/models/m/versions/3/infer");
    assert_eq!(rows(r#"{"inputs":[{"name":"A","shape":[5,2],"datatype":"FP32","data":[]}]}"#), Ok(5));
    assert!(rows("{}").is_err());
}

#[test]
fn answers_are_told_from_errors_under_a_good_status() {
    let how = |content: &str, body: &[u8]| read(Protocol::Kserve, &made(content, body)).verdict;
    assert_eq!(how("application/json", br#"{"error":"no"}"#).outcome.how, How::StreamError);
    assert_eq!(how("application/json", br#"{"model_name":"m"}"#).outcome.how, How::Malformed);
    assert_eq!(how("application/json", br#"{"outputs":[]}"#).answer.broken, Some(Broken::Empty));
    assert_eq!(
        how("application/json", br#"{"outputs":[{"name":"A","shape":[1,0],"data":[]}]}"#).answer.broken,
        Some(Broken::Empty)
    );
    let mut binary = capture("triton/infer_binary_output");
    binary.body.pop();
    assert_eq!(read(Protocol::Kserve, &binary).verdict.outcome.how, How::Malformed);
    binary.body.truncate(100);
    assert_eq!(read(Protocol::Kserve, &binary).verdict.outcome.how, How::Malformed);
}

/// Statuses and messages equal Triton 2.51's for an equal request.
#[test]
fn the_engine_refuses_as_triton_does() {
    let one = |shape: Value, data: Value| {
        json!({"inputs": [{"name": "A", "shape": shape, "datatype": "FP32", "data": data}]}).to_string()
    };
    let asked = parse(one(json!([2, 2]), json!([[1, 2.5], [3, 4]])).as_bytes(), None, 8).expect("whole");
    assert_eq!(asked.items, 2);
    let refused = |body: &str| parse(body.as_bytes(), None, 8).expect_err(body);
    assert_eq!(refused("{\"inputs\":[").0, 500);
    assert!(refused("{}").1.starts_with("Unable to parse 'inputs'"));
    assert!(refused("{\"inputs\":[]}").1.contains("expected 1 inputs but got 0 inputs for model 'm'"));
    let short = refused(&one(json!([2, 2]), json!([1, 2, 3])));
    assert_eq!(
        short,
        (500, "Unable to parse 'data': Shape does not match true shape of 'data' field".into())
    );
    let large = refused(&one(json!([9, 1]), json!([0, 0, 0, 0, 0, 0, 0, 0, 0])));
    assert_eq!(
        large,
        (400, "[request id: <id_unknown>] inference request batch-size must be <= 8 for 'm'".into())
    );
    assert_eq!(refused(&one(json!([4_294_967_296_u64, 4_294_967_296_u64]), json!([1]))).0, 400);
    // Commas and brackets inside strings are no elements.
    let text = r#"{"inputs":[{"name":"A","shape":[1,2],"datatype":"BYTES","data":["a,[\\\"b",",]"]}]}"#;
    let strings =
        declared(8, vec![server::ServedInput { name: "A".into(), datatype: Datatype::Bytes, dims: vec![2] }]);
    assert_eq!(server::parse(&strings, text.as_bytes(), None).expect("two strings").items, 1);
}

/// Fifty requests to a real Triton, right and wrong, with its answers: an engine with equal metadata gives equal answers.
#[test]
fn what_triton_refuses_is_refused_in_its_words() {
    let of = |text| server::ServedInput::parse(text).expect("an input");
    let lockstep = server::FrontModel {
        name: "lockstep".into(),
        ..declared(16, vec![of("PIXELS:UINT8:8"), of("SCALE:FP32:-1")])
    };
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/triton/infer_checks.jsonl");
    let lines = std::fs::read_to_string(path).expect("recorded");
    assert_eq!(lines.lines().count(), 50);
    for line in lines.lines() {
        let case: Value = serde_json::from_str(line).expect("JSON");
        // Its output has another name.
        let request = case["request"].to_string().replace("\"SUM\"", "\"OUTPUT\"");
        let said = match server::parse(&lockstep, request.as_bytes(), None) {
            Ok(asked) => (200, format!("{}", asked.items)),
            Err(refused) => (u64::from(refused.status), refused.message),
        };
        let want = match case["answer"]["error"].as_str() {
            Some(error) => error.to_owned(),
            None => case["answer"]["outputs"][0]["shape"][0].to_string(),
        };
        assert_eq!(said, (case["status"].as_u64().expect("a status"), want), "{request}");
    }
}

#[test]
fn declared_inputs_are_read_or_refused_in_a_line() {
    let of = |text| server::ServedInput::parse(text);
    let picture = of("PIXELS:UINT8:3x224x224").expect("a picture");
    assert_eq!(
        (picture.name.as_str(), picture.datatype, &picture.dims[..]),
        ("PIXELS", Datatype::Uint8, &[3, 224, 224][..])
    );
    assert_eq!(of("a:b:FP32:-1").expect("a colon in its name").name, "a:b");
    for wrong in ["", "A", "A:FP32", ":FP32:4", "A:FP32:", "A:FP32:0", "A:FP32:-2", "A:FP32:4x", "A:FLOAT:4"]
    {
        let why = of(wrong).expect_err(wrong);
        assert!(why.contains("NAME:TYPE:DIMS") || why.contains("there are BOOL, UINT8"), "{wrong}: {why}");
    }
}

#[test]
fn priorities_and_timeouts_are_read_and_sequences_ignored() {
    let body = json!({"id": "a", "parameters": {"priority": 2, "timeout": 30_000, "sequence_id": 7, "sequence_start": true},
        "inputs": [{"name": "A", "shape": [1, 1], "datatype": "FP32", "data": [1]}]});
    let asked = parse(body.to_string().as_bytes(), None, 8).expect("whole");
    assert_eq!((asked.id.as_deref(), asked.priority, asked.timeout_us), (Some("a"), 2, Some(30_000)));
    let answer: Value = serde_json::from_slice(&server::answer(&asked, &model(8))).expect("JSON");
    assert_eq!(answer["id"], "a");
    assert_eq!(answer["outputs"][0]["shape"], json!([1, 1]));
}

fn datatypes() -> impl Strategy<Value = Datatype> {
    proptest::sample::select(&Datatype::ALL[..])
}

proptest! {
    /// The engine accepts the client's requests in either encoding and counts their rows; its answer is parsed back.
    #[test]
    fn both_sides_agree(
        datatype in datatypes(),
        rows in 1u32..20,
        row in 1u32..9,
        bytes in proptest::collection::vec(any::<u8>(), 160),
        binary in any::<bool>(),
    ) {
        let drawn = &bytes[..(rows * row) as usize % 161];
        prop_assume!(drawn.len() == (rows * row) as usize);
        let encoded = sent(vec![tensor(datatype, &[rows, row], drawn)], binary);
        let own = server::ServedInput { name: "IN".into(), datatype, dims: vec![i64::from(row)] };
        let header = encoded.header_length.map(|n| n.to_string());
        let asked = server::parse(&declared(32, vec![own]), &encoded.body, header.as_deref()).expect("taken");
        prop_assert_eq!(asked.items, rows);
        let answer = read(Protocol::Kserve, &made("application/json", server::answer(&asked, &model(32)).to_vec()));
        prop_assert_eq!((answer.word(), answer.verdict.outcome.how), ("B".to_owned(), How::Finished));
    }

    /// Foreign bytes are refused or read, never a panic; however a good request is cut or bent.
    #[test]
    fn bent_requests_never_panic(at in 0usize..400, byte in any::<u8>(), cut in 0usize..400, header in 0usize..500) {
        let mut body = sent(vec![tensor(Datatype::Fp32, &[2, 8], &[7; 16])], true).body.to_vec();
        let length = body.len();
        body[at % length] = byte;
        let _ = parse(&body, Some(header), 8);
        let _ = parse(&body[..cut.min(length)], Some(header.min(cut)), 8);
        let mut text = sent(vec![tensor(Datatype::Int8, &[2, 8], &[7; 16])], false).body.to_vec();
        let length = text.len();
        text[at % length] = byte;
        let _ = parse(&text, None, 8);
        let _ = parse(&text[..cut.min(length)], None, 0);
    }

    #[test]
    fn bytes_that_mean_nothing_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes, None, 8);
        let _ = (read_server(&bytes), read_model(&bytes), read_config(&bytes), read_index(&bytes));
        for content in ["application/json", "application/octet-stream", ""] {
            let mut answer = made(content, bytes.clone());
            answer.head.json_length = Some(bytes.len() as u32 / 2);
            let _ = read(Protocol::Kserve, &answer);
        }
    }
}

/// Triton's request parameters (`docs/protocol/extension_schedule_policy.md`): `priority`, and `timeout` in microseconds.
#[test]
fn a_place_in_the_queue_is_asked_for_in_the_parameters() {
    let asked = |queue: QueueOptions, binary: bool| {
        let options = RequestOptions { queue, binary, ..options() };
        let rows = Tensor { name: "A".into(), ..tensor(Datatype::Fp32, &[2, 1], &[1, 2]) };
        encode(&Payload::Tensors(vec![rows]), &options)
    };
    let wish = QueueOptions { priority: Some(2), timeout: Some(Span(20_000_500)) };
    for binary in [false, true] {
        let sent = asked(wish, binary);
        let json: Value =
            serde_json::from_slice(&sent.body[..sent.header_length.unwrap_or(sent.body.len())]).unwrap();
        // Not a part of a microsecond less than was meant.
        assert_eq!(json["parameters"], json!({"priority": 2, "timeout": 20_001}));
        let read = parse(&sent.body, sent.header_length, 8).unwrap();
        assert_eq!((read.items, read.priority, read.timeout_us), (2, 2, Some(20_001)));
    }
    let nothing: Value = serde_json::from_slice(&asked(QueueOptions::default(), false).body).unwrap();
    assert_eq!(nothing["parameters"], Value::Null);
}

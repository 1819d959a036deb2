//! KServe v2 over gRPC: sent bytes equal a foreign encoder's, and answers of Triton 2.51 are read at every cut.

use std::path::Path;

use plimsoll_model::outcome::{By, How};
use plimsoll_model::{Broken, Datatype, Outcome, Payload, Protocol, Span, Tensor, TokensRule};
use plimsoll_wire::kserve::grpc::{self, Method};
use plimsoll_wire::{DecodedAnswer, DecodedEvent, Decoder, Head, QueueOptions, RequestOptions, encode};

/// Bytes of Triton's, or of its Python client's own encoder (`infer.request`).
fn recorded(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/triton/grpc").join(name);
    std::fs::read(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

fn framed(message: &[u8]) -> Vec<u8> {
    plimsoll_wire::grpc::framed(message)
}

fn head(fields: &[(&str, &str)]) -> Head {
    let kind = [("content-type", "application/grpc")];
    Head::read(200, kind.iter().chain(fields).map(|(name, value)| (*name, value.as_bytes())), 0)
}

/// Status OK in the trailers.
const OK: &[(&str, &str)] = &[("grpc-status", "0"), ("grpc-message", "")];

/// Returns the result of a call: its bytes in these pieces, its trailers, and whether its stream ended as HTTP/2 requires.
fn read<'a>(
    stream: bool,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    trailers: Option<&[(&str, &str)]>,
) -> (Vec<DecodedEvent>, DecodedAnswer) {
    let mut decoder = Decoder::with_head(Protocol::KserveGrpc, stream, head(&[]), true);
    let mut events = Vec::new();
    pieces.into_iter().for_each(|piece| decoder.feed(piece, &mut events));
    if let Some(trailers) = trailers {
        decoder.trailers(head(trailers));
    }
    let verdict = decoder.finish(true);
    events.extend(verdict.tail);
    (events, verdict)
}

fn ended(verdict: &DecodedAnswer) -> (Outcome, &str) {
    (verdict.outcome, verdict.answer.error.as_deref().unwrap_or_default())
}

#[test]
fn a_request_is_what_a_foreign_encoder_writes() {
    let tensor = |name: &str, datatype, shape: &[u32], drawn: Vec<u8>| Tensor {
        name: name.into(),
        datatype,
        shape: shape.to_vec(),
        drawn,
    };
    let tensors = vec![
        tensor("PIXELS", Datatype::Uint8, &[2, 8], (0..16).collect()),
        tensor("SCALE", Datatype::Fp32, &[2, 1], vec![0, 128]),
        tensor("WORD", Datatype::Bytes, &[200], vec![0; 200]),
    ];
    let options = RequestOptions {
        protocol: Protocol::KserveGrpc,
        model: Some("lockstep".into()),
        version: Some("1".into()),
        queue: QueueOptions { timeout: Some(Span::from_secs(5)), ..QueueOptions::default() },
        ..RequestOptions::default()
    };
    let encoded = encode(&Payload::Tensors(tensors), &options);
    assert_eq!(encoded.path, "/inference.GRPCInferenceService/ModelInfer");
    assert_eq!((encoded.content_type, encoded.header_length), ("application/grpc", None));
    assert_eq!(encoded.body, framed(&recorded("infer.request")));
}

#[test]
fn methods_have_their_paths() {
    for method in [Method::ModelInfer, Method::ModelStreamInfer, Method::ServerReady, Method::RepositoryIndex]
    {
        assert_eq!(Method::at(&method.path()), Some(method));
    }
    assert_eq!(Method::at("/inference.GRPCInferenceService/"), None);
    assert_eq!(Method::at("/grpc.health.v1.Health/Check"), None);
}

#[test]
fn servers_and_models_say_what_they_are() {
    assert_eq!(grpc::read_ready(&recorded("server_ready")), Ok(true));
    assert_eq!(grpc::read_ready(&[]), Ok(false));
    let server = grpc::read_server(&recorded("server_metadata")).expect("readable");
    assert_eq!((server.name.as_str(), server.version.as_str()), ("triton", "2.51.0"));
    let model = grpc::read_model(&recorded("lockstep_metadata")).expect("readable");
    assert_eq!(
        (model.name.as_str(), model.platform.as_str(), model.versions),
        ("lockstep", "python", vec!["1".to_owned()])
    );
    let inputs: Vec<_> = model.inputs.iter().map(|i| (i.name.as_str(), i.datatype, &i.shape[..])).collect();
    assert_eq!(inputs, [("PIXELS", Datatype::Uint8, &[-1, 8][..]), ("SCALE", Datatype::Fp32, &[-1, -1])]);
    let config = |name| grpc::read_config(&recorded(name)).map(|config| (config.max_batch, config.decoupled));
    assert_eq!((config("lockstep_config"), config("drip_config")), (Ok((16, false)), Ok((0, true))));
    assert_eq!(
        grpc::read_index(&recorded("repository_index")),
        Ok(vec!["drip".to_owned(), "lockstep".to_owned()])
    );
}

/// Triton's bytes have an equal meaning at every cut.
#[test]
fn answers_are_read_at_every_cut() {
    let unary = framed(&recorded("infer"));
    let calls = [(false, unary), (true, recorded("stream")), (true, recorded("stream_error"))];
    for (stream, bytes) in calls {
        let whole = read(stream, [&bytes[..]], Some(OK));
        for at in 0..=bytes.len() {
            let (first, rest) = bytes.split_at(at);
            assert_eq!(read(stream, [first, rest], Some(OK)), whole, "cut at {at}");
        }
        assert_eq!(read(stream, bytes.chunks(1), Some(OK)), whole, "byte by byte");
    }
}

#[test]
fn a_unary_answer_is_one_event_and_a_stream_one_for_each_response() {
    let word =
        |events: &[DecodedEvent]| events.iter().map(|event| event.kind.name()).collect::<Vec<_>>().join(" ");
    let (events, verdict) = read(false, [&framed(&recorded("infer"))[..]], Some(OK));
    assert_eq!(
        (word(&events).as_str(), verdict.outcome, verdict.answer.broken),
        ("body", Outcome::FINISHED, None)
    );

    let (events, verdict) = read(true, [&recorded("stream")[..]], Some(OK));
    assert_eq!(word(&events), "content content content content content content finish");
    assert_eq!((verdict.outcome, verdict.answer.broken), (Outcome::FINISHED, None));
    assert_eq!((verdict.answer.tokens.output, verdict.answer.tokens.rule), (Some(6), TokensRule::UsageTotal));
    assert_eq!(verdict.answer.text.as_deref(), Some("drop 0 drop 1 drop 2 drop 3 drop 4 drop 5 "));

    // It answers twice and breaks off: the call ends with status OK, and the error is in a message.
    let (events, verdict) = read(true, [&recorded("stream_error")[..]], Some(OK));
    assert_eq!(word(&events), "content content error");
    assert_eq!(verdict.outcome, Outcome::new(How::StreamError, By::Server, true));
    assert!(ended(&verdict).1.contains("it breaks off"), "{verdict:?}");
}

#[test]
fn every_status_has_its_outcome() {
    for (code, how, retryable, name) in [
        ("1", How::ServerError, true, "CANCELLED"),
        ("2", How::ServerError, true, "UNKNOWN"),
        ("3", How::ClientError, false, "INVALID_ARGUMENT"),
        ("4", How::Timeout, true, "DEADLINE_EXCEEDED"),
        ("5", How::ClientError, false, "NOT_FOUND"),
        ("8", How::Shed, true, "RESOURCE_EXHAUSTED"),
        ("12", How::ClientError, false, "UNIMPLEMENTED"),
        ("13", How::ServerError, true, "INTERNAL"),
        ("14", How::Shed, true, "UNAVAILABLE"),
        ("16", How::ClientError, false, "UNAUTHENTICATED"),
        ("99", How::ServerError, true, "status 99"),
        ("x", How::ServerError, true, "UNKNOWN"),
    ] {
        let trailers = [("grpc-message", "no%20more%E2%80%A6"), ("grpc-status", code)];
        let (_, verdict) = read(false, [], Some(&trailers));
        assert_eq!(
            ended(&verdict),
            (Outcome::new(how, By::Server, retryable), &*format!("{name}: no more…"))
        );
        // The same in a head that is all of the answer.
        let verdict = Decoder::with_head(Protocol::KserveGrpc, false, head(&trailers), false).finish(true);
        assert_eq!((verdict.outcome.how, verdict.answer.status), (how, Some(200)));
    }
    // Once responses have come it is an error inside of a stream.
    let stream = recorded("stream");
    let (_, verdict) = read(true, [&stream[..110]], Some(&[("grpc-status", "14")]));
    assert_eq!(ended(&verdict), (Outcome::new(How::StreamError, By::Server, true), "UNAVAILABLE"));
}

#[test]
fn what_is_cut_off_or_no_call_is_told() {
    let (unary, stream) = (framed(&recorded("infer")), recorded("stream"));
    let of = |is_stream, bytes: &[u8], trailers| read(is_stream, [bytes], trailers).1;
    let cut = |by| Outcome::new(How::Truncated, by, true);
    // All the messages, and no trailers.
    assert_eq!(of(true, &stream, None).outcome, cut(By::Server));
    assert_eq!(of(false, &unary, None).outcome, cut(By::Server));
    // Inside of a message, or without one, and yet OK.
    let malformed =
        |verdict: &DecodedAnswer| verdict.outcome == Outcome::new(How::Malformed, By::Server, false);
    for (is_stream, bytes) in [(false, &unary[..20]), (true, &stream[..100]), (false, &[][..])] {
        assert!(malformed(&of(is_stream, bytes, Some(OK))), "{}", bytes.len());
    }
    // An empty stream that is OK answers nothing.
    let empty = of(true, &[], Some(OK));
    assert_eq!((empty.outcome.how, empty.answer.broken), (How::StreamError, Some(Broken::Empty)));
    // Two responses to one unary call, a compressed one, one that announces two gibibytes, and bytes that are not a message.
    let twice = [&unary[..], &unary].concat();
    let [compressed, huge, odd] = [&b"\x01\0\0\0\x01x"[..], b"\0\x80\0\0\0", b"\0\0\0\0\x02\xff\xff"];
    for (bytes, why) in
        [(&twice[..], "second"), (compressed, "compressed"), (huge, "2147483648"), (odd, "expected")]
    {
        let verdict = of(false, bytes, Some(OK));
        assert!(malformed(&verdict) && ended(&verdict).1.contains(why), "{why}: {verdict:?}");
    }
    // The connection broke: before the first byte it is a reset, inside of a stream it is cut.
    for (bytes, how) in [(&[][..], How::Reset), (&stream[..110], How::Truncated)] {
        let mut decoder = Decoder::with_head(Protocol::KserveGrpc, true, head(&[]), false);
        decoder.feed(bytes, &mut Vec::new());
        assert_eq!(decoder.finish(false).outcome, Outcome::new(how, By::Network, true));
    }
    // Something else answers.
    let page = Head { status: 200, content_type: Some("text/html".into()), ..Head::default() };
    let verdict = Decoder::with_head(Protocol::KserveGrpc, false, page, false).finish(true);
    assert!(malformed(&verdict) && ended(&verdict).1.contains("text/html"));
    let busy = Head { status: 503, ..Head::default() };
    assert_eq!(
        Decoder::with_head(Protocol::KserveGrpc, false, busy, false).finish(true).outcome.how,
        How::Shed
    );
}

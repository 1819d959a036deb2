//! A scripted proxy that uses the picker: an HTTP/2 client of hyper and a minimal protobuf, which shares no code with
//! the gateway's.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::client::conn::http2;
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use plimsoll_gateway::{Gateway, GatewaySpec, PickerSpec};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::kit::{Mock, gateway};

pub const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// Returns a gateway with a picker in front of these replicas.
pub fn picking(mocks: &[&Mock], change: impl FnOnce(&mut GatewaySpec)) -> Gateway {
    gateway(mocks, |spec| {
        spec.picker = Some(PickerSpec::new(([127, 0, 0, 1], 0).into()));
        change(spec);
    })
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Returns an encoded field of bytes.
pub fn field(number: usize, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    [varint(number << 3 | 2), varint(value.len()), value.to_vec()].concat()
}

/// Returns an encoded field with a number.
pub fn number(field: usize, value: usize) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// Returns the bytes of the last field with this number.
pub fn inside(message: &[u8], wanted: usize) -> Option<Vec<u8>> {
    all_inside(message, wanted).pop()
}

/// Returns the bytes of all fields with this number; an integer is reduced to its low byte.
pub fn all_inside(mut message: &[u8], wanted: usize) -> Vec<Vec<u8>> {
    let take = |message: &mut &[u8]| {
        let (mut value, mut shift) = (0usize, 0);
        loop {
            let (first, rest) = message.split_first().expect("a number");
            *message = rest;
            value |= usize::from(first & 0x7f) << shift;
            shift += 7;
            if first & 0x80 == 0 {
                return value;
            }
        }
    };
    let mut found = Vec::new();
    while !message.is_empty() {
        let tag = take(&mut message);
        let held = match tag & 7 {
            0 => take(&mut message).to_le_bytes().to_vec(),
            2 => {
                let len = take(&mut message);
                let (held, rest) = message.split_at(len);
                message = rest;
                held.to_vec()
            }
            other => panic!("wire type {other}"),
        };
        if tag >> 3 == wanted {
            found.push(held);
        }
    }
    found
}

/// Body modes with Envoy's numbers.
pub const NONE: usize = 0;
pub const STREAMED: usize = 1;
pub const BUFFERED: usize = 2;
pub const DUPLEX: usize = 4;

/// The head of a request, which is the first message of a call.
#[derive(Clone)]
pub struct Ask {
    pub headers: Vec<(String, String)>,
    pub end: bool,
    pub modes: (usize, usize),
    pub subset: Option<Vec<String>>,
}

impl Ask {
    pub fn new(modes: (usize, usize)) -> Ask {
        let headers =
            [(":method", "POST"), (":path", "/v1/completions"), ("content-type", "application/json")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ask { headers: headers.to_vec(), end: false, modes, subset: None }
    }

    pub fn with(mut self, name: &str, value: &str) -> Ask {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn among(mut self, subset: &[String]) -> Ask {
        self.subset = Some(subset.to_vec());
        self
    }

    pub fn message(&self) -> Vec<u8> {
        let modes = [number(1, self.modes.0), number(2, self.modes.1)].concat();
        let subset = self.subset.as_ref().map_or(Vec::new(), |subset| {
            let list: Vec<u8> = subset.iter().flat_map(|one| field(1, field(3, one))).collect();
            let key = "x-gateway-destination-endpoint-subset";
            let entry = [field(1, key), field(2, field(6, list))].concat();
            let hint = [field(1, "envoy.lb.subset_hint"), field(2, field(1, entry))].concat();
            field(8, field(1, hint))
        });
        [field(2, lines(&self.headers, self.end)), subset, field(11, modes)].concat()
    }
}

fn lines(headers: &[(String, String)], end: bool) -> Vec<u8> {
    let line = |(name, value): &(String, String)| field(1, [field(1, name), field(3, value)].concat());
    let all: Vec<u8> = headers.iter().flat_map(line).collect();
    [field(1, all), if end { number(3, 1) } else { Vec::new() }].concat()
}

/// Returns a piece of the request's body (4) or of the response's body (5).
pub fn piece(kind: usize, body: &[u8], end: bool) -> Vec<u8> {
    field(kind, [field(1, body), if end { number(2, 1) } else { Vec::new() }].concat())
}

/// Returns a response head. `served` is the address that Envoy reports as the actual replica.
pub fn response(status: u16, headers: &[(&str, &str)], end: bool, served: Option<&str>) -> Vec<u8> {
    let status = [(":status".to_owned(), status.to_string())];
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let headers: Vec<(String, String)> = status.into_iter().chain(headers).collect();
    let by = served.map_or(Vec::new(), |served| {
        let entry = [field(1, "upstream.address"), field(2, field(3, served))].concat();
        field(9, [field(1, "envoy.filters.http.ext_proc"), field(2, field(1, entry))].concat())
    });
    [field(3, lines(&headers, end)), by].concat()
}

/// A reply to the proxy.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Field number of the reply.
    pub kind: usize,
    pub set: BTreeMap<String, String>,
    pub remove: Vec<String>,
    /// Endpoints in the metadata.
    pub to: Option<String>,
    pub status: Option<u16>,
    /// Replacement body, or the body for the client.
    pub body: Option<String>,
    /// Set if this is the last piece of a full-duplex stream.
    pub end: bool,
}

impl Told {
    fn read(message: &[u8]) -> Told {
        let kind = (1..=7).find(|kind| inside(message, *kind).is_some()).expect("an answer");
        let part = inside(message, kind).expect("it was seen");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        let mut told = Told { kind, ..Told::default() };
        let mutation = if kind == 7 {
            let status = inside(&inside(&part, 1).expect("a status"), 1).expect("a number");
            told.status = Some(u16::from_le_bytes([status[0], status[1]]));
            told.body = inside(&part, 3).map(text);
            inside(&part, 2)
        } else {
            let common = inside(&part, 1).unwrap_or_default();
            let change = inside(&common, 3).unwrap_or_default();
            told.body = inside(&change, 1).map(text);
            if let Some(streamed) = inside(&change, 3) {
                told.body = Some(inside(&streamed, 1).map_or(String::new(), text));
                told.end = inside(&streamed, 2).is_some();
            }
            inside(&common, 2)
        };
        let mutation = mutation.unwrap_or_default();
        for option in all_inside(&mutation, 1) {
            let line = inside(&option, 1).expect("a header");
            let name = text(inside(&line, 1).expect("a name"));
            told.set.insert(name, text(inside(&line, 3).unwrap_or_default()));
        }
        told.remove = all_inside(&mutation, 2).into_iter().map(text).collect();
        told.to = inside(message, 8).map(|fields| {
            let entry = inside(&fields, 1).expect("a namespace");
            assert_eq!(inside(&entry, 1).map(text).as_deref(), Some("envoy.lb"));
            let inner = inside(&inside(&inside(&entry, 2).expect("a value"), 5).expect("a struct"), 1);
            let inner = inner.expect("a field");
            assert_eq!(inside(&inner, 1).map(text).as_deref(), Some("x-gateway-destination-endpoint"));
            text(inside(&inside(&inner, 2).expect("a value"), 3).expect("a text"))
        });
        told
    }

    /// Returns the first endpoint, which header and metadata must both contain.
    pub fn first(&self) -> &str {
        let to = self.to.as_deref().unwrap_or_else(|| panic!("nobody is named: {self:?}"));
        // A reply to trailers cannot contain headers.
        if self.kind != 5 {
            assert_eq!(self.set.get("x-gateway-destination-endpoint").map(String::as_str), Some(to));
        }
        to.split(',').next().expect("one")
    }
}

enum Heard {
    Message(Vec<u8>),
    End(String),
}

/// A call in progress. A drop resets it.
pub struct Call {
    to: Option<UnboundedSender<Bytes>>,
    from: Receiver<Heard>,
    end: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Call {
    pub fn begin(picker: SocketAddr, path: &str) -> Call {
        let (to, said) = unbounded_channel();
        let (tell, from) = channel();
        let (end, ended) = tokio::sync::oneshot::channel();
        let path = path.to_owned();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async move {
                tokio::select! {
                    () = run(picker, path, said, tell) => {}
                    _ = ended => {}
                }
                // The connection has this time to send the reset before it closes.
                tokio::time::sleep(Duration::from_millis(5)).await;
            });
        });
        Call { to: Some(to), from, end: Some(end), thread: Some(thread) }
    }

    /// Sends the messages of a request. Returns the call and the replies until an endpoint or an immediate response.
    pub fn ask(gateway: &Gateway, ask: &Ask, body: &str) -> (Call, Vec<Told>) {
        let call = Call::begin(gateway.picker.expect("asked for"), PROCESS);
        call.say(&ask.message());
        let mut told = Vec::new();
        if !ask.end && ask.modes.0 == BUFFERED {
            told.push(call.hear());
        }
        if !ask.end && matches!(ask.modes.0, BUFFERED | DUPLEX) {
            call.say(&piece(4, body.as_bytes(), true));
        }
        told.push(call.hear());
        if ask.modes.0 == DUPLEX && !ask.end && told[0].kind != 7 {
            let mut back = String::new();
            loop {
                let one = call.hear();
                back.push_str(one.body.as_deref().expect("a piece"));
                let end = one.end;
                told.push(one);
                if end {
                    break;
                }
            }
            assert_eq!(back, body, "it goes on as it came");
        }
        (call, told)
    }

    pub fn say(&self, message: &[u8]) {
        let framed = [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
        self.say_bytes(&framed);
    }

    pub fn say_bytes(&self, bytes: &[u8]) {
        let _ = self.to.as_ref().expect("it has not said all").send(Bytes::copy_from_slice(bytes));
    }

    /// Ends the stream of messages.
    pub fn said_all(&mut self) {
        self.to = None;
    }

    pub fn hear(&self) -> Told {
        Told::read(&self.hear_bytes())
    }

    pub fn hear_bytes(&self) -> Vec<u8> {
        match self.from.recv_timeout(Duration::from_secs(60)).expect("an answer within a minute") {
            Heard::Message(message) => message,
            Heard::End(end) => panic!("it ended: {end}"),
        }
    }

    /// Returns the gRPC status code and message of the call.
    pub fn ended(&self) -> String {
        loop {
            match self.from.recv_timeout(Duration::from_secs(60)).expect("an end within a minute") {
                Heard::End(end) => return end,
                Heard::Message(_) => {}
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let _ = self.end.take().map(|end| end.send(()));
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

async fn run(picker: SocketAddr, path: String, said: UnboundedReceiver<Bytes>, tell: Sender<Heard>) {
    let socket = tokio::net::TcpStream::connect(picker).await.expect("it listens");
    let (mut http, connection) =
        http2::handshake(Local, TokioIo::new(socket)).await.expect("it speaks HTTP/2");
    tokio::task::spawn_local(async move {
        let _ = connection.await;
    });
    let request = Request::post(format!("http://picker{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Saying(said))
        .expect("a request");
    let Ok(response) = http.send_request(request).await else {
        let _ = tell.send(Heard::End("refused".to_owned()));
        return;
    };
    let (parts, mut body) = response.into_parts();
    let (mut bytes, mut end) = (Vec::new(), parts.status.to_string());
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => bytes.extend_from_slice(&data),
            Ok(Err(frame)) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                let of = |name: &str| {
                    trailers.get(name).map_or("", |value| value.to_str().expect("text")).to_owned()
                };
                end = format!("{} {}", of("grpc-status"), of("grpc-message"));
            }
            Err(error) => end = error.to_string(),
        }
        while let Some((head, rest)) = bytes.split_first_chunk::<5>() {
            let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let Some(message) = rest.get(..len) else { break };
            let _ = tell.send(Heard::Message(message.to_vec()));
            bytes.drain(..5 + len);
        }
    }
    let _ = tell.send(Heard::End(end.trim().to_owned()));
    // The stream stays open, as that of a proxy after an immediate response.
    std::future::pending::<()>().await;
}

struct Saying(UnboundedReceiver<Bytes>);

impl Body for Saying {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|data| data.map(|data| Ok(Frame::data(data))))
    }
}

#[derive(Clone)]
struct Local;

impl<F: Future + 'static> Executor<F> for Local {
    fn execute(&self, task: F) {
        drop(tokio::task::spawn_local(task));
    }
}

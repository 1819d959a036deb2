//! A response that several identical requests share: buffers the frames until all readers have them, and for later
//! requests.
//!
//! A separate task reads the response from the replica. Reading it in the first client's task lost, because a
//! disconnect or a slow client would affect the others. When the last reader disconnects, the task ends and cancels
//! the replica's request. A response over the size limit is not kept for later requests. The task then reads it at
//! the pace of the slowest reader.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderName, StatusCode};
use http_body::Frame;

use super::control;
use crate::reply::RelayError;

pub struct SharedResponse {
    state: Mutex<FlightState>,
    most: usize,
    /// Headers of the first request.
    asked: HeaderMap,
}

#[derive(Default)]
struct FlightState {
    head: Option<(StatusCode, HeaderMap)>,
    frames: VecDeque<Bytes>,
    /// Number of frames dropped from the front of the buffer.
    gone: usize,
    /// Number of response bytes in the buffer.
    held: usize,
    is_all: bool,
    end: Option<FlightEnd>,
    /// Set if the response ended completely and successfully.
    is_success: bool,
    readers: HashMap<u64, (usize, Option<Waker>)>,
    number: u64,
    /// Waker of the task that reads from the replica. It waits for buffer space or for the last reader to leave.
    writer: Option<Waker>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum FlightEnd {
    Whole,
    /// The response broke, and its last bytes report the error to the readers.
    Told,
    Broken,
}

impl SharedResponse {
    /// Returns a response without readers. `most` limits the buffer in bytes; `asked` are the headers of the first
    /// request.
    pub fn new(most: usize, asked: HeaderMap) -> SharedResponse {
        SharedResponse {
            state: Mutex::new(FlightState { is_all: true, ..FlightState::default() }),
            most,
            asked,
        }
    }

    /// Returns whether the response's head permits sharing it with a request that has these headers.
    pub(crate) fn is_for(&self, headers: &HeaderMap) -> bool {
        let state = self.state();
        let Some((_, own)) = &state.head else { return true };
        let same = |name: &HeaderName| self.asked.get_all(name).iter().eq(headers.get_all(name).iter());
        control::may_keep(own) && control::varies(own).is_some_and(|names| names.iter().all(same))
    }

    /// Returns the request headers that the response depends on, or `None` if it depends on more than headers.
    pub fn varies(&self) -> Option<Vec<HeaderName>> {
        control::varies(&self.state().head.as_ref()?.1)
    }

    /// Returns the lifetime in s that the response's head sets; `None` if it sets none.
    pub fn lasts_s(&self) -> Option<f64> {
        control::lasts_s(&self.state().head.as_ref()?.1)
    }

    fn state(&self) -> MutexGuard<'_, FlightState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a reader that starts at the first frame.
    pub fn join(self: &Arc<SharedResponse>) -> ResponseReader {
        let mut state = self.state();
        state.number += 1;
        let number = state.number;
        state.readers.insert(number, (0, None));
        ResponseReader { flight: Arc::clone(self), number }
    }

    /// Returns whether a new reader can still get the whole response, and its status is 200 or still unknown.
    pub fn is_open(&self) -> bool {
        let state = self.state();
        let sound = state.head.as_ref().is_none_or(|(status, _)| *status == StatusCode::OK);
        // Without readers, the task is about to end.
        let ends_well = matches!(state.end, None | Some(FlightEnd::Whole));
        state.is_all && sound && ends_well && !state.readers.is_empty()
    }

    /// Returns the size in bytes of a complete response that may be cached, or `None` otherwise.
    pub fn kept(&self) -> Option<u64> {
        let state = self.state();
        let (status, headers) = state.head.as_ref()?;
        let names: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        let sound = *status == StatusCode::OK && state.is_all && state.is_success;
        let may = control::may_keep(headers) && !headers.contains_key(SET_COOKIE);
        (sound && may && !tells_error(&state, headers)).then_some((state.held + names + 256) as u64)
    }

    /// Returns the head and the body if the response may be [kept](SharedResponse::kept).
    pub fn whole(&self) -> Option<(HeaderMap, Vec<u8>)> {
        self.kept()?;
        let state = self.state();
        let (_, headers) = state.head.clone()?;
        Some((headers, state.frames.iter().flat_map(|frame| frame.iter().copied()).collect()))
    }

    pub fn begin(&self, status: StatusCode, headers: HeaderMap) {
        self.change(|state| state.head = Some((status, headers)));
    }

    /// Appends a frame. The bytes are copied, because a frame from a socket keeps the whole read buffer alive.
    pub fn push(&self, data: &[u8]) {
        self.change(|state| {
            state.held += data.len();
            state.frames.push_back(Bytes::copy_from_slice(data));
        });
    }

    /// Records the end of the response. `is_told` is set if the last bytes of a broken response report the error.
    pub fn end(&self, whole: bool, is_success: bool, is_told: bool) {
        self.change(|state| {
            state.is_success = whole && is_success;
            state.end = Some(match whole {
                true => FlightEnd::Whole,
                false if is_told => FlightEnd::Told,
                false => FlightEnd::Broken,
            });
        });
    }

    fn change(&self, change: impl FnOnce(&mut FlightState)) {
        let mut state = self.state();
        change(&mut state);
        let wakers: Vec<Waker> = state.readers.values_mut().filter_map(|(_, waker)| waker.take()).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Completes when the last reader has left.
    pub(crate) fn poll_abandoned(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.readers.is_empty() {
            return Poll::Ready(());
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.held <= self.most {
            return Poll::Ready(());
        }
        state.is_all = false;
        let slowest = state.readers.values().map(|(at, _)| *at).min().unwrap_or(usize::MAX);
        while state.gone < slowest {
            let Some(frame) = state.frames.pop_front() else { break };
            state.held -= frame.len();
            state.gone += 1;
        }
        if state.held <= self.most || state.readers.is_empty() {
            return Poll::Ready(());
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Returns whether a stream contains an error event. The relay checks the end of the stream separately.
fn tells_error(state: &FlightState, headers: &HeaderMap) -> bool {
    if !is_stream(headers) {
        return false;
    }
    let text: Vec<u8> = state.frames.iter().flat_map(|frame| frame.iter().copied()).collect();
    let has = |what: &[u8]| memchr::memmem::find(&text, what).is_some();
    has(b"data: {\"error\"") || has(b"event: error")
}

fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(http::header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

pub struct ResponseReader {
    flight: Arc<SharedResponse>,
    number: u64,
}

impl ResponseReader {
    /// Returns the response head, or `None` if the response ended without one.
    pub(crate) fn poll_head(&self, cx: &mut Context<'_>) -> Poll<Option<(StatusCode, HeaderMap)>> {
        let mut state = self.flight.state();
        if let Some(head) = &state.head {
            return Poll::Ready(Some(head.clone()));
        }
        if state.end.is_some() {
            return Poll::Ready(None);
        }
        state.waits(self.number, cx);
        Poll::Pending
    }

    /// Returns the next frame, or `None` at the end. Fails if the replica's response broke.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        let mut state = self.flight.state();
        let at = state.readers.get(&self.number).map_or(0, |(at, _)| *at);
        let frame = at.checked_sub(state.gone).and_then(|place| state.frames.get(place)).cloned();
        if let Some(frame) = frame {
            if let Some(reader) = state.readers.get_mut(&self.number) {
                reader.0 = at + 1;
            }
            // The consumed frame may have freed buffer space.
            let writer = state.writer.take();
            drop(state);
            writer.into_iter().for_each(Waker::wake);
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        match state.end {
            Some(FlightEnd::Whole | FlightEnd::Told) => Poll::Ready(None),
            Some(FlightEnd::Broken) => Poll::Ready(Some(Err("the replica's answer broke off".into()))),
            None => {
                state.waits(self.number, cx);
                Poll::Pending
            }
        }
    }

    /// Returns whether the response may be shared with a request that has these headers.
    pub(crate) fn is_for(&self, headers: &HeaderMap) -> bool {
        self.flight.is_for(headers)
    }

    /// Returns whether the response ended completely and this reader has every frame.
    pub fn is_end(&self) -> bool {
        let state = self.flight.state();
        let at = state.readers.get(&self.number).map_or(0, |(at, _)| *at);
        state.end == Some(FlightEnd::Whole) && at >= state.gone + state.frames.len()
    }
}

impl FlightState {
    fn waits(&mut self, reader: u64, cx: &Context<'_>) {
        if let Some((_, waker)) = self.readers.get_mut(&reader) {
            *waker = Some(cx.waker().clone());
        }
    }
}

impl Drop for ResponseReader {
    fn drop(&mut self) {
        let mut state = self.flight.state();
        state.readers.remove(&self.number);
        let writer = state.writer.take();
        drop(state);
        writer.into_iter().for_each(Waker::wake);
    }
}

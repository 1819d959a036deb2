//! Tests the server over loopback, with a client that uses only raw bytes.

#[cfg(test)]
mod all {
    pub mod http;

    mod adapters;
    mod answers;
    mod collector;
    mod http2;
    mod infer;
    mod life;
    mod pages;
    pub mod parity;
    mod refusals;
    mod replay;
    mod scripted;
    mod truth;
}

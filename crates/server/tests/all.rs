//! The server over loopback, with a client that knows nothing but bytes.

#[cfg(test)]
mod all {
    pub mod http;

    mod answers;
    mod life;
    mod pages;
    mod parity;
    mod refusals;
    mod truth;
}

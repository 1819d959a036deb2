//! The server over loopback, with a client that knows nothing but bytes.

mod all {
    pub mod http;

    mod answers;
    mod life;
    mod pages;
    mod refusals;
    mod truth;
}

//! What all connections of a server share.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use plimsoll_sim::ModeSpec;
use plimsoll_wire::kserve::server::FrontModel;
use tokio::sync::Notify;

use crate::body::FramePage;
use crate::config::Limits;
use crate::engine::Engine;
use crate::io::Conn;

/// What all connections share.
pub(crate) struct Server {
    pub engine: Rc<Engine>,
    pub model: String,
    /// Adapters that may be asked for in the model's place, by their number in the world.
    pub adapters: Vec<String>,
    pub mode: ModeSpec,
    /// The model under KServe v2, where the engine has that front.
    pub infers: Option<FrontModel>,
    pub limits: Limits,
    /// Can the world fail a request that it took? Then the head of a streamed answer waits for its first token.
    pub may_fail: bool,
    /// Does a router stand in front of the engine?
    pub routes: bool,
    pub started_s: i64,
    pub page: FramePage,
    /// Open connections by number.
    pub conns: RefCell<HashMap<u64, Rc<Conn>>>,
    pub draining: Cell<bool>,
    /// Told when the last connection has closed.
    pub emptied: Notify,
}

impl Server {
    pub fn open(&self) -> usize {
        self.conns.borrow().len()
    }
}

//! Defines the state that all connections of a server share.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use plimsoll_sim::ModeSpec;
use plimsoll_wire::kserve::server::FrontModel;
use tokio::sync::Notify;

use crate::body::FramePage;
use crate::config::ServerLimits;
use crate::engine::EngineDriver;
use crate::io::Conn;

pub(crate) struct Server {
    pub engine: Rc<EngineDriver>,
    pub model: String,
    /// Names of the adapters that requests may use as model, by their number in the world.
    pub adapters: Vec<String>,
    pub mode: ModeSpec,
    /// Model under KServe v2; `None` if the engine has no such front.
    pub infers: Option<FrontModel>,
    pub limits: ServerLimits,
    /// Set if the world can fail an accepted request. The head of a streamed response then waits for the first token.
    pub may_fail: bool,
    /// Set if a router is in front of the engine.
    pub routes: bool,
    pub started_s: i64,
    pub page: FramePage,
    pub conns: RefCell<HashMap<u64, Rc<Conn>>>,
    pub draining: Cell<bool>,
    /// Notified when the last connection has closed.
    pub emptied: Notify,
}

impl Server {
    pub fn open(&self) -> usize {
        self.conns.borrow().len()
    }
}

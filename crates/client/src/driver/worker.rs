//! Runs a load-generating thread: a single-threaded runtime with its connections, timer and measurements.
//!
//! Each core has one runtime, and runtimes share no state: no task moves and no histogram is locked. The schedule assigns
//! arrivals to workers, so the assignment is equal in every run. A work-stealing runtime was rejected, because it costs
//! equal CPU without that property.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc;

use futures_util::future::join_all;
use plimsoll_model::{At, By, KeptConnections, Span};
use plimsoll_workload::{Connections, Player};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::{self, Clock};
use crate::driver::level::LevelContext;
use crate::driver::level_driver::{LevelDriver, WorkerState, WorkerTally};
use crate::driver::live::WorkerCounters;
use crate::driver::prepare::BodyPrefetcher;
use crate::histogram::LogHistogram;
use crate::http1::keeping::{KeepaliveShared, together};
use crate::http1::link::Route;
use crate::http1::pool::ConnectionPool;
use crate::http1::stamp::SocketMeter;
use crate::http1::tcp::StampingOn;
use crate::timer::{self, Timer};

/// Task polls between two polls of the sockets. With tokio's default of 61, a due arrival waits behind half a millisecond
/// of responses.
const EVENT_INTERVAL: u32 = 16;

#[derive(Debug)]
pub enum WorkerCommand {
    /// Set the connection policy and open connections before the load.
    Warm {
        policy: Connections,
        /// This worker's part of a bounded pool; each endpoint has a separate pool.
        share: u32,
        routes: Vec<Route>,
        /// Connections to open per endpoint.
        wanted: u32,
        /// Longest wait for one connection.
        connect: Span,
        /// Receives the number of idle connections after the warm-up.
        done: mpsc::Sender<usize>,
    },
    Run {
        shared: Arc<LevelContext>,
        player: Box<Player>,
        ahead: Box<BodyPrefetcher>,
        /// Receives the report of the level.
        done: mpsc::Sender<WorkerReport>,
    },
    /// The window has ended; CPU time is accounted until now.
    Mark,
    /// The load ends at this time, as if a stop was requested then.
    EndAt(At),
    Stop(By),
    StopNow(By),
}

/// The result of a level on one worker.
#[derive(Debug, Default)]
pub struct WorkerReport {
    pub tally: WorkerTally,
    /// User stamp minus kernel stamp of every read.
    pub user_delay: LogHistogram,
    pub kernel_reads: u64,
    pub user_reads: u64,
    /// CPU time over the window in ns.
    pub cpu_ns: i64,
    /// Length of the window on this thread in ns.
    pub wall_ns: i64,
    /// Time runnable but not running over the window, in ns; `None` if the kernel does not report it.
    pub run_queue_ns: Option<i64>,
    /// First time at which a ceiling or a full pool delayed a request.
    pub closed_since: Option<At>,
    pub sockets_max: u32,
    /// Connections opened since the level's warm-up began.
    pub connects: u32,
    pub kept: KeptConnections,
}

/// The inputs of a worker thread.
#[derive(Debug)]
pub struct WorkerSetup {
    pub clock: Clock,
    /// Counter that numbers connections over all workers.
    pub numbers: Arc<AtomicU32>,
    /// State of kept connections per endpoint, shared by all workers.
    pub known: Vec<KeepaliveShared>,
    pub shard: Arc<WorkerCounters>,
}

/// Runs the thread until its command channel closes. Reports over `ready` whether the thread could be set up.
pub fn work(
    setup: WorkerSetup,
    commands: UnboundedReceiver<WorkerCommand>,
    ready: &mpsc::Sender<std::io::Result<()>>,
) {
    timer::sharpen_thread();
    let _stamping = StampingOn::ask();
    let built = Builder::new_current_thread()
        .enable_all()
        .event_interval(EVENT_INTERVAL)
        .build_local(LocalOptions::default());
    let runtime = match built {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    runtime.block_on(async {
        let timer = match Timer::new() {
            Ok(timer) => timer,
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        };
        let meter = SocketMeter::new(setup.clock);
        let nowhere = Route { addrs: Ok(Vec::new()), host: String::new(), tls: None, http2: None };
        let pool = |known| {
            ConnectionPool::new(nowhere.clone(), Rc::clone(&meter), Arc::clone(&setup.numbers), known)
        };
        let pools = setup.known.into_iter().map(pool).collect();
        let bench = Rc::new(WorkerState { meter, pools, hands: Rc::default(), timer, shard: setup.shard });
        let _ = ready.send(Ok(()));
        obey(&bench, commands).await;
    });
}

async fn obey(bench: &Rc<WorkerState>, mut commands: UnboundedReceiver<WorkerCommand>) {
    while let Some(command) = commands.recv().await {
        match command {
            WorkerCommand::Warm { policy, share, routes, wanted, connect, done } => {
                bench.meter.clear();
                // Concurrent, because one unresponsive endpoint would otherwise delay the others.
                join_all(bench.pools.iter().zip(routes).map(|(pool, route)| {
                    pool.set_policy(policy, share, route);
                    pool.warm(wanted as usize, connect)
                }))
                .await;
                let _ = done.send(bench.pools.iter().map(ConnectionPool::idle).sum());
            }
            WorkerCommand::Run { shared, player, ahead, done } => {
                let report = run(bench, shared, *player, *ahead, &mut commands).await;
                let _ = done.send(report);
            }
            WorkerCommand::Mark
            | WorkerCommand::EndAt(_)
            | WorkerCommand::Stop(_)
            | WorkerCommand::StopNow(_) => {}
        }
    }
}

async fn run(
    bench: &Rc<WorkerState>,
    shared: Arc<LevelContext>,
    player: Player,
    ahead: BodyPrefetcher,
    commands: &mut UnboundedReceiver<WorkerCommand>,
) -> WorkerReport {
    let stage = LevelDriver::new(Rc::clone(bench), shared, player, ahead);
    let begun = Used::now();
    let mut marked = None;
    let starter = tokio::task::spawn_local({
        let stage = Rc::clone(&stage);
        async move {
            loop {
                stage.starts.notified().await;
                stage.pump();
            }
        }
    });
    stage.pump();
    while !stage.is_over() {
        stage.prepare();
        tokio::select! {
            biased;
            command = commands.recv() => match command {
                Some(WorkerCommand::Mark) => marked = marked.or(Some(Used::now())),
                Some(WorkerCommand::EndAt(at)) => stage.end_at(at),
                Some(WorkerCommand::Stop(by)) => stage.stop(by),
                Some(WorkerCommand::StopNow(by)) => stage.stop_now(by),
                Some(_) => {}
                None => stage.stop_now(By::Client),
            },
            _ = bench.timer.fired() => stage.pump(),
            () = stage.news.notified() => stage.pump(),
        }
    }
    starter.abort();
    let used = marked.unwrap_or_else(Used::now).since(&begun);
    let meter = &bench.meter;
    WorkerReport {
        tally: stage.tally.take(),
        user_delay: meter.user_delay.take(),
        kernel_reads: meter.kernel_reads.get(),
        user_reads: meter.user_reads.get(),
        cpu_ns: used.cpu_ns,
        wall_ns: used.wall_ns,
        run_queue_ns: used.run_queue_ns,
        closed_since: stage.closed_since(),
        sockets_max: meter.sockets_max.get(),
        connects: meter.connects.get(),
        kept: together(bench.pools.iter().map(|pool| pool.keeping.told())),
    }
}

/// The CPU use of a thread.
#[derive(Copy, Clone, Debug)]
struct Used {
    cpu_ns: i64,
    wall_ns: i64,
    run_queue_ns: Option<i64>,
}

impl Used {
    fn now() -> Used {
        Used {
            cpu_ns: clock::thread_cpu_ns(),
            wall_ns: clock::monotonic_ns(),
            run_queue_ns: clock::thread_run_queue_ns(),
        }
    }

    fn since(self, earlier: &Used) -> Used {
        Used {
            cpu_ns: self.cpu_ns - earlier.cpu_ns,
            wall_ns: self.wall_ns - earlier.wall_ns,
            run_queue_ns: self.run_queue_ns.zip(earlier.run_queue_ns).map(|(now, then)| now - then),
        }
    }
}

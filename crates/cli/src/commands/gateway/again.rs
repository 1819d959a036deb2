//! Reloads the gateway file on SIGHUP and when it or a referenced file has changed, and reports the result in
//! a line.
//!
//! Time and size of the files are polled once a second. A reload waits until they are unchanged for one poll,
//! because a half-written file is invalid. The inotify API was rejected because it misses the symbolic links
//! by which a ConfigMap is replaced.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use plimsoll_gateway::keys::KeySource;
use plimsoll_gateway::{GatewaySpec, Reloader};
use tokio::signal::unix::{SignalKind, signal};

use super::asked;
use super::record::CurrentReplicas;
use crate::flags::GatewayArgs;

/// Ticks per check of the files.
const EVERY: u32 = 10;

/// Modification time and size per file; `None` if the file is missing.
type FileStates = BTreeMap<PathBuf, Option<(SystemTime, u64)>>;

/// The reloader of the gateway file.
pub struct ConfigReloader<'a> {
    args: &'a GatewayArgs,
    file: Option<&'a str>,
    reloader: Reloader,
    /// Replica list for the record; `None` without a record.
    behind: Option<CurrentReplicas>,
    hung_up: Arc<AtomicBool>,
    named: Vec<PathBuf>,
    /// File states at the last reload, and at the last check.
    read: FileStates,
    last: FileStates,
    looks: u32,
}

impl<'a> ConfigReloader<'a> {
    /// Creates a reloader for a gateway with this configuration.
    pub fn new(
        args: &'a GatewayArgs,
        file: Option<&'a str>,
        spec: &GatewaySpec,
        reloader: Reloader,
        behind: Option<CurrentReplicas>,
    ) -> ConfigReloader<'a> {
        let named = named(file, spec);
        let read = look(&named);
        let hung_up = Arc::new(AtomicBool::new(false));
        on_hangup(&hung_up);
        ConfigReloader { args, file, reloader, behind, hung_up, named, last: read.clone(), read, looks: 0 }
    }

    /// Checks for changes. Returns a message after a reload.
    pub fn tick(&mut self) -> Option<String> {
        if self.hung_up.swap(false, Ordering::SeqCst) {
            return Some(self.reload());
        }
        self.looks = (self.looks + 1) % EVERY;
        if self.looks != 0 || self.file.is_none() {
            return None;
        }
        let now = look(&self.named);
        let settled = now == self.last && now != self.read;
        self.last = now;
        settled.then(|| self.reload())
    }

    fn reload(&mut self) -> String {
        let Some(file) = self.file else {
            return "SIGHUP: no file to reload; all settings came from flags".to_owned();
        };
        // The state is read before the file, so that a write during the reload is noticed later.
        self.read = look(&self.named);
        let spec = match asked(self.args, Some(file)) {
            Ok(spec) => spec,
            Err(stop) => {
                self.reloader.refused();
                return format!("{}; the previous settings stay active", stop.line);
            }
        };
        let done = match self.reloader.reload(&spec) {
            Ok(done) => done,
            Err(error) => return format!("{file}: {error}; the previous settings stay active"),
        };
        if let Some(behind) = &self.behind {
            *behind.lock().unwrap_or_else(PoisonError::into_inner) = done.replicas;
        }
        self.named = named(self.file, &spec);
        self.read = look(&self.named);
        self.last.clone_from(&self.read);
        let mut line = format!("{file}: reloaded and active");
        if !done.joined.is_empty() {
            line += &format!("; new: {}", done.joined.join(", "));
        }
        if !done.drains.is_empty() {
            line += &format!("; no further requests for {}", done.drains.join(", "));
        }
        if !done.later.is_empty() {
            line += &format!("; a restart is needed for {}", done.later.join(", "));
        }
        line
    }
}

/// Returns the gateway file and the files that it references.
fn named(file: Option<&str>, spec: &GatewaySpec) -> Vec<PathBuf> {
    let of = |key: &Option<KeySource>| key.as_ref().and_then(|key| key.file.clone());
    let mut files: Vec<PathBuf> = file.map(PathBuf::from).into_iter().collect();
    files.extend(of(&spec.admin_key));
    files.extend(spec.keys.iter().filter_map(|key| key.key.file.clone()));
    files.extend(spec.replicas.iter().filter_map(|replica| of(&replica.key)));
    let semantic = spec.cache.iter().flat_map(|cache| &cache.semantic);
    files.extend(semantic.flat_map(|semantic| semantic.endpoints().filter_map(|(_, one)| of(&one.key))));
    files.extend(spec.ca_file.clone());
    files.extend(spec.tls.iter().flat_map(|tls| {
        [Some(tls.cert.clone()), Some(tls.key.clone()), tls.client_ca.clone()].into_iter().flatten()
    }));
    files.extend(spec.client_cert.iter().flat_map(|own| [own.cert.clone(), own.key.clone()]));
    files
}

fn look(files: &[PathBuf]) -> FileStates {
    let seen = |path: &Path| {
        let data = std::fs::metadata(path).ok()?;
        Some((data.modified().ok()?, data.len()))
    };
    files.iter().map(|path| (path.clone(), seen(path))).collect()
}

/// Sets the flag on each SIGHUP instead of ending the process. The thread sleeps in the kernel and ends with
/// the process.
fn on_hangup(flag: &Arc<AtomicBool>) {
    let flag = Arc::clone(flag);
    let (ready, caught) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
        runtime.block_on(async {
            let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
            let _ = ready.send(());
            while hangup.recv().await.is_some() {
                flag.store(true, Ordering::SeqCst);
            }
        });
    });
    // An error means that the thread failed; SIGHUP then has its default effect.
    let _ = caught.recv_timeout(Duration::from_secs(5));
}

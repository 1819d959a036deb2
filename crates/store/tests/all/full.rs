//! Tests a full disk: on a file system of a few MiB, and under a file size limit.
//!
//! Both change their process (a mount namespace, a resource limit), so each runs in a child of this test binary.

use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use plimsoll_model::RunState;
use plimsoll_store::{Origin, RunWriter, open, read_manifest};

use crate::kit::{answered, child, manifest};

const DIR: &str = "PLIMSOLL_TEST_FULL_DIR";

/// Runs `test` in a child process and prints its output.
fn in_child(test: &str) {
    let temp = tempfile::tempdir().unwrap();
    let out = child(test, DIR, temp.path().to_str().unwrap()).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    println!("{said}");
    assert!(out.status.success(), "{said}\n{}", String::from_utf8_lossy(&out.stderr));
}

/// Writes beyond a full disk; returns the numbers of records added and lost.
fn overfill(dir: &Path) -> (usize, usize) {
    let writer = RunWriter::create(dir, manifest()).unwrap();
    let sink = writer.sink();
    let mut put = 0;
    while sink.health().error.is_none() {
        (0..500).for_each(|i| sink.attempt(&answered(put + i, 16)));
        put += 500;
        assert!(put < 1_000_000, "the disk never got full");
    }
    let health = sink.health();
    assert!(health.disk_full, "{health:?}");
    // The run continues without blocking or panic. (More records than fit into the reserve, because all would fit in the end
    // otherwise.)
    (0..20_000).for_each(|i| sink.attempt(&answered(put + i, 16)));
    put += 20_000;
    assert!(writer.flush().unwrap_err().is_disk_full());
    let error = writer.finish(manifest()).unwrap_err();
    assert!(error.is_disk_full(), "{error}");
    println!("{error}");
    (put as usize, sink.health().lost as usize)
}

/// Checks that the records are complete and in order, and together with the lost ones are all that were added.
fn check(dir: &Path, put: usize, lost: usize, converted: bool) {
    let run = open(dir).unwrap();
    assert_eq!(run.attempts.len() + lost, put);
    assert!(run.attempts.len() > 1_000, "{}", run.attempts.len());
    assert!(run.attempts.iter().enumerate().all(|(i, attempt)| *attempt == answered(i as u64, 16)));
    assert_eq!(run.origin, Origin::Recovered { converted }, "{:?}", run.recovered);
    let RunState::Partial { why } = run.manifest.progress else { panic!("{:?}", run.manifest.progress) };
    assert!(why.contains("no room left"), "{why}");
    println!("{put} put, {lost} lost; partial: {why}; {}", run.recovered.unwrap());
}

#[test]
fn a_full_file_system_leaves_a_readable_run() {
    let Ok(dir) = std::env::var(DIR) else {
        return in_child("full::a_full_file_system_leaves_a_readable_run");
    };
    let dir = Path::new(&dir);
    let none = None::<&str>;
    let mounted = unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
        .and_then(|()| mount(Some("none"), dir, Some("tmpfs"), MsFlags::empty(), Some("size=4m")));
    if let Err(why @ (Errno::EPERM | Errno::EACCES | Errno::ENOSYS)) = mounted {
        println!("skipped: mounting a small file system is not permitted here ({why})");
        return;
    }
    mounted.unwrap();
    let run = dir.join("r");
    let (put, lost) = overfill(&run);
    let RunState::Partial { .. } = read_manifest(&run).unwrap().progress else {
        panic!("run.json says nothing")
    };
    // The log fills the disk, so every read uses it.
    check(&run, put, lost, false);
    check(&run, put, lost, false);
    mount(none, dir, none, MsFlags::MS_REMOUNT, Some("size=64m")).unwrap();
    check(&run, put, lost, true);
    assert_eq!(open(&run).unwrap().origin, Origin::Finished);
}

#[test]
fn a_file_size_limit_is_a_full_disk() {
    let Ok(dir) = std::env::var(DIR) else { return in_child("full::a_file_size_limit_is_a_full_disk") };
    // A blocked signal makes the write return an error; threads started here inherit the mask.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGXFSZ);
    signals.thread_block().unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, 2 << 20, 2 << 20).unwrap();
    let run = Path::new(&dir).join("r");
    let (put, lost) = overfill(&run);
    check(&run, put, lost, true);
}

/// A temporary disk failure loses no record: queued ones are written when there is room again.
#[test]
fn room_that_comes_back_in_time_loses_nothing() {
    let Ok(dir) = std::env::var(DIR) else {
        return in_child("full::room_that_comes_back_in_time_loses_nothing");
    };
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGXFSZ);
    signals.thread_block().unwrap();
    let limit = |bytes: u64| setrlimit(Resource::RLIMIT_FSIZE, bytes, u64::MAX).unwrap();
    let run = Path::new(&dir).join("r");
    limit(2 << 20);
    let writer = RunWriter::create(&run, manifest()).unwrap();
    (0..20_000).for_each(|i| writer.attempt(&answered(i, 16)));
    assert!(writer.flush().unwrap_err().is_disk_full());
    limit(u64::MAX);
    (20_000..30_000).for_each(|i| writer.attempt(&answered(i, 16)));
    writer.finish(manifest()).unwrap();
    let got = open(&run).unwrap();
    assert_eq!((got.manifest.progress, got.attempts.len()), (RunState::Complete, 30_000));
    assert!(got.attempts.iter().enumerate().all(|(i, attempt)| *attempt == answered(i as u64, 16)));
}

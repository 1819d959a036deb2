//! A search from several processes: shard 0 announces the levels and all shards send them.
//! The result is one run, and every missing part is reported.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use plimsoll_model::{Attempt, EndedBy, How, Level, Load, RunState};
use plimsoll_store::StoredRun;
use plimsoll_workload::{Scenario, Schedule};
use tempfile::TempDir;

use crate::kit::{Ended, Engine, PLIMSOLL, begun, ended, plimsoll, plimsoll_in, until};
use crate::shards::{open, sent_by};

struct Field {
    engine: Engine,
    folder: TempDir,
}

impl Field {
    fn new() -> Field {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let budget =
            "version: 1\nload: {rate: 90/s}\nbudgets:\n  - {id: errors, metric: error_rate, max: 50%}\n";
        std::fs::write(folder.path().join("budget.yaml"), budget).expect("written");
        Field { engine: Engine::start("canned"), folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn spawn(&self, command: &str, shard: &str, more: &str) -> Child {
        let args = [command, &self.engine.url, "--shard", shard, "--osl", "4", "--isl", "32"];
        let mut shard = Command::new(PLIMSOLL);
        shard.args(args).args(["--scrape", "off", "-q"]).args(more.split(' '));
        begun(shard.current_dir(self.folder.path()))
    }

    fn all(&self, command: &str, of: u32, more: &str) -> Vec<Child> {
        (0..of).map(|index| self.spawn(command, &format!("{index}/{of}"), more)).collect()
    }
}

/// Returns the schedule of an open level as one machine would send it, drawn from the manifest's scenario.
pub fn of_one_machine(run: &StoredRun, level: &Level) -> Schedule {
    let mut value = run.manifest.scenario.clone();
    let object = value.as_object_mut().expect("an object");
    ["sweep", "traffic", "scraped"].iter().for_each(|key| drop(object.remove(*key)));
    let scenario = Scenario::from_json(&value).expect("a scenario");
    let Load::Open { rate_per_s } = level.load else { panic!("an open loop") };
    Schedule::generate(&scenario, rate_per_s, level.window(), level.id).expect("a schedule")
}

fn rows<'a>(run: &'a StoredRun, level: &Level) -> Vec<&'a Attempt> {
    run.attempts.iter().filter(|row| row.level == level.id).collect()
}

fn is_open(level: &&Level) -> bool {
    matches!(level.load, Load::Open { .. })
}

/// Checks that each open level has each arrival of its schedule once, at its due time, and that each shard sent its part.
fn holds_its_schedules(run: &StoredRun, parts: &[StoredRun]) {
    let open: Vec<&Level> = run.manifest.levels.iter().filter(is_open).collect();
    assert!(open.len() >= 2, "{:?}", run.manifest.levels);
    for level in open {
        let schedule = of_one_machine(run, level);
        assert_eq!(
            (level.arrivals, &level.schedule_hash),
            (schedule.arrivals.len() as u64, &schedule.hash())
        );
        let was = rows(run, level);
        let sent: BTreeSet<_> =
            was.iter().map(|row| (row.request, (row.due - level.start).0, row.asked_prompt)).collect();
        let drawn = schedule.arrivals.iter().map(|one| (one.id, one.due.0, one.prompt_tokens)).collect();
        assert_eq!(sent, drawn, "level {}", level.id);
        assert_eq!(was.len(), sent.len(), "no request was sent twice");
        for (index, part) in (1..).zip(parts) {
            let own = rows(part, level);
            let of = parts.len() as u64 + 1;
            assert!(own.iter().all(|row| row.request % of == index), "shard {index}");
            let expected = (0..level.arrivals).filter(|request| request % of == index).count();
            assert_eq!(own.len(), expected, "shard {index} of level {}", level.id);
        }
    }
}

fn parts(place: &Path, of: u32) -> Vec<StoredRun> {
    (1..of).map(|index| open_run(&place.join(format!("shard-{index}-of-{of}")))).collect()
}

fn open_run(dir: &Path) -> StoredRun {
    open(dir)
}

#[test]
fn a_sweep_of_three_shards_sends_what_one_machine_would() {
    let field = Field::new();
    let all = field.all("sweep", 3, "--rendezvous place --time 12s --max-rate 240/s --seed 5");
    let all: Vec<Ended> = all.into_iter().map(ended).collect();
    assert!(matches!(all[0].code, 0 | 4), "{}", all[0].stderr);
    for one in &all[1..] {
        assert_eq!(one.code, 0, "{}", one.stderr);
        assert!(
            one.stderr.contains("shard 0 reports what was found from the merged run in place/run"),
            "{}",
            one.stderr
        );
    }
    let place = field.path("place");
    let (run, parts) = (open_run(&place.join("run")), parts(&place, 3));
    holds_its_schedules(&run, &parts);
    assert_eq!(run.manifest.progress, RunState::Complete, "{}", all[0].stderr);
    assert!(place.join("run/report.html").exists());
    // A concurrency step has its configured requests in flight over all shards; a step of one request is shard 0's.
    for level in run.manifest.levels.iter().filter(|level| !is_open(level)) {
        let Load::Closed { concurrency } = level.load else { panic!("{level:?}") };
        let sent = rows(&run, level);
        let numbers: BTreeSet<u64> = sent.iter().map(|row| row.request).collect();
        assert_eq!(numbers.len(), sent.len(), "each number was sent once");
        let of_others: usize = parts.iter().map(|part| rows(part, level).len()).sum();
        assert_eq!(of_others > 0, concurrency > 1, "{level:?}");
        assert!(level.generator.in_flight_max <= concurrency.into(), "{level:?}");
    }
    // Every row of every shard is in the run of all, and no other.
    let of_others: usize = parts.iter().map(|part| part.attempts.len()).sum();
    let own = |level: &&Level| {
        let of = if is_open(level) { 3 } else { 3.min(closed(level)) };
        rows(&run, level).iter().filter(|row| row.request % u64::from(of) == 0).count()
    };
    assert_eq!(
        run.manifest.levels.iter().map(|level| own(&level)).sum::<usize>() + of_others,
        run.attempts.len()
    );
    assert_eq!(run.manifest.shards.len(), 3);
    assert!(run.manifest.shards.iter().all(|part| part.lost == 0 && part.host.is_some()));
    let shown = plimsoll(&["show", place.join("run").to_str().expect("utf-8")]).words();
    assert!(shown.contains(&sent_by(3)), "{shown}");
    // A part is no run to merge: the whole is there.
    let merge = plimsoll_in(field.folder.path(), &["merge", "place", "-o", "merged"]);
    assert_eq!(merge.code, 2, "{}", merge.stderr);
    assert!(
        merge.stderr.contains("a shard of a sweep, whose parts shard 0 has put together already"),
        "{}",
        merge.stderr
    );
}

fn closed(level: &Level) -> u32 {
    let Load::Closed { concurrency } = level.load else { panic!("{level:?}") };
    concurrency
}

#[test]
fn a_shard_that_is_killed_ends_the_sweep_and_is_said() {
    let field = Field::new();
    let mut all = field.all(
        "sweep",
        3,
        "--rendezvous place --time 20s --max-rate 240/s --shard-wait 4s --set client.drain=2s",
    );
    // It dies between the word of an open level and the end of it.
    let is_said = || {
        let said = std::fs::read_dir(field.path("place/levels")).into_iter().flatten().flatten();
        said.filter_map(|entry| std::fs::read_to_string(entry.path()).ok())
            .any(|word| word.contains("\"open\""))
    };
    until("an open level comes", is_said);
    all[2].kill().expect("killed");
    let all: Vec<Ended> = all.into_iter().map(ended).collect();
    assert_eq!(all[0].code, 4, "{}", all[0].stderr);
    assert!(
        all[0].stderr.contains("sent by 3 shards: shard 2/3 did not bring its part in time (--shard-wait)"),
        "{}",
        all[0].stderr
    );
    // The remaining shard is notified of the end.
    assert_eq!(all[1].code, 0, "{}", all[1].stderr);
    let run = open_run(&field.path("place/run"));
    let RunState::Partial { why } = &run.manifest.progress else { panic!("partial") };
    assert!(why.contains("shard 2/3 did not bring its part"), "{why}");
    let last = run.manifest.levels.last().expect("a level");
    assert_eq!(last.ended_by, EndedBy::Cut);
    let missing = &run.manifest.shards[2];
    assert!(matches!(missing.progress, RunState::Partial { .. }), "{missing:?}");
    // Each missing arrival of its schedule has a row.
    let never = |row: &&&Attempt| row.outcome.how == How::NeverSent;
    for level in run.manifest.levels.iter().filter(is_open) {
        let known: BTreeSet<u64> = rows(&run, level).iter().map(|row| row.request).collect();
        assert_eq!(known, (0..level.arrivals).collect(), "level {}", level.id);
    }
    let lost = rows(&run, last).iter().filter(never).count() as u64;
    assert_eq!(missing.lost, lost);
    assert!(is_open(&last) && lost > 0, "{last:?}");
    assert!(rows(&run, last).iter().filter(never).all(|row| row.request % 3 == 2));
    let gate = plimsoll_in(field.folder.path(), &["gate", "place/run", "--budget", "budget.yaml"]);
    assert!(matches!(gate.code, 3 | 4), "nothing passes on it: {}", gate.stdout);
}

#[test]
fn a_gate_of_three_shards_is_judged_by_the_first() {
    let field = Field::new();
    let all = field.all("gate", 3, "--rendezvous place --budget budget.yaml --time 4s --format json");
    let all: Vec<Ended> = all.into_iter().map(ended).collect();
    assert!(matches!(all[0].code, 0 | 3 | 4), "{}", all[0].stderr);
    let place = field.path("place");
    let run = open_run(&place.join("run"));
    let parts = parts(&place, 3);
    for level in &run.manifest.levels {
        let schedule = of_one_machine(&run, level);
        assert_eq!(level.schedule_hash, schedule.hash());
        assert_eq!(rows(&run, level).len(), schedule.arrivals.len());
    }
    assert!(parts.iter().all(|part| !part.attempts.is_empty()));
    // The verdict is that of a gate on the run of all.
    let again = plimsoll_in(
        field.folder.path(),
        &["gate", "place/run", "--budget", "budget.yaml", "--format", "json"],
    );
    assert_eq!((again.code, &again.json()["verdict"]), (all[0].code, &all[0].json()["verdict"]));
    for (index, one) in (1..).zip(&all[1..]) {
        assert_eq!(one.code, 0, "{}", one.stderr);
        assert!(one.stderr.contains(&format!("shard {index}/3: sent its part of")), "{}", one.stderr);
        assert!(one.stderr.contains("shard 0 reports the verdict"), "{}", one.stderr);
        assert_eq!(one.json()["whole"], "place/run");
    }
}

#[test]
fn what_can_be_no_search_of_shards_is_refused() {
    let field = Field::new();
    let told = ended(field.spawn("sweep", "0/2", "--start-at 2100-01-01T00:00:00Z"));
    assert_eq!(told.code, 2, "{}", told.stderr);
    assert!(told.stderr.contains("its shards need --rendezvous PLACE"), "{}", told.stderr);
    assert_eq!(told.stderr.lines().count(), 1, "{}", told.stderr);
    // A run and a sweep do not meet.
    let one = field.spawn("run", "0/2", "--rendezvous mixed --rate 10/s --for 1s");
    let other = field.spawn("sweep", "1/2", "--rendezvous mixed --time 10s");
    for one in [ended(one), ended(other)] {
        assert_eq!(one.code, 2, "{}", one.stderr);
        assert!(
            one.stderr.contains("shard 1 was started with another command: sweep, where shard 0 has run"),
            "{}",
            one.stderr
        );
    }
}

//! The folders of a history: their contents, the folding of old blocks, and retention.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use plimsoll_console::numbered::{self, size};
use plimsoll_console::out;
use plimsoll_model::{At, RunState, Span};
use plimsoll_store::{Origin, RunWriter, StoreError};
use plimsoll_watch::history::rows::HistoryRows;
use plimsoll_watch::history::{Grain, HistoryBlock, fold, read};

use super::Head;
use crate::file::RetentionSpec;
use crate::record::{KIND, WatchedSource, WindowNote};

/// Name prefix of a folder whose folding is in progress.
const DRAFT: &str = "draft-";
const DAY: Span = Span::from_secs(86_400);
/// Folding steps: source grain, target grain, time range of one target folder, and the time after that range
/// until folding.
const FOLDS: [(Grain, Grain, Span, Span); 2] = [
    (Grain::Seconds, Grain::Minute, Span::from_secs(3600), Span::from_secs(3600)),
    (Grain::Minute, Grain::Hour, DAY, Span(3 * DAY.0)),
];

pub struct BlocksFolder {
    pub grain: Grain,
    /// Start of the first block, s since 1970.
    pub began_s: u64,
    pub dir: PathBuf,
}

/// The contents of a folder.
pub struct BlocksRead {
    /// Blocks in order of time; their times are ns since 1970.
    pub blocks: Vec<HistoryBlock>,
    pub id: String,
    pub note: WindowNote,
    pub of: WatchedSource,
}

/// Returns all folders, the oldest first.
pub fn list(dir: &Path) -> Vec<BlocksFolder> {
    let of = |grain: Grain| {
        let found = numbered::folders(dir, &format!("{}-", grain.name()));
        found.into_iter().map(move |(began_s, dir)| BlocksFolder { grain, began_s, dir })
    };
    let mut all: Vec<BlocksFolder> = Grain::ALL.into_iter().flat_map(of).collect();
    all.sort_by_key(|folder| (folder.began_s, folder.grain));
    all
}

/// Returns an unused folder name for blocks that start at this time.
pub fn unused(dir: &Path, grain: Grain, from_ns: i64) -> PathBuf {
    let begins = from_ns.div_euclid(1_000_000_000).max(0);
    let named = |seconds: i64| dir.join(format!("{}-{seconds}", grain.name()));
    (begins..).map(named).find(|dir| !dir.exists()).unwrap_or_else(|| named(begins))
}

impl BlocksFolder {
    /// Reads the folder. The folder of a killed watch is recovered first, and a note on stderr reports the
    /// loss.
    pub fn read(&self) -> Result<BlocksRead, StoreError> {
        let run = plimsoll_store::open(&self.dir)?;
        if let (Some(how), Origin::Recovered { .. }) = (&run.recovered, &run.origin) {
            out::note(&format!("{}: {how}", self.dir.display()));
        }
        let note = run.manifest.scenario.get("watch").cloned().unwrap_or_default();
        let broken = |why: String| StoreError::Broken { path: self.dir.join("run.json"), what: why };
        if run.manifest.kind != KIND {
            return Err(broken("is no history of a watch".to_owned()));
        }
        let note = serde_json::from_value(note).map_err(|e| broken(format!("scenario.watch: {e}")))?;
        let wall = Span(run.manifest.clock.realtime_ns);
        let blocks = read::blocks(&run.samples).into_iter();
        let blocks =
            blocks.map(|block| HistoryBlock { from: block.from + wall, to: block.to + wall, ..block });
        let id = run.manifest.id;
        let of = WatchedSource {
            url: run.manifest.target.url,
            clock: run.manifest.clock,
            time: run.manifest.time,
        };
        Ok(BlocksRead { blocks: blocks.collect(), id, note, of })
    }
}

/// Returns the valid folders and the obsolete folders. The blocks of an obsolete folder are already in a
/// coarser folder; a kill prevented its removal.
pub fn parted(dir: &Path) -> (Vec<BlocksFolder>, Vec<BlocksFolder>) {
    let manifest = |folder: &BlocksFolder| plimsoll_store::read_manifest(&folder.dir).ok();
    let of = |folder: &BlocksFolder| -> Option<Vec<String>> {
        let of = manifest(folder)?.scenario.get("watch")?.get("blocks")?.get("of").cloned()?;
        serde_json::from_value(of).ok()
    };
    let all = list(dir);
    let folded: HashSet<String> = all.iter().filter_map(of).flatten().collect();
    all.into_iter().partition(|folder| !manifest(folder).is_some_and(|own| folded.contains(&own.id)))
}

/// Sorts blocks and drops a block that starts before the previous block ended. A clock that was set back
/// would otherwise count a period twice.
pub fn in_order(mut blocks: Vec<HistoryBlock>) -> Vec<HistoryBlock> {
    blocks.sort_by_key(|block| block.from);
    let mut until = At(i64::MIN);
    blocks.retain(|block| {
        let follows = block.from >= until;
        until = if follows { block.to } else { until };
        follows
    });
    blocks
}

/// Recovers the folders of a killed watch, folds old blocks and removes folders beyond the retention limits.
pub fn tidy(spec: &RetentionSpec, now_ns: i64) -> Result<(), StoreError> {
    for (_, dir) in drafts(&spec.dir) {
        let _ = std::fs::remove_dir_all(dir);
    }
    for folder in parted(&spec.dir).1 {
        let _ = std::fs::remove_dir_all(&folder.dir);
    }
    for (fine, coarse, unit, after) in FOLDS {
        let mut units: BTreeMap<i64, Vec<BlocksFolder>> = BTreeMap::new();
        for folder in list(&spec.dir).into_iter().filter(|folder| folder.grain == fine) {
            let unit = (folder.began_s as i64).div_euclid(unit.0 / 1_000_000_000);
            units.entry(unit).or_default().push(folder);
        }
        let is_old = |number: &i64| (number + 1) * unit.0 + after.0 <= now_ns;
        for (_, folders) in units.into_iter().filter(|(number, _)| is_old(number)) {
            fold_into(&spec.dir, coarse, &folders)?;
        }
    }
    thin(spec, now_ns);
    Ok(())
}

fn drafts(dir: &Path) -> Vec<(u64, PathBuf)> {
    numbered::folders(dir, DRAFT)
}

/// Writes the blocks of these folders as longer blocks, then removes the folders.
fn fold_into(dir: &Path, grain: Grain, folders: &[BlocksFolder]) -> Result<(), StoreError> {
    let mut blocks = Vec::new();
    let (mut ids, mut done) = (Vec::new(), Vec::new());
    let mut head: Option<Head> = None;
    for folder in folders {
        // An unreadable folder stays until it is too old, because the operator may be able to repair it.
        match folder.read() {
            Ok(mut read) => {
                blocks.append(&mut read.blocks);
                ids.push(read.id);
                done.push(&folder.dir);
                head = Some(Head::of(read.note, head.map_or(read.of, |head| head.of)));
            }
            Err(error) => {
                out::note(&format!("history: {error}; this folder is not merged into longer blocks"))
            }
        }
    }
    let blocks = fold(in_order(blocks), grain, 0);
    if let (Some(head), Some(first)) = (head, blocks.first()) {
        let to = unused(dir, grain, first.from.0);
        let draft = dir.join(format!("{DRAFT}{}", first.from.0 / 1_000_000_000));
        write(&draft, &head, (grain, ids), &blocks)?;
        std::fs::rename(&draft, &to).map_err(|source| StoreError::Io {
            path: to,
            doing: "put in place",
            source,
        })?;
    }
    done.into_iter().for_each(|dir| _ = std::fs::remove_dir_all(dir));
    Ok(())
}

/// Writes a folder of blocks whose times are ns since 1970.
pub fn write(
    dir: &Path,
    head: &Head,
    what: (Grain, Vec<String>),
    blocks: &[HistoryBlock],
) -> Result<(), StoreError> {
    let wall = Span(head.of.clock.realtime_ns);
    let own =
        |block: &HistoryBlock| HistoryBlock { from: block.from - wall, to: block.to - wall, ..block.clone() };
    let Some(first) = blocks.first().map(own) else { return Ok(()) };
    let mut manifest = head.manifest(&first, what);
    let writer = RunWriter::create(dir, manifest.clone())?;
    let mut rows = HistoryRows::default();
    let samples: Vec<_> = blocks.iter().flat_map(|block| rows.of(&own(block))).collect();
    samples.iter().for_each(|sample| writer.sample(sample));
    manifest.progress = RunState::Complete;
    writer.finish_with(manifest, &[], &samples)
}

/// Removes folders that are too old, and the oldest folders while the total size is over the limit.
fn thin(spec: &RetentionSpec, now_ns: i64) {
    let sized: Vec<(BlocksFolder, u64)> =
        list(&spec.dir).into_iter().map(|folder| (size(&folder.dir), folder)).map(|(a, b)| (b, a)).collect();
    let mut all: u64 = sized.iter().map(|(_, size)| size).sum();
    let oldest = now_ns as f64 / 1e9 - spec.keep_days * DAY.as_secs_f64();
    // The newest folder is kept, because it may still be open for writing.
    let newest = sized.iter().map(|(folder, _)| folder.began_s).max().unwrap_or(0);
    for (folder, size) in sized.into_iter().filter(|(folder, _)| folder.began_s < newest) {
        let goes = all > spec.keep_bytes || (folder.began_s as f64) < oldest;
        if goes && std::fs::remove_dir_all(&folder.dir).is_ok() {
            all -= size;
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_measure::server_side::Signal;
    use plimsoll_measure::server_side::table::SignalLayer;
    use plimsoll_model::{ClockAnchor, TimeBase};

    use super::*;

    const FINISHED: (SignalLayer, Signal) = (SignalLayer::Engine, Signal::Finished);
    const HOUR: i64 = 3600;

    fn at(seconds: i64) -> At {
        At(seconds * 1_000_000_000)
    }

    fn head() -> Head {
        let clock = ClockAnchor { realtime_ns: 5_000_000_000, ..ClockAnchor::default() };
        let of = WatchedSource { url: "x".into(), clock, time: TimeBase::Real };
        let budget = serde_json::from_value(serde_json::json!({"version": 1})).expect("a budget");
        Head { budget, every: Span::from_secs(5), of, since: None }
    }

    /// Writes one hour: a block of ten seconds every five minutes. Block `part` counts `number + part`
    /// finished requests.
    fn hour(dir: &Path, number: i64) {
        let block = |part: i64| {
            let from = number * HOUR + 300 * part;
            let mut block = HistoryBlock::empty(at(from), at(from + 10));
            block.watched = Span::from_secs(10);
            block.counters.insert(FINISHED, (number + part) as f64);
            block
        };
        let blocks: Vec<HistoryBlock> = (0..12).map(block).collect();
        let dir = unused(dir, Grain::Seconds, blocks[0].from.0);
        write(&dir, &head(), (Grain::Seconds, Vec::new()), &blocks).expect("written");
    }

    /// Returns the finished requests of a range of hours, over all folders.
    fn kept(dir: &Path, hours: std::ops::Range<i64>) -> f64 {
        let read = |folder: &BlocksFolder| folder.read().expect("it reads").blocks;
        let blocks = in_order(parted(dir).0.iter().flat_map(read).collect());
        let within = |block: &&HistoryBlock| hours.contains(&(block.from.0 / 1_000_000_000 / HOUR));
        blocks.iter().filter(within).map(|block| block.counters[&FINISHED]).sum()
    }

    fn truth(hours: std::ops::Range<i64>) -> f64 {
        hours.map(|number| 12.0 * number as f64 + 66.0).sum()
    }

    fn spec(dir: &Path) -> RetentionSpec {
        RetentionSpec { dir: dir.to_path_buf(), keep_bytes: 1 << 30, keep_days: 30.0 }
    }

    fn grains(dir: &Path) -> [usize; 3] {
        Grain::ALL.map(|grain| list(dir).iter().filter(|folder| folder.grain == grain).count())
    }

    #[test]
    fn what_grows_old_is_folded_and_nothing_is_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path();
        hour(dir, 0);
        let hourly = size(&list(dir)[0].dir);
        for number in 0..100 {
            if number > 0 {
                hour(dir, number);
            }
            if number % 7 == 0 {
                tidy(&spec(dir), at(number * HOUR).0).expect("tidy");
                assert_eq!(kept(dir, 0..number + 1), truth(0..number + 1), "hour {number}");
            }
        }
        tidy(&spec(dir), at(100 * HOUR).0).expect("tidy");
        assert_eq!(grains(dir), [1, 75, 1], "an hour of tens, three days of minutes, a day of hours");
        assert_eq!(kept(dir, 0..100), truth(0..100));
        let all: u64 = list(dir).iter().map(|folder| size(&folder.dir)).sum();
        assert!(
            all < 80 * hourly,
            "a hundred hours take less than eighty of tens would: {all} against {hourly}"
        );
        // Blocks are counted once, even if a kill leaves the unfolded folder in place.
        hour(dir, 100);
        let before = list(dir).pop().expect("the newest");
        tidy(&spec(dir), at(102 * HOUR).0).expect("tidy");
        let after = list(dir).pop().expect("the newest");
        assert_eq!((before.grain, after.grain), (Grain::Seconds, Grain::Minute));
        assert_eq!(kept(dir, 0..101), truth(0..101));
    }

    /// A kill between the rename of the new folder and the removal of the old ones leaves every block twice.
    /// Each block counts once.
    #[test]
    fn a_kill_while_it_is_folded_costs_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path();
        hour(dir, 0);
        let aside = folder.path().join("aside");
        std::fs::rename(&list(dir)[0].dir, &aside).expect("set aside");
        std::fs::create_dir(dir.join("10s-0")).expect("a place");
        for entry in std::fs::read_dir(&aside).expect("read").flatten() {
            std::fs::copy(entry.path(), dir.join("10s-0").join(entry.file_name())).expect("copied");
        }
        std::fs::create_dir(dir.join(format!("{DRAFT}7"))).expect("half a folder");
        tidy(&spec(dir), at(2 * HOUR).0).expect("tidy");
        assert_eq!(grains(dir), [0, 1, 0]);
        std::fs::rename(&aside, dir.join("10s-0")).expect("as before");
        assert_eq!(kept(dir, 0..1), truth(0..1));
        tidy(&spec(dir), at(2 * HOUR).0).expect("tidy");
        assert_eq!(grains(dir), [0, 1, 0]);
        assert_eq!(kept(dir, 0..1), truth(0..1));
        assert!(!dir.join(format!("{DRAFT}7")).exists());
    }

    #[test]
    fn the_oldest_go_by_size_and_by_age() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path();
        (0..6).for_each(|number| hour(dir, number));
        let each = size(&list(dir)[0].dir);
        let bounded = RetentionSpec { keep_bytes: 4 * each + each / 2, ..spec(dir) };
        tidy(&bounded, 0).expect("tidy");
        assert_eq!(list(dir).iter().map(|folder| folder.began_s / 3600).collect::<Vec<_>>(), [2, 3, 4, 5]);
        let aged = RetentionSpec { keep_days: 0.125, ..spec(dir) };
        tidy(&aged, at(7 * HOUR - 600).0).expect("tidy");
        let all: u64 = list(dir).iter().map(|folder| size(&folder.dir)).sum();
        assert!(all <= 4 * each && kept(dir, 0..4) == 0.0 && kept(dir, 4..6) == truth(4..6));
    }

    /// After the clock was set back, the earlier block is kept.
    #[test]
    fn time_is_told_once() {
        let block = |from: i64, to: i64| HistoryBlock::empty(at(from), at(to));
        let found = in_order(vec![block(0, 10), block(10, 20), block(5, 15), block(20, 30)]);
        assert_eq!(found.iter().map(|block| block.from).collect::<Vec<_>>(), [at(0), at(10), at(20)]);
    }
}

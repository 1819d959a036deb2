//! The stored history against a log of requests: blocks, folded blocks, and blocks written as rows and read back.

use plimsoll_measure::server_side::table::SignalLayer;
use plimsoll_measure::server_side::{Buckets, ServerSide, Signal};
use plimsoll_model::{At, Sample, Span};
use plimsoll_watch::RowState;
use plimsoll_watch::bracket::EdgeBracket;
use plimsoll_watch::course::ChartData;
use plimsoll_watch::history::rows::HistoryRows;
use plimsoll_watch::history::{Grain, HistoryBlock, fold, read};
use plimsoll_watch::replay::of_pages;

use crate::watched::{Page, TTFT, watched};

/// The watch began 7 s after a full hour.
const WALL_NS: i64 =
    1_795_400_007_000_000_000 - 1_795_400_007_000_000_000 % 3_600_000_000_000 + 7_000_000_000;
const EDGES: [f64; 9] = [0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5];
/// Scrape interval, s.
const EVERY: i64 = 5;

/// The servers' own log.
#[derive(Default)]
struct Log {
    /// End of each request in s, and its time to first token in s.
    ended: Vec<(i64, f64)>,
    failed: Vec<i64>,
    /// Waiting requests of the whole fleet, from this second on.
    waiting: Vec<(i64, f64)>,
}

impl Log {
    fn ended(&self, block: &HistoryBlock) -> impl Iterator<Item = f64> {
        self.ended.iter().filter(|(at, _)| within(block, *at)).map(|(_, ttft)| *ttft)
    }
}

fn within(block: &HistoryBlock, at_s: i64) -> bool {
    let at = At(at_s * 1_000_000_000);
    at > block.from && at <= block.to
}

/// Returns some hours of two replicas; the second restarts at times, right after a scrape.
fn days(hours: i64, seed: i64) -> (Log, Vec<HistoryBlock>) {
    let mut watched = watched(TTFT).keeping(WALL_NS);
    let (mut log, mut pages, mut blocks) = (Log::default(), [Page::default(), Page::default()], Vec::new());
    for at in 0..=hours * 3600 {
        let mixed = (at * 7919 + seed * 104_729).rem_euclid(1_000_003);
        for (which, page) in pages.iter_mut().enumerate() {
            for k in 0..(mixed >> which) % 3 {
                let ttft = 0.03 + 0.001 * ((mixed + 37 * k) % 900) as f64;
                page.ttft.push(ttft);
                log.ended.push((at, ttft));
            }
            if (mixed + which as i64) % 97 == 0 {
                page.failed += 1;
                log.failed.push(at);
            }
        }
        if at % EVERY == 0 {
            pages[0].waiting = (mixed % 11) as f64;
            log.waiting.push((at, pages[0].waiting));
            for (page, name) in pages.iter().zip(["a", "b"]) {
                page.samples(name, at).iter().for_each(|sample| watched.push(sample));
            }
            watched.tick(At(at * 1_000_000_000));
            blocks.extend(watched.blocks_ended(false));
            // A process loses the requests since its last scrape at its end, here none. It is old enough that all its
            // counters fall.
            for (page, lives_s) in pages.iter_mut().zip([2700, 1800]) {
                if at > 0 && at % lives_s == 0 {
                    *page = Page::default();
                }
            }
        }
    }
    blocks.extend(watched.blocks_ended(true));
    (log, blocks)
}

/// Checks that a block equals the log of its time.
fn check(log: &Log, block: &HistoryBlock) {
    let ttfts: Vec<f64> = log.ended(block).collect();
    let failed = log.failed.iter().filter(|at| within(block, **at)).count() as f64;
    assert_eq!(
        block.counters[&(SignalLayer::Engine, Signal::Finished)],
        ttfts.len() as f64,
        "{:?}",
        block.from
    );
    assert_eq!(block.counters[&(SignalLayer::Engine, Signal::Failed)], failed);
    let [ladder] = &block.histograms[&(SignalLayer::Engine, Signal::Ttft)][..] else {
        panic!("one ladder of edges")
    };
    assert_eq!(ladder.edges, EDGES);
    let bucket = |n: usize| {
        let (a, b) =
            (if n == 0 { 0.0 } else { EDGES[n - 1] }, EDGES.get(n).copied().unwrap_or(f64::INFINITY));
        ttfts.iter().filter(|ttft| **ttft > a && **ttft <= b).count() as f64
    };
    assert_eq!(ladder.counts, (0..=EDGES.len()).map(bucket).collect::<Vec<_>>());
    let sum: f64 = ttfts.iter().sum();
    assert!((ladder.sum.expect("a sum") - sum).abs() <= 1e-9 * sum.max(1.0), "{:?} {sum}", ladder.sum);
    assert_eq!(ladder.count, Some(ttfts.len() as f64));
    assert_eq!(block.watched, block.to - block.from);
    let waiting: Vec<f64> =
        log.waiting.iter().filter(|(at, _)| within(block, *at)).map(|(_, waiting)| *waiting).collect();
    let range = block.gauges[&(SignalLayer::Engine, Signal::Waiting)];
    assert_eq!(range.least, waiting.iter().copied().fold(f64::INFINITY, f64::min));
    assert_eq!(range.most, waiting.iter().copied().fold(0.0, f64::max));
    let mean = waiting.iter().sum::<f64>() / waiting.len() as f64;
    assert!((range.mean - mean).abs() < 1e-9, "{} {mean}", range.mean);
    assert_eq!(block.gauges[&(SignalLayer::Engine, Signal::ReplicasReady)].mean, 2.0);
}

fn written(blocks: &[HistoryBlock]) -> Vec<Sample> {
    let mut rows = HistoryRows::default();
    blocks.iter().flat_map(|block| rows.of(block)).collect()
}

#[test]
fn blocks_and_what_they_fold_into_are_the_logs_counts() {
    let (log, blocks) = days(3, 1);
    assert_eq!(blocks.len(), 3 * 360 + 1, "the wall clock's tens are not the watch's");
    let back = read::blocks(&written(&blocks));
    for (grain, folded) in [(Grain::Seconds, 1081), (Grain::Minute, 181), (Grain::Hour, 4)] {
        let of = |blocks: &[HistoryBlock]| fold(blocks.to_vec(), grain, WALL_NS);
        let (direct, stored) = (of(&blocks), of(&back));
        assert_eq!((direct.len(), stored.len()), (folded, folded), "{grain:?}");
        direct.iter().chain(&stored).for_each(|block| check(&log, block));
        // Written in minutes and read back before they become hours, as on disk.
        let twice = read::blocks(&written(&stored));
        fold(twice, Grain::Hour, WALL_NS).iter().for_each(|block| check(&log, block));
    }
}

/// All evaluations of metrics work on the rows: counts equal the log, and an hour's verdict brackets its share.
#[test]
fn rows_of_a_history_are_judged_like_a_page() {
    let (log, blocks) = days(1, 2);
    let rows = written(&blocks);
    let side = ServerSide::read(&rows);
    let (from, to) = (blocks[0].from, blocks[blocks.len() - 1].to);
    let taken = side.histogram(Signal::Ttft, from, to).expect("a histogram");
    assert_eq!(
        taken.counts.iter().sum::<f64>(),
        log.ended.len() as f64 - log.ended.iter().filter(|e| e.0 == 0).count() as f64
    );
    let waiting = side.gauge(Signal::Waiting).expect("a gauge").mean(from, to).expect("known");
    let truth: Vec<f64> = log.waiting[1..].iter().map(|(_, waiting)| *waiting).collect();
    assert!((waiting - truth.iter().sum::<f64>() / truth.len() as f64).abs() < 1e-6);
    assert!(side.replicas().is_empty(), "a fleet is no replica");
    let budget = serde_json::from_str(
        r#"{"version": 1, "budgets": [{"id": "on", "metric": "ttft", "p": "50", "max": "500ms"}, {"id": "in", "metric": "ttft", "p": "50", "max": "600ms"},
            {"id": "errors", "metric": "error_rate", "max": "5%"}]}"#,
    )
    .expect("a budget");
    let found = of_pages(&budget, Span::from_secs(10), &plimsoll_watch::AlertSpec::default(), &rows, None);
    let found = found.expect("pages").rows;
    let all = log.ended.iter().filter(|e| e.0 > 0).count() + log.failed.iter().filter(|at| **at > 0).count();
    let over = |limit: f64| {
        let over = log.ended.iter().filter(|(at, ttft)| *at > 0 && *ttft > limit).count();
        (over + log.failed.iter().filter(|at| **at > 0).count()) as f64 / all as f64
    };
    for (row, limit) in found.iter().zip([0.5, 0.6]) {
        let [least, most] = row.over.expect("a share");
        assert!(least <= over(limit) && over(limit) <= most, "{row:?} {}", over(limit));
        assert_eq!(row.n, all as u64);
    }
    assert_eq!(found[0].over, Some([over(0.5); 2]), "500 ms is an edge");
    assert_eq!(found[2].state, RowState::Holds, "{:?}", found[2]);
}

/// Metrics without failures (SGLang's) have none in the history either.
#[test]
fn what_no_page_counts_is_not_in_the_history() {
    let mut watched = watched(TTFT).keeping(WALL_NS);
    for at in 0..=60 {
        let row = |name: &str, value: f64| Sample {
            at: At(at * 1_000_000_000),
            source: "server".into(),
            name: name.into(),
            labels: "".into(),
            value,
        };
        watched.push(&row("scrape_samples", 2.0));
        watched.push(&row("sglang:num_requests_total", 3.0 * at as f64));
        watched.push(&row("sglang:num_running_reqs", 1.0));
        watched.tick(At(at * 1_000_000_000));
    }
    let blocks = watched.blocks_ended(true);
    let counted =
        |signal| blocks.iter().filter_map(|b| b.counters.get(&(SignalLayer::Engine, signal))).sum::<f64>();
    assert_eq!(counted(Signal::Finished), 180.0);
    assert!(blocks.iter().all(|block| !block.counters.contains_key(&(SignalLayer::Engine, Signal::Failed))));
    assert!(!ServerSide::read(&written(&blocks)).may_say(Signal::Failed));
}

/// Between two watches no counts exist, and gauges are unknown.
#[test]
fn a_gap_is_known_and_holds_nothing() {
    let (_, mut blocks) = days(1, 3);
    let gone: Vec<HistoryBlock> = blocks.drain(100..200).collect();
    let rows = written(&blocks);
    assert_eq!(read::blocks(&rows).len(), blocks.len());
    let side = ServerSide::read(&rows);
    let gap = (gone[0].from, gone[99].to);
    assert_eq!(side.gained(Signal::Finished, gap.0, gap.1).map_or(0.0, |gained| gained.value), 0.0);
    let middle = gap.0 + Span((gap.1 - gap.0).0 / 2);
    assert_eq!(side.gauge(Signal::Waiting).expect("a gauge").at(middle), None);
    let finished = |blocks: &[HistoryBlock]| {
        blocks.iter().map(|block| block.counters[&(SignalLayer::Engine, Signal::Finished)]).sum::<f64>()
    };
    let all = side.gained(Signal::Finished, At(0), At::MAX).expect("a counter");
    assert_eq!(all.value, finished(&blocks));
    let folded = fold(read::blocks(&rows), Grain::Hour, WALL_NS);
    assert_eq!(finished(&folded), finished(&blocks));
    assert_eq!(
        folded[0].watched,
        Span(blocks[..].iter().take_while(|b| b.from < folded[0].to).map(|b| b.watched.0).sum())
    );
}

/// A kill at any row leaves the complete blocks.
#[test]
fn half_a_block_is_no_block() {
    let (_, mut blocks) = days(1, 4);
    blocks.truncate(12);
    let mut rows = HistoryRows::default();
    let each: Vec<Vec<Sample>> = blocks.iter().map(|block| rows.of(block)).collect();
    let all: Vec<Sample> = each.concat();
    let ends: Vec<usize> = each
        .iter()
        .scan(0, |end, rows| {
            *end += rows.len();
            Some(*end)
        })
        .collect();
    let whole = read::blocks(&all);
    for cut in 0..=all.len() {
        let kept = ends.iter().filter(|end| **end <= cut).count();
        let found = read::blocks(&all[..cut]);
        assert_eq!(found.len(), kept, "cut at {cut}");
        assert_eq!(found, whole[..kept]);
    }
}

/// Engines of two versions have different edges: each set is stored unchanged, and a ceiling that is an edge of both
/// is exact.
#[test]
fn ladders_of_other_edges_are_kept_apart() {
    let mut watched = watched(TTFT).keeping(WALL_NS);
    for at in (0..=120).step_by(5) {
        for (page, edges) in [("a", [0.1, 0.5]), ("b", [0.2, 0.5])] {
            let mut row = |name: &str, labels: String, value: f64| {
                watched.push(&Sample {
                    at: At(at * 1_000_000_000),
                    source: "server".into(),
                    name: name.into(),
                    labels: labels.into(),
                    value,
                });
            };
            let own = format!("source={page}");
            row("scrape_samples", own.clone(), 4.0);
            for (edge, share) in edges.iter().zip([2.0, 3.0]) {
                row("vllm:time_to_first_token_seconds_bucket", format!("le={edge},{own}"), share * at as f64);
            }
            row("vllm:time_to_first_token_seconds_bucket", format!("le=+Inf,{own}"), 4.0 * at as f64);
        }
        watched.tick(At(at * 1_000_000_000));
    }
    let blocks = read::blocks(&written(&watched.blocks_ended(true)));
    let hour = fold(blocks.clone(), Grain::Hour, WALL_NS);
    let ladders = &hour[0].histograms[&(SignalLayer::Engine, Signal::Ttft)];
    assert_eq!(ladders.iter().map(|one| one.edges.clone()).collect::<Vec<_>>(), [[0.1, 0.5], [0.2, 0.5]]);
    assert!(ladders.iter().all(|one| one.counts == [240.0, 120.0, 120.0]), "{ladders:?}");
    let whole = ServerSide::read(&written(&blocks)).histogram(Signal::Ttft, At(0), At::MAX).expect("both");
    assert_eq!((whole.edges, whole.counts), (vec![0.5], vec![720.0, 240.0]));
}

/// In any cut and folding of blocks, no count is lost.
#[test]
fn folding_in_any_steps_is_folding_at_once() {
    for (seed, cut) in [(11, 1), (12, 77), (13, 299)] {
        let (log, blocks) = days(1, seed);
        let (first, second) = blocks.split_at(cut);
        let minutes = [first, second].map(|part| fold(part.to_vec(), Grain::Minute, WALL_NS));
        let stored = minutes.iter().flat_map(|part| read::blocks(&written(part)));
        fold(stored, Grain::Hour, WALL_NS).iter().for_each(|block| check(&log, block));
    }
}

/// With more edge sets than are stored separately, the others keep their common edges, with correct counts.
#[test]
fn of_too_many_ladders_the_common_edges_stay() {
    let mut watched = watched(TTFT).keeping(WALL_NS);
    for at in (0..=200).step_by(5) {
        // A new version every fifteen seconds: each has a separate edge below a common one.
        for version in 0..=(at / 15).min(11) {
            let own = format!("source=v{version}");
            let mut row = |name: &str, labels: String, value: f64| {
                let (at, source) = (At(at * 1_000_000_000), "server".into());
                watched.push(&Sample { at, source, name: name.into(), labels: labels.into(), value });
            };
            row("scrape_samples", own.clone(), 3.0);
            for (edge, share) in
                [(format!("0.{}", 10 + version), 1.0), ("0.5".to_owned(), 2.0), ("+Inf".to_owned(), 3.0)]
            {
                let value = share * (at - 15 * version) as f64;
                row("vllm:time_to_first_token_seconds_bucket", format!("le={edge},{own}"), value);
            }
        }
        watched.tick(At(at * 1_000_000_000));
    }
    let blocks = watched.blocks_ended(true);
    let truth: f64 = (0..12).map(|version| (200 - 15 * version) as f64).sum();
    for rows in [written(&blocks), written(&fold(read::blocks(&written(&blocks)), Grain::Hour, WALL_NS))] {
        let whole = ServerSide::read(&rows).histogram(Signal::Ttft, At(0), At::MAX).expect("all");
        assert_eq!((whole.edges, whole.counts), (vec![0.5], vec![2.0 * truth, truth]));
    }
}

/// The charts of a minute match the log: percentiles between enclosing edges, requests per second, ranges of gauges;
/// a gap has no minute.
#[test]
fn minutes_on_the_page_are_the_logs() {
    let (log, mut blocks) = days(4, 3);
    // From 3 h on, ten minutes were not watched.
    blocks.retain(|block| !(10_800..11_400).contains(&(block.from.0 / 1_000_000_000)));
    let mut course = ChartData::new(WALL_NS);
    course.take(blocks.clone());
    let points = course.points();
    let at = |unix_s: f64| At(((unix_s * 1e9).round() as i64) - WALL_NS);
    let last = points.last().expect("minutes");
    assert!(last.to_s - points[0].to_s <= 3.0 * 3600.0 && last.to_s - points[0].from_s > 3.0 * 3600.0 - 60.0);
    // The gap begins and ends within a minute.
    assert_eq!(points.len(), 180 + 1 - 9);
    let mut exact = 0;
    for point in &points {
        let minute = HistoryBlock::empty(at(point.from_s), at(point.to_s));
        let near = |block: &&HistoryBlock| (block.from - minute.from).0.abs() < 1_000_000;
        assert!(blocks.iter().any(|block| near(&block)), "{point:?}");
        // Seconds since 1970 are not whole nanoseconds.
        let whole = |at: At| At((at.0 + 500_000_000).div_euclid(1_000_000_000) * 1_000_000_000);
        let minute = HistoryBlock::empty(whole(minute.from), whole(minute.to));
        let mut ttfts: Vec<f64> = log.ended(&minute).collect();
        ttfts.sort_by(f64::total_cmp);
        let seconds = point.to_s - point.from_s;
        assert!((point.requests_per_s.expect("told") - ttfts.len() as f64 / seconds).abs() < 1e-6);
        for (bracket, p) in point.latencies["ttft"].iter().zip([0.5, 0.99]) {
            let bracket = bracket.expect("requests came");
            let truth = ttfts[((p * ttfts.len() as f64).ceil() as usize).max(1) - 1];
            assert!(bracket.between.over_s.is_none_or(|over| over < truth), "{bracket:?} {truth}");
            assert!(bracket.between.most_s.is_none_or(|most| truth <= most), "{bracket:?} {truth}");
            exact += usize::from(bracket.between.over_s.is_some() && bracket.between.most_s.is_some());
        }
        let waiting: Vec<f64> =
            log.waiting.iter().filter(|(at, _)| within(&minute, *at)).map(|(_, waiting)| *waiting).collect();
        let [least, mean, most] = point.waiting.expect("told");
        assert_eq!(least, waiting.iter().copied().fold(f64::INFINITY, f64::min));
        assert_eq!(most, waiting.iter().copied().fold(0.0, f64::max));
        assert!(least <= mean && mean <= most && !point.latencies.contains_key("itl"));
    }
    assert!(exact as f64 > 1.9 * points.len() as f64, "nearly all have two edges: {exact}");
}

/// With two edge sets, a percentile is between the enclosing edges for any requests inside a bucket.
#[test]
fn an_edge_that_cuts_a_bucket_of_another_ladder_decides_nothing_of_it() {
    let ladder = |edges: &[f64], counts: &[f64]| Buckets {
        edges: edges.to_vec(),
        counts: counts.to_vec(),
        sum: None,
        count: None,
        bounds: [None; 2],
        resets: 0,
        from: At::ZERO,
        to: At::ZERO,
    };
    let of = |ladders: &[Buckets], p| {
        let bracket = EdgeBracket::observed(ladders, p).expect("something came");
        (bracket.over_s, bracket.most_s)
    };
    let coarse = ladder(&[1.0, 4.0], &[0.0, 10.0, 0.0]);
    assert_eq!(of(std::slice::from_ref(&coarse), 0.5), (Some(1.0), Some(4.0)));
    // With ten in (1, 4] and ten in (2, 3] the median may be anywhere in (1, 3], because ten of the first may be below 2.
    let fine = ladder(&[2.0, 3.0], &[0.0, 10.0, 0.0]);
    assert_eq!(of(&[coarse.clone(), fine.clone()], 0.5), (Some(1.0), Some(3.0)));
    assert_eq!(of(&[coarse.clone(), fine], 0.99), (Some(2.0), Some(4.0)));
    // A percentile past the last edge has no upper edge, one below the first no lower edge.
    assert_eq!(of(&[ladder(&[1.0, 2.0], &[0.0, 0.0, 3.0])], 0.5), (Some(2.0), None));
    assert_eq!(of(&[ladder(&[1.0, 2.0], &[3.0, 0.0, 0.0])], 0.5), (None, Some(1.0)));
    assert!(EdgeBracket::observed(&[ladder(&[1.0], &[0.0, 0.0])], 0.5).is_none());
}

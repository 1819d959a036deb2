//! What a start was made of, as the server's own log tells it: image, weights, compilation, graphs, cache, warm-up.
//!
//! No metrics page says it, but servers write it down while they start. A stage's time is the one that its line tells; where none does, it
//! is the time between the lines at its two ends, as fine as their stamps are. What no line says is unknown and listed as such. Every figure keeps
//! the line that it came from, because formats change with versions and a reader must be able to check.
//!
//! Of several processes that start side by side (ranks of a tensor-parallel group) the slowest counts; of stages that follow each other under
//! one name (the weights of a model and of its draft) the sum. Reading the whole from the distance between first and last line
//! alone lost: it says nothing of what to shorten.

mod events;
mod stamp;
mod table;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use stamp::Stamp;

use table::{Does, Rule, rules};

/// Something that a start is made of.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartStage {
    /// A machine found, the image there and the container begun.
    Container,
    /// The image pulled, of that.
    Image,
    /// The process before it touches weights: imports, configuration, groups of processes.
    Process,
    /// Weights fetched to this machine.
    Download,
    /// Weights read into memory.
    Weights,
    /// Adapters loaded.
    Adapter,
    /// The model built around its weights.
    Build,
    /// The KV cache sized and allocated, with the profiling run that sizes it.
    Cache,
    /// Code compiled.
    Compile,
    /// Device graphs captured.
    Graphs,
    /// First runs before the server says that it is ready.
    Warmup,
}

impl StartStage {
    /// What a start is asked to be split into (SPEC M12).
    pub const ASKED: [StartStage; 5] = [
        StartStage::Container,
        StartStage::Weights,
        StartStage::Adapter,
        StartStage::Cache,
        StartStage::Compile,
    ];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            StartStage::Container => "container",
            StartStage::Image => "image pull",
            StartStage::Process => "process, before weights",
            StartStage::Download => "weights fetched",
            StartStage::Weights => "weights read",
            StartStage::Adapter => "adapters",
            StartStage::Build => "model built",
            StartStage::Cache => "cache allocation",
            StartStage::Compile => "compilation",
            StartStage::Graphs => "graph capture",
            StartStage::Warmup => "warm-up",
        }
    }
}

/// One stage of a start.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StartPart {
    /// Which.
    pub stage: StartStage,
    /// How long it took, s.
    pub seconds: f64,
    /// As fine as the log tells it: half of the last digit of what was told, or one step of its stamps, s.
    pub within_s: f64,
    /// Did a line tell it (else it is the distance between two lines)?
    pub told: bool,
    /// Is it the most that it can have been, because no line stands where it begins or ends?
    #[serde(default)]
    pub at_most: bool,
    /// Number of the line that told it or ended it, from 1.
    pub line: u64,
    /// That line, cut to a length that can be read.
    pub text: String,
}

/// One start as a log tells it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EngineStart {
    /// The log it was read from; empty = not said.
    #[serde(default)]
    pub source: String,
    /// Whose lines these are.
    pub engine: String,
    /// Its version, where a line says it.
    pub version: Option<String>,
    /// Its first line, from 1.
    pub line: u64,
    /// What it was made of, in the order of the stages.
    pub parts: Vec<StartPart>,
    /// From its first line to the one that says it is ready, s; `None` where lines have no stamps or it never was ready.
    pub whole_s: Option<f64>,
    /// Is that the least it can have been, because the first or the last line has no stamp and the nearest one that has stands for it?
    #[serde(default)]
    pub whole_at_least: bool,
    /// That less its parts: what no line accounts for, s.
    pub rest_s: Option<f64>,
    /// Did it become ready?
    pub ready: bool,
    /// What of SPEC M12's list no line of it says.
    pub unknown: Vec<StartStage>,
}

/// A length of text that fits a terminal.
const TEXT: usize = 160;

/// Reads the starts of a log, in order. Empty where no line of it is known.
pub fn read(log: &str) -> Vec<EngineStart> {
    let mut all: Vec<Start> = Vec::new();
    for (n, line) in &events::lines(log) {
        for rule in rules().iter().filter(|rule| line.contains(&rule.has)) {
            if let Some(own) = rule.pattern.captures(line) {
                take(&mut all, rule, &own, (*n, line));
            }
        }
        // Lines that say nothing have stamps all the same: where the last one has none, they say how late it is at the least.
        if let Some(start) = all.last_mut().filter(|start| !start.ready)
            && let Some(stamp) = stamp::of(line)
        {
            start.seen = Some((start.seen.map_or(stamp, |(first, _)| first), stamp));
        }
    }
    all.into_iter().filter(|start| start.ready || !start.marks.is_empty()).map(Start::finish).collect()
}

/// A line that said something.
struct Mark {
    /// Place of its rule in the table.
    rule: usize,
    does: Does,
    stage: StartStage,
    seconds: Option<f64>,
    within_s: f64,
    /// What of several of the same stage it is about.
    of: String,
    stamp: Option<Stamp>,
    /// Its place in the order of time, which is not that of the file where kubectl printed a table.
    place: usize,
    line: u64,
    text: String,
    near: bool,
    without: &'static [StartStage],
}

struct Start {
    engine: String,
    version: Option<String>,
    opened: Option<usize>,
    line: u64,
    first: Option<Stamp>,
    until: Option<Stamp>,
    /// The first and the last stamp of any of its lines.
    seen: Option<(Stamp, Stamp)>,
    ready: bool,
    marks: Vec<Mark>,
}

fn take(all: &mut Vec<Start>, rule: &'static Rule, own: &regex::Captures<'_>, (n, line): (u64, &str)) {
    let text = |name: &str| own.name(name).map(|found| found.as_str());
    let stamp = stamp::of(line);
    let open = all.last().filter(|start| start.engine == rule.engine);
    let begins = match (rule.does, open) {
        (Does::Start, None) => true,
        (Does::Start, Some(open)) => open.ready || !open.marks.is_empty() && open.opened == Some(rule.place),
        // A log whose head is missing; an adapter that was loaded while requests were served.
        (Does::Ready, _) => false,
        _ if rule.stage == Some(StartStage::Adapter) => false,
        (_, open) => open.is_none_or(|open| open.ready) && all.last().is_none_or(|last| last.ready),
    };
    if begins {
        all.push(Start {
            engine: rule.engine.clone(),
            version: None,
            opened: (rule.does == Does::Start).then_some(rule.place),
            line: n,
            first: stamp.filter(|_| rule.does == Does::Start),
            until: None,
            seen: None,
            ready: false,
            marks: Vec::new(),
        });
    }
    let Some(start) = all.last_mut().filter(|start| start.engine == rule.engine && !start.ready) else {
        return;
    };
    match (rule.does, rule.stage) {
        (Does::Start, _) => start.version = start.version.take().or(text("version").map(str::to_owned)),
        (Does::Ready, _) => (start.ready, start.until) = (true, stamp),
        (does, Some(stage)) => {
            let told = text("s").map(seconds).or_else(|| text("go").and_then(go_time));
            start.marks.push(Mark {
                rule: rule.place,
                does,
                stage,
                seconds: told.map(|(seconds, _)| seconds),
                within_s: told.map_or(0.0, |(_, within)| within),
                of: text("of").unwrap_or_default().trim().to_owned(),
                stamp,
                place: start.marks.len(),
                line: n,
                text: line.trim().chars().take(TEXT).collect(),
                near: rule.near,
                without: &rule.without,
            });
        }
        _ => {}
    }
}

/// `71.42` → 71.42 s, half of its last digit.
fn seconds(text: &str) -> (f64, f64) {
    let digits = text.split_once('.').map_or(0, |(_, digits)| digits.len());
    (text.parse().unwrap_or(0.0), 0.5 * libm::pow(10.0, -(digits as f64)))
}

/// `1m12.345s`, as Go writes times.
fn go_time(text: &str) -> Option<(f64, f64)> {
    let mut rest = text;
    let (mut all, mut within) = (0.0, 0.5);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let unit = match &after[..letters] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "µs" | "us" => 1e-6,
            _ => return None,
        };
        let (value, fine) = seconds(number);
        (all, within) = (all + unit * value, unit * fine);
        rest = &after[letters..];
    }
    Some((all, within))
}

impl Start {
    fn finish(self) -> EngineStart {
        let mut parts: Vec<StartPart> = Vec::new();
        let mut stages: Vec<StartStage> = self.marks.iter().map(|mark| mark.stage).collect();
        stages.sort_unstable();
        stages.dedup();
        // What is told as a whole is taken apart last: the parts within it are known by then.
        let whole =
            |stage: &StartStage| self.told(*stage).first().is_some_and(|mark| !mark.without.is_empty());
        stages.sort_by_key(whole);
        for stage in stages {
            let part = self.told_part(stage, &parts).or_else(|| self.between(stage));
            parts.extend(part);
        }
        if let Some(before) = self.before(&parts) {
            parts.push(before);
        }
        parts.sort_by_key(|part| part.stage);
        let (whole_s, whole_at_least) = self.whole();
        // The image is a part of its container.
        let own = parts.iter().filter(|part| part.stage != StartStage::Image);
        let rest_s = whole_s.map(|whole| (whole - own.map(|part| part.seconds).sum::<f64>()).max(0.0));
        let unknown =
            StartStage::ASKED.into_iter().filter(|asked| parts.iter().all(|part| part.stage != *asked));
        EngineStart {
            source: String::new(),
            unknown: unknown.collect(),
            engine: self.engine,
            version: self.version,
            line: self.line,
            parts,
            whole_s,
            whole_at_least,
            rest_s,
            ready: self.ready,
        }
    }

    /// Lines that tell this stage, of the first rule in the table that any line fits.
    fn told(&self, stage: StartStage) -> Vec<&Mark> {
        let all: Vec<&Mark> =
            self.marks.iter().filter(|mark| mark.stage == stage && mark.seconds.is_some()).collect();
        let first = all.iter().map(|mark| mark.rule).min();
        all.into_iter().filter(|mark| Some(mark.rule) == first).collect()
    }

    fn told_part(&self, stage: StartStage, known: &[StartPart]) -> Option<StartPart> {
        let told = self.told(stage);
        let mut of: Vec<&str> = told.iter().map(|mark| mark.of.as_str()).collect();
        of.sort_unstable();
        of.dedup();
        let longest = |of: &&str| {
            let same = told.iter().filter(|mark| mark.of == **of);
            same.max_by(|a, b| a.seconds.unwrap_or(0.0).total_cmp(&b.seconds.unwrap_or(0.0))).copied()
        };
        let marks: Vec<&Mark> = of.iter().filter_map(longest).collect();
        let last = marks.iter().max_by_key(|mark| mark.line)?;
        let sum: f64 = marks.iter().filter_map(|mark| mark.seconds).sum();
        let within = known.iter().filter(|part| last.without.contains(&part.stage));
        Some(StartPart {
            stage,
            seconds: (sum - within.map(|part| part.seconds).sum::<f64>()).max(0.0),
            within_s: marks.iter().map(|mark| mark.within_s).sum(),
            told: true,
            at_most: false,
            line: last.line,
            text: last.text.clone(),
        })
    }

    /// From its first line to the one that says it is ready, s. Where one of these has no stamp (uvicorn's have none), the nearest one within the
    /// start that has stands for it, and this is the least that it took.
    fn whole(&self) -> (Option<f64>, bool) {
        if !self.ready {
            return (None, false);
        }
        if let Some(whole) = self.first.zip(self.until).and_then(|(from, to)| apart(from, to)) {
            return (Some(whole), false);
        }
        let Some((earliest, latest)) = self.seen else { return (None, false) };
        let ends = (self.first.unwrap_or(earliest), self.until.unwrap_or(latest));
        let whole = apart(ends.0, ends.1).filter(|whole| *whole > 0.0);
        (whole, whole.is_some())
    }

    /// From its beginning to its end, where lines mark both, less the adapters that were loaded meanwhile.
    fn between(&self, stage: StartStage) -> Option<StartPart> {
        let (from, to) = self.ends(stage)?;
        let loading = self.adapters();
        let (a, b) = match stage {
            StartStage::Adapter => loading?,
            _ => (from.stamp?, to.stamp?),
        };
        let meanwhile = loading.filter(|(x, _)| stage != StartStage::Adapter && x.kind == a.kind);
        let within = meanwhile.map_or(0.0, |(x, y)| (y.at_s.min(b.at_s) - x.at_s.max(a.at_s)).max(0.0));
        Some(StartPart {
            stage,
            seconds: (apart(a, b)? - within).max(0.0),
            within_s: a.within_s.max(b.within_s),
            told: false,
            at_most: from.near || to.near,
            line: to.line,
            text: to.text.clone(),
        })
    }

    /// The lines that mark a stage's beginning and end.
    fn ends(&self, stage: StartStage) -> Option<(&Mark, &Mark)> {
        let of = |does: Does| self.marks.iter().filter(move |mark| mark.stage == stage && mark.does == does);
        let first = of(Does::Begin).next()?;
        // Of lines of several rules the one that comes first ends it; of several of that rule (ranks side by side) the last.
        let end = of(Does::End).find(|mark| mark.place > first.place)?;
        let to = of(Does::End).rfind(|mark| mark.rule == end.rule)?;
        // What follows another stage begins once all ranks are through with that; what is first begins with the first rank.
        let follows = matches!(stage, StartStage::Cache | StartStage::Warmup);
        let from = match follows {
            true => of(Does::Begin).rfind(|mark| mark.place < end.place)?,
            false => first,
        };
        Some((from, to))
    }

    /// When adapters were loaded. A rank that begins with them while another still reads weights is not waited for: they count from when
    /// all weights were there.
    fn adapters(&self) -> Option<(Stamp, Stamp)> {
        let (from, to) = self.ends(StartStage::Adapter)?;
        let (x, y) = (from.stamp?, to.stamp?);
        let weights = self.ends(StartStage::Weights).and_then(|(_, end)| end.stamp);
        let later = weights.filter(|read| read.kind == x.kind && read.at_s > x.at_s && read.at_s < y.at_s);
        Some((later.unwrap_or(x), y))
    }

    /// From the first line to the first that touches weights.
    fn before(&self, parts: &[StartPart]) -> Option<StartPart> {
        let touches = |mark: &&Mark| {
            mark.does == Does::Begin && matches!(mark.stage, StartStage::Weights | StartStage::Download)
        };
        let first = self.marks.iter().find(touches)?;
        let (from, to) = (self.first?, first.stamp?);
        let known = parts.iter().any(|part| part.stage == StartStage::Process);
        (!known && self.line < first.line).then_some(())?;
        Some(StartPart {
            stage: StartStage::Process,
            seconds: apart(from, to)?,
            within_s: from.within_s.max(to.within_s),
            told: false,
            at_most: false,
            line: first.line,
            text: first.text.clone(),
        })
    }
}

/// Seconds from one stamp to the other; `None` where they are of different clocks or run backwards by more than they are coarse: a scheduler
/// writes microseconds and a kubelet the second that has begun.
fn apart(from: Stamp, to: Stamp) -> Option<f64> {
    let (s, coarse_s) = (to.at_s - from.at_s, from.within_s.max(to.within_s));
    (from.kind == to.kind && s > -coarse_s).then_some(s.max(0.0))
}

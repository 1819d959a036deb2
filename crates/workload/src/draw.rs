//! Draws the properties of an arrival except its time: class, sizes, shared blocks, and the plan of a session.
//!
//! Each arrival draws from a stream named by its number, and not from a shared one. The third request is therefore equal
//! whether or not the first two were drawn by this worker, and a closed loop needs no schedule.

use std::sync::Arc;

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Attempt, Carries, MediaCounts, Span};

use crate::arrivals::{ArrivalSpec, TraceSizes};
use crate::documents::DrawnDocuments;
use crate::graph::{Graph, GraphTurn};
use crate::prompts::SALT_WORDS;
use crate::scenario::{AnswerText, PromptOrder};
use crate::trace::{Trace, TraceRow};
use crate::{Scenario, SpecError};

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Arrival {
    /// Number in the schedule of the level, from 0; equal schedules are paired by it.
    pub id: u64,
    /// Level of the request; its text depends on the level.
    pub level: u32,
    /// Due time from the start of the level.
    ///
    /// For a later turn of a session, this is the earliest time, as if all earlier turns took no time. In a closed loop it
    /// is 0. The player replaces both by the actual due time.
    pub due: At,
    pub class: u16,
    /// Session of the request, numbered within the level; `None` = no session.
    pub session: Option<u64>,
    /// Turn number within the session, from 0.
    pub turn: u16,
    /// Number of turns of the session; 0 = no session.
    pub turns: u16,
    /// Turns of the session that must end before this one is due; empty = due at its time.
    pub after: Vec<u16>,
    /// Time from the end of the last of these turns to the due time.
    pub think: Span,
    /// Tokens of the whole prompt, earlier turns included.
    pub prompt_tokens: u32,
    /// Prompt tokens that an earlier turn has already sent.
    pub resent: u32,
    pub output_tokens: u32,
    /// Number of documents or texts; 0 = only the prompt.
    pub documents: u32,
    /// Block ids of the prompt for a trace, the group for a shared prefix, the entry's index for a prompt file.
    pub blocks: Vec<u64>,
}

impl Arrival {
    /// Returns the turns that a turn of a plain conversation waits for: the previous one.
    pub fn after_of(turn: u16) -> Vec<u16> {
        turn.checked_sub(1).into_iter().collect()
    }

    /// Returns the initial row of an attempt.
    pub fn row(&self, attempt: u16, level: u32, due: At) -> Attempt {
        Attempt {
            session: self.session,
            turn: self.turn,
            turns: self.turns,
            class: self.class,
            asked_prompt: self.prompt_tokens,
            resent: (self.turns > 0).then_some(self.resent),
            asked_output: self.output_tokens,
            media: MediaCounts { documents: self.documents, ..MediaCounts::default() },
            ..Attempt::new(self.id, attempt, level, due)
        }
    }
}

/// The plan of a session: lengths and pauses, which do not depend on the server's responses.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Plan {
    pub class: u16,
    pub blocks: Vec<u64>,
    pub turns: Vec<Turn>,
    pub documents: Option<DrawnDocuments>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Turn {
    /// Tokens of the user's new message.
    pub asked: u32,
    pub output: u32,
    pub think: Span,
}

/// The generator of the arrivals of one level.
#[derive(Clone, Debug)]
pub(crate) struct Drawer {
    scenario: Arc<Scenario>,
    level: u32,
    /// Cumulative probability of the classes for a start.
    upto: Vec<f64>,
    pub requests_per_start: f64,
    trace: Option<Arc<Trace>>,
    trace_sizes: bool,
    /// Largest block id of the trace plus one.
    ids: u64,
}

const CHECKED: &str = "every file was looked up when the drawer was made";

impl Drawer {
    pub fn new(scenario: Arc<Scenario>, level: u32) -> Result<Drawer, SpecError> {
        scenario.validate()?;
        let material = &scenario.material;
        let mut weights = Vec::new();
        let (mut starts, mut requests) = (0.0, 0.0);
        for class in 0..scenario.class_count() as u16 {
            let (sizes, prompts) = (scenario.sizes_of(class), scenario.prompts_of(class));
            sizes.prompt.mean(material)?;
            sizes.output.mean(material)?;
            scenario
                .documents_of(class)
                .map_or(Ok(()), |law| law.mean_tokens(0.0, false, material).map(|_| ()))?;
            scenario.documents_of(class).map_or(Ok(()), |law| law.count.mean(material).map(|_| ()))?;
            sizes.pairs.as_ref().map_or(Ok(()), |file| material.pairs(file).map(|_| ()))?;
            prompts.file.as_ref().map_or(Ok(()), |file| material.prompts(file).map(|_| ()))?;
            // A class's weight is its share of the requests, and a start of t turns makes t requests.
            let turns = match &prompts.sessions {
                Some(sessions) => sessions.turns.mean(material)?.max(1.0),
                None => 1.0,
            };
            let weight = scenario.classes.get(class as usize).map_or(1.0, |c| c.weight);
            starts += weight / turns;
            requests += weight;
            weights.push(starts);
        }
        let (trace, trace_sizes) = match &scenario.arrivals {
            ArrivalSpec::Trace { file, sizes, .. } => {
                (Some(material.trace(file)?.clone()), *sizes == TraceSizes::Own)
            }
            _ => (None, false),
        };
        let ids = trace.iter().flat_map(|t| &t.rows).flat_map(|r| &r.blocks).max();
        let ids = ids.map_or(0, |id| id.saturating_add(1));
        if trace.as_ref().is_some_and(|trace| trace.graph.is_some()) {
            only_synthetic(&scenario, trace_sizes)?;
        }
        answers_of_sessions(&scenario, trace.as_deref())?;
        let groups =
            (0..scenario.class_count() as u16).any(|c| scenario.prompts_of(c).shared_prefix.is_some());
        if trace_sizes && ids > 0 && groups {
            return Err(SpecError::Conflict {
                path: "prompts.shared_prefix".to_string(),
                what: "the trace sets the shared blocks; drop shared_prefix, or set arrivals.sizes to drawn"
                    .to_string(),
            });
        }
        let upto = weights.iter().map(|w| w / starts).collect();
        let requests_per_start = scenario.stages().map_or(requests / starts, |stages| stages as f64);
        Ok(Drawer { scenario, level, upto, requests_per_start, trace, trace_sizes, ids })
    }

    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_deref()
    }

    /// Returns the sessions of the trace, if it has sessions.
    pub fn graph(&self) -> Option<&Graph> {
        self.trace.as_ref().and_then(|trace| trace.graph.as_ref())
    }

    pub(crate) fn has_sessions(&self) -> bool {
        self.graph().is_some()
            || self.scenario.chain
            || (0..self.scenario.class_count() as u16)
                .any(|class| self.scenario.prompts_of(class).sessions.is_some())
    }

    /// Returns the arrivals of start `start`: one request, or the turns of a session. Numbers begin at `id`, and the first
    /// arrival is due at `due`.
    pub fn start(&self, start: u64, id: u64, due: At) -> Vec<Arrival> {
        if let (Some(graph), Some(trace)) = (self.graph(), self.trace()) {
            return self.replay_session((graph, trace), start, id, due);
        }
        if let Some(stages) = self.scenario.stages() {
            return (0..stages as u16)
                .map(|stage| self.stage((stage, stages as u16), start, id, due))
                .collect();
        }
        let plan = self.plan(start);
        let sessions = self.scenario.prompts_of(plan.class).sessions.is_some();
        let (mut history, mut resent, mut due) = (0u32, 0u32, due);
        let mut out = Vec::with_capacity(plan.turns.len());
        for (i, turn) in plan.turns.iter().enumerate() {
            due += turn.think;
            let prompt = history.saturating_add(turn.asked);
            out.push(Arrival {
                id: id + i as u64,
                level: self.level,
                due,
                class: plan.class,
                session: sessions.then_some(start),
                turn: i as u16,
                turns: if sessions { plan.turns.len() as u16 } else { 0 },
                after: Arrival::after_of(i as u16),
                think: turn.think,
                prompt_tokens: prompt,
                resent,
                output_tokens: turn.output,
                documents: plan.documents.as_ref().map_or(0, |drawn| drawn.count),
                blocks: plan.blocks.clone(),
            });
            resent = prompt;
            history = prompt.saturating_add(turn.output);
        }
        out
    }

    /// Returns the request of a stage of a chain, which follows the stage before it.
    fn stage(&self, (stage, stages): (u16, u16), start: u64, id: u64, due: At) -> Arrival {
        let number = start * u64::from(stages) + u64::from(stage);
        let stream = Stream::new(self.level_seed(self.level), "stage", number);
        let plan = self.plan_of(stage, (self.level, start), stream);
        Arrival {
            id: id + u64::from(stage),
            level: self.level,
            due,
            class: stage,
            session: Some(start),
            turn: stage,
            turns: stages,
            after: Arrival::after_of(stage),
            think: Span::ZERO,
            prompt_tokens: plan.turns[0].asked,
            resent: 0,
            output_tokens: plan.turns[0].output,
            documents: plan.documents.as_ref().map_or(0, |drawn| drawn.count),
            blocks: plan.blocks,
        }
    }

    fn level_seed(&self, level: u32) -> u64 {
        self.scenario.seed ^ u64::from(level).rotate_left(32)
    }

    /// Returns the turns of a session of the trace. Repeated laps have separate block ids.
    fn replay_session(&self, (graph, trace): (&Graph, &Trace), start: u64, id: u64, due: At) -> Vec<Arrival> {
        let n = graph.sessions.len() as u64;
        let session = &graph.sessions[(start % n) as usize];
        let Plan { class, blocks: group, documents, .. } = self.plan(start);
        let of = |(i, turn): (usize, &GraphTurn)| {
            let row = &trace.rows[turn.row];
            Arrival {
                id: id + i as u64,
                level: self.level,
                due: due + turn.earliest,
                class,
                session: Some(start),
                turn: i as u16,
                turns: session.turns.len() as u16,
                after: turn.after.clone(),
                think: turn.wait,
                prompt_tokens: row.prompt_tokens.max(1),
                resent: turn.resent,
                output_tokens: row.output_tokens.max(1),
                documents: documents.as_ref().map_or(0, |drawn| drawn.count),
                blocks: self.blocks_of(row, start, &group),
            }
        };
        session.turns.iter().enumerate().map(of).collect()
    }

    /// Returns the blocks of a row of this session: the trace's, or else the group of the session's first prompts.
    pub fn blocks_of(&self, row: &TraceRow, session: u64, group: &[u64]) -> Vec<u64> {
        let sessions = self.graph().map_or(1, |graph| graph.sessions.len().max(1) as u64);
        let shift = (session / sessions).wrapping_mul(self.ids);
        match row.blocks.is_empty() {
            true => group.to_vec(),
            false => row.blocks.iter().map(|id| id.wrapping_add(shift)).collect(),
        }
    }

    /// Returns the plan of start `start`. For a trace of sessions, only class, documents and shared group apply.
    pub fn plan(&self, start: u64) -> Plan {
        self.plan_at(self.level, start)
    }

    /// Returns the plan of a start of another level.
    pub(crate) fn plan_at(&self, level: u32, start: u64) -> Plan {
        let mut stream = Stream::new(self.level_seed(level), "request", start);
        let u = stream.uniform();
        let class = self.upto.partition_point(|p| *p <= u).min(self.upto.len() - 1) as u16;
        self.plan_of(class, (level, start), stream)
    }

    /// Returns the plan of a start as a request or session of this class.
    fn plan_of(&self, class: u16, (level, start): (u32, u64), mut stream: Stream) -> Plan {
        let prompts = self.scenario.prompts_of(class);
        let count = match &prompts.sessions {
            Some(sessions) => {
                let turns = sessions.turns.draw(&mut stream, &self.scenario.material).expect(CHECKED);
                turns.min(u32::from(u16::MAX))
            }
            None => 1,
        };
        let turns = (0..count).map(|i| self.turn(class, i, &mut stream)).collect();
        let documents = self.documents(class, level, start);
        let mut plan = Plan { class, blocks: Vec::new(), turns, documents };
        if let Some(shared) = &prompts.shared_prefix {
            plan.blocks.push(stream.below(u64::from(shared.groups)));
        }
        if let (Some(trace), true, None) = (&self.trace, self.trace_sizes, self.graph()) {
            self.replay(trace, start, &mut plan);
        }
        if let Some(file) = &prompts.file {
            let entries = self.scenario.material.prompts(file).expect(CHECKED);
            let n = entries.len() as u64;
            let index = match prompts.order {
                PromptOrder::Cycle => start % n,
                PromptOrder::Random => stream.below(n),
            };
            let entry = &entries[index as usize];
            let salt = if prompts.salt { SALT_WORDS as u32 } else { 0 };
            let words = f64::from(entry.words.saturating_add(salt));
            plan.turns[0].asked = (words / prompts.words_per_token).round().max(1.0) as u32;
            plan.turns[0].output = entry.output_tokens.unwrap_or(plan.turns[0].output);
            plan.blocks = vec![index];
        }
        let carries = self.scenario.requests_of(class).protocol.carries();
        if carries == Carries::Sound {
            // Only the server can count the tokens of audio.
            plan.turns.iter_mut().for_each(|turn| turn.asked = 0);
        }
        if !self.scenario.asks_output(class) {
            plan.turns.iter_mut().for_each(|turn| turn.output = 0);
        }
        if let Some(drawn) = &plan.documents {
            let query = if carries == Carries::Documents { plan.turns[0].asked } else { 0 };
            plan.turns[0].asked = drawn.read_with(query).unwrap_or(plan.turns[0].asked);
        }
        plan
    }

    /// Returns the documents of start `start`.
    pub fn documents(&self, class: u16, level: u32, start: u64) -> Option<DrawnDocuments> {
        let law = self.scenario.documents_of(class)?;
        let mut stream = Stream::new(self.level_seed(level), "documents", start);
        Some(law.draw(&mut stream, &self.scenario.material).expect(CHECKED))
    }

    fn turn(&self, class: u16, i: u32, stream: &mut Stream) -> Turn {
        let (material, sizes) = (&self.scenario.material, self.scenario.sizes_of(class));
        let (asked, output) = match &sizes.pairs {
            Some(file) => {
                let pairs = material.pairs(file).expect(CHECKED);
                pairs[stream.below(pairs.len() as u64) as usize]
            }
            None => {
                let asked = sizes.prompt.draw(stream, material).expect(CHECKED);
                (asked, sizes.output.draw(stream, material).expect(CHECKED))
            }
        };
        let think = match &self.scenario.prompts_of(class).sessions {
            Some(sessions) if i > 0 => sessions.think.draw(stream),
            _ => Span::ZERO,
        };
        Turn { asked, output, think }
    }

    /// Applies the sizes and blocks of the trace's row. Repeated laps have separate block ids.
    fn replay(&self, trace: &Trace, start: u64, plan: &mut Plan) {
        let n = trace.rows.len() as u64;
        let (lap, row) = (start / n, &trace.rows[(start % n) as usize]);
        plan.turns[0].asked = row.prompt_tokens.max(1);
        plan.turns[0].output = row.output_tokens.max(1);
        if !row.blocks.is_empty() {
            let shift = lap.wrapping_mul(self.ids);
            plan.blocks = row.blocks.iter().map(|id| id.wrapping_add(shift)).collect();
        }
    }
}

/// Checks that real answers are used only with sessions of synthetic text.
fn answers_of_sessions(scenario: &Scenario, trace: Option<&Trace>) -> Result<(), SpecError> {
    let graph = trace.filter(|trace| trace.graph.is_some());
    for class in 0..scenario.class_count() as u16 {
        let prompts = scenario.prompts_of(class);
        let what = match (prompts.answers, graph) {
            (AnswerText::Synthetic, _) => continue,
            (AnswerText::Real, None) if prompts.sessions.is_none() => {
                "there are no sessions whose prompts could contain answers; give --sessions or a trace whose turns wait for each other"
            }
            (AnswerText::Real, Some(trace)) if trace.block_tokens > 0 => {
                "the trace sets its prompts by hash_ids; remove hash_ids, so that each prompt extends an earlier turn"
            }
            (AnswerText::Real, _) => continue,
        };
        return Err(SpecError::Conflict { path: "prompts.answers".into(), what: what.into() });
    }
    Ok(())
}

/// Checks the prompt settings of a trace of sessions, which defines the length and composition of each prompt.
fn only_synthetic(scenario: &Scenario, trace_sizes: bool) -> Result<(), SpecError> {
    let conflict = |path: &str, what: &str| Err(SpecError::Conflict { path: path.into(), what: what.into() });
    if !trace_sizes {
        return conflict(
            "arrivals.sizes",
            "the turns of the trace contain earlier turns, so the trace sets their lengths; drop `drawn`",
        );
    }
    match (0..scenario.class_count() as u16).any(|class| scenario.prompts_of(class).file.is_some()) {
        true => conflict("prompts.file", "the turns of the trace contain earlier turns; drop the file"),
        false => Ok(()),
    }
}

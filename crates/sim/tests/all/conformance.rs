//! vLLM v1's rules without a prefix cache, one hand-written case each; `policies` has the others. A plan has the form
//! `id:tokens id:tokens`, in order of scheduling.

use plimsoll_sim::PolicySpec;
use plimsoll_sim::engine::scheduler::policy::{VllmOrder, VllmSpec};
use plimsoll_sim::engine::scheduler::{
    ScheduledRequest, Scheduler, SchedulerLimits, SequenceProgress, StepPlan,
};

pub struct Case {
    pub scheduler: Scheduler,
    pub plan: StepPlan,
    pub now_ps: i128,
}

pub const LIMITS: SchedulerLimits = SchedulerLimits {
    max_seqs: 8,
    token_budget: 8,
    chunked_prefill: true,
    long_prefill_threshold: 0,
    blocks: 1000,
    watermark_blocks: 0,
    prefix_cache: false,
    draft_tokens: 0,
    accepted: 0,
};

/// Returns a request of these lengths without shared blocks.
pub fn asks(id: u64, prompt_tokens: u32, output_tokens: u32) -> ScheduledRequest {
    ScheduledRequest { id, prompt_tokens, output_tokens, ..ScheduledRequest::default() }
}

impl Case {
    /// Returns a case with vLLM's rules, first come first served, and only the first chunk as the gate.
    pub fn new(limits: SchedulerLimits) -> Case {
        Case::of(limits, PolicySpec::Vllm(VllmSpec { order: VllmOrder::Fcfs, reserve_full: false }))
    }

    pub fn of(limits: SchedulerLimits, policy: PolicySpec) -> Case {
        Case { scheduler: Scheduler::new(limits, &policy), plan: StepPlan::default(), now_ps: 0 }
    }

    /// Queues (id, prompt, output).
    pub fn admit(mut self, sequences: &[(u64, u32, u32)]) -> Case {
        for &(id, prompt, output) in sequences {
            self.scheduler.admit(asks(id, prompt, output));
        }
        self
    }

    /// Queues (id, prompt, output) with these names of the prompt's blocks.
    pub fn admit_named(mut self, id: u64, prompt: u32, output: u32, names: &[u64]) -> Case {
        self.scheduler.admit(ScheduledRequest { blocks: names.to_vec(), ..asks(id, prompt, output) });
        self
    }

    pub fn plan(&mut self) -> String {
        self.scheduler.plan(self.now_ps, &mut self.plan);
        let shares = self.scheduler.shares(&self.plan).map(|(id, tokens)| format!("{id}:{tokens}"));
        let mut text = shares.collect::<Vec<_>>().join(" ");
        if !self.plan.preempted.is_empty() {
            text += &format!(" preempted {}", self.plan.preempted.len());
        }
        text
    }

    pub fn commit(&mut self) -> Vec<SequenceProgress> {
        let mut progress = Vec::new();
        self.scheduler.commit(&self.plan, |one| progress.push(one));
        progress
    }

    /// Plans, checks and commits, step by step.
    pub fn steps(mut self, expected: &[&str]) -> Case {
        for (step, &text) in expected.iter().enumerate() {
            assert_eq!(self.plan(), text, "step {}", step + 1);
            self.commit();
        }
        self
    }
}

#[test]
fn running_take_their_tokens_before_the_waiting() {
    // 1 generates in steps 1, 2 and 3; the prompt of 2 gets the rest: 4, then 6 of 7.
    Case::new(LIMITS).admit(&[(1, 4, 3), (2, 10, 2)]).steps(&["1:4 2:4", "1:1 2:6", "1:1 2:1", ""]);
}

#[test]
fn a_prompt_over_the_budget_is_computed_in_chunks() {
    Case::new(LIMITS).admit(&[(1, 20, 2)]).steps(&["1:8", "1:8", "1:4", "1:1", ""]);
}

#[test]
fn a_chunk_takes_the_rest_of_the_budget_and_who_is_behind_waits() {
    Case::new(LIMITS).admit(&[(1, 6, 1), (2, 6, 1), (3, 1, 1)]).steps(&["1:6 2:2", "2:4 3:1", ""]);
}

#[test]
fn without_chunking_a_prompt_over_what_is_left_stops_the_queue() {
    // 3 would fit into step 1, but must not overtake 2.
    let limits = SchedulerLimits { chunked_prefill: false, ..LIMITS };
    Case::new(limits).admit(&[(1, 6, 2), (2, 4, 1), (3, 1, 1)]).steps(&["1:6", "1:1 2:4 3:1", ""]);
}

#[test]
fn the_long_prefill_threshold_bounds_each_prompt_and_not_the_step() {
    let limits = SchedulerLimits { long_prefill_threshold: 3, ..LIMITS };
    Case::new(limits).admit(&[(1, 7, 1), (2, 5, 1), (3, 2, 1)]).steps(&["1:3 2:3 3:2", "1:3 2:2", "1:1", ""]);
}

#[test]
fn no_more_than_max_seqs_run() {
    let limits = SchedulerLimits { max_seqs: 2, ..LIMITS };
    Case::new(limits).admit(&[(1, 1, 2), (2, 1, 3), (3, 1, 1)]).steps(&["1:1 2:1", "1:1 2:1", "2:1 3:1", ""]);
}

#[test]
fn running_sequences_can_exhaust_the_budget() {
    let limits = SchedulerLimits { token_budget: 2, ..LIMITS };
    Case::new(limits)
        .admit(&[(1, 1, 4), (2, 1, 4), (3, 1, 1)])
        .steps(&["1:1 2:1", "1:1 2:1", "1:1 2:1", "1:1 2:1", "3:1"]);
}

#[test]
fn a_block_is_taken_when_the_first_token_of_it_is_computed() {
    let mut case = Case::new(SchedulerLimits { token_budget: 64, ..LIMITS }).admit(&[(1, 16, 3)]);
    let mut used = Vec::new();
    for _ in 0..3 {
        case.plan();
        used.push(case.scheduler.blocks_used());
        case.commit();
    }
    assert_eq!(used, [1, 2, 2]);
    assert_eq!(case.scheduler.blocks_used(), 0);
}

#[test]
fn a_chunk_takes_the_blocks_of_that_chunk_only() {
    let mut case = Case::new(SchedulerLimits { token_budget: 20, ..LIMITS }).admit(&[(1, 100, 1)]);
    assert_eq!(case.plan(), "1:20");
    assert_eq!(case.scheduler.blocks_used(), 2);
}

/// Four blocks; 1 and 2 fill two each at 32 tokens, and 1 is the first to need a fifth.
fn two_that_outgrow_four_blocks() -> Case {
    let limits = SchedulerLimits { token_budget: 64, blocks: 4, ..LIMITS };
    Case::new(limits).admit(&[(1, 31, 4), (2, 31, 20), (3, 1, 1)]).steps(&["1:31 2:31", "1:1 2:1"])
}

#[test]
fn out_of_blocks_preempts_the_last_of_the_running_and_admits_nobody_in_that_step() {
    // After the preemption a block is free, and 3 (one token) would fit.
    let mut case = two_that_outgrow_four_blocks();
    assert_eq!(case.plan(), "1:1 preempted 1");
    assert_eq!((case.scheduler.running(), case.scheduler.waiting()), (1, 2));
    assert_eq!(case.scheduler.blocks_used(), 3);
}

#[test]
fn the_preempted_goes_to_the_front_and_computes_prompt_and_answer_again() {
    // 2 has generated two tokens: it lacks 33, needs three blocks and blocks the queue until 1 has left.
    two_that_outgrow_four_blocks().steps(&["1:1 preempted 1", "1:1", "2:33 3:1", "2:1"]);
}

#[test]
fn the_preempted_generates_exactly_what_was_asked() {
    let mut case = two_that_outgrow_four_blocks();
    let mut of_two = 0;
    let mut prefills = 0;
    while !case.plan().is_empty() {
        for progress in case.commit() {
            of_two += if progress.id == 2 { progress.tokens } else { 0 };
            prefills += u32::from(progress.id == 2 && progress.prefilled.is_some());
        }
    }
    // Two tokens were generated before.
    assert_eq!((of_two, prefills), (18, 0));
    assert_eq!(case.scheduler.blocks_used(), 0);
}

#[test]
fn a_sequence_that_is_itself_the_last_preempts_itself_and_the_others_go_on() {
    let limits = SchedulerLimits { token_budget: 64, blocks: 3, ..LIMITS };
    Case::new(limits).admit(&[(1, 17, 3), (2, 16, 2)]).steps(&[
        "1:17 2:16",
        "1:1 preempted 1",
        "1:1",
        "2:17",
        "",
    ]);
}

#[test]
fn several_are_preempted_until_there_is_room() {
    // 1 needs a block in step 2. No scheduled block of 3 is available, so 3 is preempted, and its one block suffices.
    let limits = SchedulerLimits { token_budget: 64, blocks: 3, ..LIMITS };
    let mut case = Case::new(limits).admit(&[(1, 16, 9), (2, 16, 9), (3, 16, 9)]).steps(&["1:16 2:16 3:16"]);
    // 3 gives its block to 1, then 2 finds none and preempts itself.
    assert_eq!(case.plan(), "1:1 preempted 2");
    assert_eq!(case.scheduler.blocks_used(), 2);
}

#[test]
fn the_order_of_several_preempted_is_that_of_their_arrival() {
    let limits = SchedulerLimits { token_budget: 64, blocks: 3, ..LIMITS };
    let case = Case::new(limits).admit(&[(1, 16, 2), (2, 16, 2), (3, 16, 2)]);
    case.steps(&["1:16 2:16 3:16", "1:1 preempted 2", "2:17", "3:17", ""]);
}

#[test]
fn the_head_of_the_queue_that_finds_no_blocks_is_not_overtaken() {
    let limits = SchedulerLimits { token_budget: 64, blocks: 3, ..LIMITS };
    Case::new(limits).admit(&[(1, 20, 2), (2, 32, 1), (3, 1, 1)]).steps(&["1:20", "1:1", "2:32 3:1", ""]);
}

#[test]
fn the_watermark_keeps_blocks_free_beside_running_sequences_only() {
    let limits = SchedulerLimits { token_budget: 200, blocks: 10, watermark_blocks: 2, ..LIMITS };
    // Without running requests, 1 may use all but one block; next to it, 2 would leave fewer than two free.
    Case::new(limits).admit(&[(1, 130, 2), (2, 1, 1)]).steps(&["1:130", "1:1", "2:1", ""]);
}

#[test]
fn the_last_token_of_an_answer_is_never_computed() {
    let mut case = Case::new(SchedulerLimits { token_budget: 64, blocks: 1, ..LIMITS }).admit(&[(1, 16, 1)]);
    assert_eq!(case.plan(), "1:16");
    let expected =
        SequenceProgress { id: 1, prefilled: Some(16), tokens: 1, first: true, generated: 1, finished: true };
    assert_eq!(case.commit(), [expected]);
}

#[test]
fn a_request_for_no_tokens_ends_with_its_prompt() {
    let mut case = Case::new(LIMITS).admit(&[(1, 12, 0)]);
    assert_eq!(case.plan(), "1:8");
    assert_eq!(case.commit(), []);
    assert_eq!(case.plan(), "1:4");
    let expected =
        SequenceProgress { id: 1, prefilled: Some(12), tokens: 0, first: true, generated: 0, finished: true };
    assert_eq!(case.commit(), [expected]);
}

#[test]
fn a_cancelled_sequence_frees_its_blocks_at_once_and_says_nothing_more() {
    let mut case = Case::new(LIMITS).admit(&[(1, 4, 9), (2, 4, 9)]);
    case.plan();
    assert!(case.scheduler.cancel(1));
    assert!(!case.scheduler.cancel(1));
    assert_eq!(case.scheduler.blocks_used(), 1);
    assert_eq!(case.commit().iter().map(|progress| progress.id).collect::<Vec<_>>(), [2]);
    // The id may be reused, even while the old step runs.
    case.scheduler.admit(asks(1, 3, 1));
    assert_eq!(case.plan(), "2:1 1:3");
}

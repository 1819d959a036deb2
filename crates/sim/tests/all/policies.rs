//! The rules of the prefix cache and of the other policies, one hand-written case each, as in `conformance`.

use plimsoll_sim::PolicySpec;
use plimsoll_sim::engine::scheduler::policy::{
    NoEvictSpec, SglangOrder, SglangSpec, StaticSpec, VllmOrder, VllmSpec,
};
use plimsoll_sim::engine::scheduler::{ScheduledRequest, SchedulerLimits, SequenceProgress};

use crate::conformance::{Case, LIMITS, asks};

/// Limits without effect, with a prefix cache.
const WIDE: SchedulerLimits = SchedulerLimits { token_budget: 64, prefix_cache: true, ..LIMITS };

fn sglang(limits: SchedulerLimits) -> Case {
    Case::of(limits, PolicySpec::Sglang(SglangSpec::default()))
}

fn by_prefix(limits: SchedulerLimits) -> Case {
    let spec = SglangSpec { order: SglangOrder::Lpm, ..SglangSpec::default() };
    Case::of(limits, PolicySpec::Sglang(spec))
}

fn fixed(batch: u32, wait_ms: f64) -> Case {
    Case::of(WIDE, PolicySpec::Static(StaticSpec { batch, wait_ms }))
}

fn vllm(limits: SchedulerLimits, order: VllmOrder, reserve_full: bool) -> Case {
    Case::of(limits, PolicySpec::Vllm(VllmSpec { order, reserve_full }))
}

#[test]
fn vllm_the_last_token_of_a_cached_prompt_is_computed_and_its_block_with_it() {
    let mut case = Case::new(WIDE).admit_named(1, 32, 1, &[10, 11]).steps(&["1:32"]);
    case = case.admit_named(2, 32, 1, &[10, 11]);
    assert_eq!(case.plan(), "2:16");
    assert_eq!(case.plan.admitted, [(2, 16)]);
    assert_eq!((case.plan.prefix_queries, case.plan.prefix_hits), (32, 16));
}

#[test]
fn vllm_equal_prompts_of_one_step_share_what_the_first_is_about_to_compute() {
    let mut case = Case::new(WIDE)
        .admit_named(1, 33, 2, &[10, 11])
        .admit_named(2, 40, 2, &[10, 11])
        .admit_named(3, 33, 2, &[10, 99]);
    assert_eq!(case.plan(), "1:33 2:8 3:17");
    // Three blocks of 1, one of 2, two of 3.
    assert_eq!(case.scheduler.blocks_used(), 6);
}

#[test]
fn vllm_a_chunk_can_be_found_while_the_rest_is_computed() {
    let names: Vec<u64> = (10..18).collect();
    let case = Case::new(WIDE).admit_named(1, 128, 1, &names).steps(&["1:64"]);
    // 2 arrives when half of the prefix is cached; in the next step 1 takes the budget, and then all of it is cached.
    case.admit_named(2, 128, 1, &names).steps(&["1:64", "2:16", ""]);
}

#[test]
fn vllm_without_names_nothing_is_shared() {
    Case::new(WIDE).admit(&[(1, 32, 1), (2, 32, 1)]).steps(&["1:32 2:32", ""]);
}

#[test]
fn vllm_the_preempted_finds_back_what_was_not_evicted() {
    // 2 loses one full block, which stays unused until 2 returns.
    let limits = SchedulerLimits { blocks: 3, ..WIDE };
    Case::new(limits).admit(&[(1, 17, 3), (2, 16, 2)]).steps(&[
        "1:17 2:16",
        "1:1 preempted 1",
        "1:1",
        "2:1",
        "",
    ]);
}

#[test]
fn vllm_the_preempted_computes_again_what_was_evicted() {
    // As above, but 1 continues into a third block, and takes that of 2.
    let limits = SchedulerLimits { blocks: 3, ..WIDE };
    let mut case = Case::new(limits).admit(&[(1, 17, 17), (2, 16, 2)]);
    assert_eq!(case.plan(), "1:17 2:16");
    case.commit();
    assert_eq!(case.plan(), "1:1 preempted 1");
    case.commit();
    for _ in 0..15 {
        assert_eq!(case.plan(), "1:1");
        case.commit();
    }
    assert_eq!(case.plan(), "2:17");
}

#[test]
fn vllm_a_hit_takes_blocks_off_the_free_list() {
    // 16 free blocks, four of them cached. 2 would hit four and need twelve more, and 3 uses one.
    let limits = SchedulerLimits { blocks: 16, token_budget: 512, ..WIDE };
    let case = Case::new(limits).admit_named(1, 65, 1, &[10, 11, 12, 13]).steps(&["1:65"]);
    let case = case.admit(&[(3, 1, 2)]).steps(&["3:1"]);
    case.admit_named(2, 256, 1, &[10, 11, 12, 13]).steps(&["3:1", "2:192", ""]);
}

#[test]
fn vllm_reserve_full_starts_a_prompt_only_when_all_of_it_fits() {
    let limits = SchedulerLimits { blocks: 4, token_budget: 16, ..WIDE };
    let ask = [(1, 16, 4), (2, 50, 1)];
    let by_chunk = vllm(limits, VllmOrder::Fcfs, false).admit(&ask);
    // 1 and 2 use two blocks each when the third chunk finds none: 2 preempts itself.
    by_chunk.steps(&["1:16", "1:1 2:15", "1:1 2:15", "1:1 preempted 1"]);
    vllm(limits, VllmOrder::Fcfs, true).admit(&ask).steps(&["1:16", "1:1", "1:1", "1:1", "2:16"]);
}

#[test]
fn vllm_by_priority_one_goes_first_and_none_goes_last() {
    let mut case = vllm(SchedulerLimits { max_seqs: 1, ..WIDE }, VllmOrder::Priority, true);
    for (id, priority) in [(1, 0), (2, 2), (3, 1), (4, 2)] {
        case.scheduler.admit(ScheduledRequest { priority, ..asks(id, 1, 1) });
    }
    case.steps(&["3:1", "2:1", "4:1", "1:1", ""]);
}

#[test]
fn vllm_by_priority_the_largest_of_priority_and_arrival_is_preempted_even_if_it_was_in_the_step() {
    let mut case =
        vllm(SchedulerLimits { blocks: 4, prefix_cache: false, ..WIDE }, VllmOrder::Priority, true);
    case.scheduler.admit(ScheduledRequest { priority: 3, ..asks(1, 16, 20) });
    let mut case = case.steps(&["1:16"]);
    case.scheduler.admit(ScheduledRequest { priority: 1, ..asks(2, 32, 3) });
    // Both use two blocks. 2 needs a third and takes those of 1, which was scheduled before it.
    case.steps(&["1:1 2:32", "2:1 preempted 1", "2:1", "1:18"]);
}

#[test]
fn no_evict_starts_a_request_when_its_whole_answer_fits_and_never_takes_a_place() {
    let limits = SchedulerLimits { blocks: 6, ..WIDE };
    let case = Case::of(limits, PolicySpec::NoEvict(NoEvictSpec {}));
    // 1 and 2 will need three blocks each; four are free at first, and 3 must wait for all of them.
    let mut case = case.admit(&[(1, 16, 33), (2, 16, 33), (3, 1, 1)]).steps(&["1:16 2:16"]);
    for _ in 0..32 {
        assert_eq!(case.plan(), "1:1 2:1");
        case.commit();
    }
    assert_eq!(case.plan(), "3:1");
}

#[test]
fn sglang_prompts_come_first_and_alone() {
    let case = sglang(WIDE).admit(&[(1, 16, 5)]).steps(&["1:16", "1:1"]);
    case.admit(&[(2, 16, 5), (3, 8, 5)]).steps(&["2:16 3:8", "1:1 2:1 3:1"]);
}

#[test]
fn sglang_a_prompt_is_cut_at_a_block_and_goes_on_before_anybody_decodes() {
    sglang(WIDE).admit(&[(1, 10, 3), (2, 100, 2)]).steps(&["1:10 2:48", "2:52", "1:1 2:1", "1:1", ""]);
}

#[test]
fn sglang_a_step_of_prompts_is_at_most_a_chunk() {
    sglang(WIDE).admit(&[(1, 32, 1), (2, 32, 1), (3, 32, 1)]).steps(&["1:32 2:32", "3:32", ""]);
}

#[test]
fn sglang_the_running_are_expected_to_need_seven_tenths_of_what_they_may() {
    // 160 tokens. 1 leaves 144 free after its prompt and may generate 63 more: 44 are expected, 100 are left.
    let limits = SchedulerLimits { blocks: 10, ..WIDE };
    for (output, starts) in [(67, "2:16"), (68, "1:1")] {
        // 2 needs 16 + its output + 16, and that must be less than 100.
        sglang(limits).admit(&[(1, 16, 64)]).steps(&["1:16"]).admit(&[(2, 16, output)]).steps(&[starts]);
    }
}

#[test]
fn sglang_in_one_step_answers_count_whole_and_who_found_no_room_waits_for_a_leave() {
    let limits = SchedulerLimits { blocks: 10, ..WIDE };
    let mut case = sglang(limits).admit(&[(1, 16, 64), (2, 16, 64)]).steps(&["1:16"]);
    // By the estimate 2 fits immediately, but it is not considered until 1 has left.
    for _ in 0..63 {
        assert_eq!(case.plan(), "1:1");
        case.commit();
    }
    assert_eq!(case.plan(), "2:16");
}

/// Returns two requests admitted by an optimistic estimate, two decode steps before their blocks run out.
fn sglang_before_a_retraction() -> Case {
    let spec = SglangSpec { conservativeness: 0.2, ..SglangSpec::default() };
    let case = Case::of(SchedulerLimits { blocks: 6, ..WIDE }, PolicySpec::Sglang(spec));
    // A share of 0.14 of the 59 that 1 may still generate is 8: 72 are left, and 2 needs 71.
    let mut case = case.admit(&[(1, 16, 60)]).steps(&["1:16"]).admit(&[(2, 16, 39)]).steps(&["2:16"]);
    for _ in 0..32 {
        assert_eq!(case.plan(), "1:1 2:1");
        case.commit();
    }
    case
}

#[test]
fn sglang_out_of_blocks_retracts_the_shortest_answer_which_computes_all_but_its_prompt_again() {
    // Both have 48 tokens in three of six blocks. With equal outputs and prompts, the last is retracted.
    let mut case = sglang_before_a_retraction().steps(&["1:1 preempted 1"]);
    for _ in 0..26 {
        assert_eq!(case.plan(), "1:1");
        case.commit();
    }
    // 2 had 16 + 33 tokens; its prompt's block is still cached, its generated tokens are not.
    assert_eq!(case.plan(), "2:33");
}

#[test]
fn sglang_the_longest_cached_prefix_goes_first() {
    let names = [10, 11, 12, 13];
    for (order, expected) in [(SglangOrder::Lpm, "2:16 1:48"), (SglangOrder::Fcfs, "1:64")] {
        let case = Case::of(WIDE, PolicySpec::Sglang(SglangSpec { order, ..SglangSpec::default() }));
        let case = case.admit_named(9, 64, 1, &names).steps(&["9:64", ""]);
        let case = case.admit_named(1, 64, 1, &[20, 21, 22, 23]).admit_named(2, 64, 1, &[10, 11, 12, 99]);
        case.steps(&[expected]);
    }
}

#[test]
fn sglang_more_than_128_waiting_are_taken_as_they_came() {
    let case = by_prefix(WIDE).admit_named(999, 64, 1, &[10, 11, 12, 13]).steps(&["999:64", ""]);
    for (waiting, expected) in [(128, "128:16 1:48"), (129, "1:64")] {
        let mut case = Case { scheduler: case.scheduler.clone(), plan: case.plan.clone(), now_ps: 0 };
        for id in 1..waiting {
            case = case.admit_named(id, 64, 1, &[id * 1000, id * 1000 + 1]);
        }
        case.admit_named(waiting, 64, 1, &[10, 11, 12, 98]).steps(&[expected]);
    }
}

#[test]
fn sglang_who_shares_a_prefix_with_one_about_to_be_computed_lets_others_by() {
    let limits = SchedulerLimits { token_budget: 128, ..WIDE };
    let case =
        by_prefix(limits).admit_named(1, 64, 1, &[10, 11, 12, 13]).admit_named(2, 64, 1, &[10, 11, 12, 99]);
    case.admit_named(3, 64, 1, &[30, 31, 32, 33]).steps(&["1:64 3:64", "2:16", ""]);
}

#[test]
fn static_waits_for_its_batch_and_pads_to_the_longest() {
    let mut case = fixed(2, 10.0).admit(&[(1, 4, 2)]);
    assert_eq!(case.plan(), "");
    assert_eq!(case.scheduler.next_wake(), Some(10_000_000_000));
    let mut case = case.admit(&[(2, 6, 3)]);
    assert_eq!(case.plan(), "1:6 2:6");
    assert_eq!((case.plan.load.tokens, case.plan.load.rows), (12, 2));
    // A new request waits for the next batch.
    case.scheduler.admit(asks(3, 1, 1));
    assert_eq!(case.commit().iter().map(|one| one.tokens).sum::<u32>(), 0);
    assert_eq!(case.plan(), "1:1 2:1");
    // No response leaves early, although 1 has its two tokens after this step.
    assert_eq!(case.commit(), []);
    assert_eq!(case.plan(), "1:1 2:1");
    assert_eq!(case.plan.load.context, 2 * 8);
    let done = |id, tokens| SequenceProgress {
        id,
        prefilled: None,
        tokens,
        first: true,
        generated: tokens,
        finished: true,
    };
    assert_eq!(case.commit(), [done(1, 2), done(2, 3)]);
    assert_eq!((case.scheduler.running(), case.scheduler.waiting(), case.scheduler.blocks_used()), (0, 1, 0));
}

#[test]
fn static_starts_a_smaller_batch_when_the_first_has_waited_for_the_timer() {
    let mut case = fixed(8, 10.0).admit(&[(1, 4, 1), (2, 5, 1)]);
    case.now_ps = 9_999_999_999;
    assert_eq!(case.plan(), "");
    case.now_ps = 10_000_000_000;
    assert_eq!(case.plan(), "1:5 2:5");
}

#[test]
fn static_takes_as_many_as_the_blocks_hold_once_padded() {
    // 1 needs two blocks without padding; padded to 2's prompt and 1's output, two rows need three each.
    let limits = SchedulerLimits { blocks: 5, ..WIDE };
    let case = Case::of(limits, PolicySpec::Static(StaticSpec { batch: 2, wait_ms: 0.0 }));
    case.admit(&[(1, 4, 20), (2, 20, 2)]).steps(&["1:4", "1:1"]);
}

#[test]
fn speculative_steps_bring_the_accepted_length_on_average() {
    // 2.5 of 4, starting from 0 (id 0): 2, 3, 2, 3 after the prompt's one.
    let limits = SchedulerLimits { draft_tokens: 3, accepted: 5 << 31, ..WIDE };
    let mut case = Case::new(limits).admit(&[(0, 16, 11)]);
    let mut brought = Vec::new();
    for expected in ["0:16", "0:4", "0:4", "0:4", "0:3"] {
        assert_eq!(case.plan(), expected);
        brought.extend(case.commit().iter().map(|one| one.tokens));
    }
    assert_eq!(brought, [1, 2, 3, 2, 3]);
    assert_eq!((case.plan(), case.scheduler.blocks_used()), (String::new(), 0));
}

#[test]
fn speculative_means_are_exact_for_any_id() {
    let limits =
        SchedulerLimits { draft_tokens: 4, accepted: (2.9 * 4_294_967_296.0) as u64, blocks: 10_000, ..WIDE };
    for id in [1, 7, 1 << 40] {
        let mut case = Case::new(limits).admit(&[(id, 1, 100_000)]);
        let mut steps = 0;
        while !case.plan().is_empty() {
            case.commit();
            steps += 1;
        }
        // One prefill step and 99 999 tokens at 2.9 per step, accurate to the last step.
        assert_eq!(steps, 1 + (99_999.0_f64 / 2.9).ceil() as u32, "id {id}");
    }
}

#[test]
fn blocks_taken_away_cost_the_last_their_place_and_come_back() {
    let limits = SchedulerLimits { blocks: 6, ..WIDE };
    let mut case = Case::new(limits)
        .admit(&[(1, 16, 9), (2, 16, 9), (3, 16, 9)])
        .steps(&["1:16 2:16 3:16", "1:1 2:1 3:1"]);
    case.scheduler.set_blocks(3);
    let mut case = case.steps(&["1:1 preempted 2", "1:1"]);
    case.scheduler.set_blocks(6);
    // The blocks of 2's prompt were lost or found again; only the completion of all requests matters.
    let mut left = 0;
    while !case.plan().is_empty() {
        left += case.commit().iter().filter(|one| one.finished).count();
    }
    assert_eq!((left, case.scheduler.blocks_used()), (3, 0));
}

//! Specifications: valid ones survive a round trip, errors name the field.

use plimsoll_sim::{
    BatchingSpec, EngineSpec, LawSpec, ModeSpec, SimSpecError, StepSpec, World, catalogue::profile,
};

use crate::util::{batching, engine, queue};

fn refusal(spec: &EngineSpec) -> String {
    World::new(spec, 1).expect_err("it is wrong").to_string()
}

#[test]
fn every_profile_is_sound_and_survives_its_file() {
    for profile in profile::all() {
        profile.spec.validate().expect(&profile.name);
        let text = serde_json::to_string(&profile.spec).expect("it serialises");
        assert_eq!(serde_json::from_str::<EngineSpec>(&text).expect(&profile.name), profile.spec);
        assert!(!profile.derivation().is_empty());
        assert_eq!(profile::find(&profile.name).expect("listed"), profile);
    }
}

#[test]
fn a_short_file_gets_its_defaults_and_an_unknown_key_is_refused() {
    let text =
        r#"{"mode": {"kind": "queue", "servers": 8, "service": {"law": "exponential", "mean_ms": 10}}}"#;
    let spec: EngineSpec = serde_json::from_str(text).expect("it is whole");
    assert_eq!(spec.mode, queue(8, LawSpec::Exponential { mean_ms: 10.0 }, None).mode);

    for text in [
        r#"{"mode": {"kind": "queue", "servers": 8, "sevice": {"law": "exponential", "mean_ms": 10}}}"#,
        r#"{"mode": {"kind": "queue", "servers": 8, "service": {"law": "exponential", "mean": 10}}}"#,
        r#"{"mode": {"kind": "queue", "servers": 8, "service": {"law": "deterministic", "ms": 1}}, "replica": 2}"#,
        r#"{"mode": {"kind": "quue"}}"#,
    ] {
        assert!(serde_json::from_str::<EngineSpec>(text).is_err(), "{text}");
    }
}

#[test]
fn weights_past_the_memory_are_refused_with_what_is_missing() {
    let mut profile = profile::find("llama-3.1-70b@h100x4").expect("known").spec;
    let ModeSpec::Batching(spec) = &mut profile.mode else { panic!("it batches") };
    let StepSpec::Roofline(roofline) = &mut spec.step else { panic!("by a roofline") };
    roofline.tensor_parallel = 1;
    // 70.55e9 parameters at 2 bytes are 141.1 GB; 0.92 × 85.5 = 78.66 are usable.
    let text = refusal(&profile);
    assert!(
        text.contains("141.1 GB") && text.contains("78.7 GB") && text.contains("64.1 GB too much"),
        "{text}"
    );
}

#[test]
fn a_cache_without_a_block_is_refused() {
    let zero = engine(ModeSpec::Batching(BatchingSpec { kv_blocks: Some(0), ..batching() }));
    assert_eq!(refusal(&zero), "no KV cache: mode.kv_blocks is 0");
    let missing = engine(ModeSpec::Batching(BatchingSpec { kv_blocks: None, ..batching() }));
    assert!(refusal(&missing).contains("mode.kv_blocks is missing"));
}

#[test]
fn numbers_out_of_range_are_named_with_what_would_do() {
    let law = LawSpec::Exponential { mean_ms: 10.0 };
    let cases = [
        (queue(0, law, None), "mode.servers: 0 is not"),
        (queue(1, LawSpec::Exponential { mean_ms: -1.0 }, None), "mode.service: -1 is not a number over 0"),
        (queue(1, LawSpec::Exponential { mean_ms: f64::NAN }, None), "mode.service: NaN is not"),
        (
            queue(1, LawSpec::Hyperexponential { mean_ms: 1.0, cv: 0.5 }, None),
            "coefficient of variation from 1",
        ),
        (queue(1, LawSpec::Uniform { low_ms: 3.0, high_ms: 2.0 }, None), "at most high_ms"),
        (engine(ModeSpec::Batching(BatchingSpec { max_seqs: 0, ..batching() })), "mode.max_seqs: 0"),
        (engine(ModeSpec::Batching(BatchingSpec { token_budget: 0, ..batching() })), "mode.token_budget: 0"),
        (
            engine(ModeSpec::Batching(BatchingSpec { kv_watermark: 1.0, ..batching() })),
            "mode.kv_watermark: 1",
        ),
        (engine(ModeSpec::Batching(BatchingSpec { front_ms: -2.0, ..batching() })), "mode.front_ms: -2"),
    ];
    for (spec, expected) in cases {
        let text = refusal(&spec);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn an_unknown_profile_is_answered_with_the_nearest() {
    let refusal = |name: &str| match profile::find(name) {
        Err(e @ SimSpecError::UnknownProfile { .. }) => e.to_string(),
        other => panic!("{name}: {other:?}"),
    };
    for (name, part, near) in [
        ("dmeo", "nearest: ", "demo"),
        ("llama-3.1-8b", "nearest: ", "llama-3.1-8b@"),
        ("lama-3.1-8b@h100", "no model \"lama-3.1-8b\", nearest: ", "llama-3.1-8b"),
        ("llama-3.1-8b-fp9@h100", "no model \"llama-3.1-8b-fp9\", nearest: ", "llama-3.1-8b"),
        ("llama-3.1-8b@h1000", "no gpu \"h1000\", nearest: ", "h100"),
    ] {
        let text = refusal(name);
        let (_, after) = text.split_once(part).unwrap_or_else(|| panic!("{name}: {text}"));
        assert!(after.starts_with(near), "{name}: {text}");
        // The error must be one readable line, not the catalogue.
        assert!(text.contains(name) && text.len() < 240, "{name}: {text}");
    }
}

#[test]
fn absurd_but_legal_numbers_do_not_run_off_the_end_of_time() {
    let mut spec = batching();
    spec.step = StepSpec::Linear(plimsoll_sim::spec::LinearSpec {
        base_us: 1e300,
        decode_us: 1e300,
        prefill_us: 1e300,
        context_ns: 1e300,
        overlap: None,
    });
    spec.front_ms = 1e300;
    for mode in
        [ModeSpec::Batching(spec), queue(1, LawSpec::Lognormal { median_ms: 1e300, sigma: 900.0 }, None).mode]
    {
        let mut world = World::new(&engine(mode), 1).expect("legal");
        let mut log = Vec::new();
        for id in 0..20 {
            let _ = world.submit(plimsoll_model::At(id), crate::util::ask(id as u64, 1000, 3));
        }
        for _ in 0..200 {
            let Some(next) = world.next_event() else { break };
            world.step(next, &mut log);
        }
    }
}

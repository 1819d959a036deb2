//! Tests the tensors of a KServe request: the model's declaration, additional settings, and random content.

use plimsoll_model::{Datatype, Payload, Protocol};
use plimsoll_workload::{InputSpec, Prompts, Scenario, Schedule, Size, SpecError, TensorSpec};
use serde_json::json;

type Declared = (String, Datatype, Vec<i64>);

fn declared(shapes: &[(&str, &[i64])]) -> Vec<Declared> {
    shapes.iter().map(|(name, shape)| ((*name).into(), Datatype::Fp32, shape.to_vec())).collect()
}

fn dims(spec: &TensorSpec) -> Vec<Vec<u32>> {
    spec.inputs.iter().map(|input| input.dims.clone()).collect()
}

fn resolve(
    spec: &mut TensorSpec,
    model: &[Declared],
    max_batch: Option<u32>,
    rows: u32,
) -> Result<usize, SpecError> {
    spec.resolve(model, max_batch, &Size::Fixed(rows)).map(|notes| notes.len())
}

#[test]
fn a_models_shapes_lose_their_batch_and_are_filled() {
    let model = declared(&[("A", &[-1, 3, 224, 224]), ("B", &[-1, -1])]);
    let mut spec = TensorSpec::default();
    assert_eq!(resolve(&mut spec, &model, Some(8), 8), Ok(1));
    assert_eq!((dims(&spec), spec.batched), (vec![vec![3, 224, 224], vec![1]], Some(true)));

    let mut spec = TensorSpec { shapes: [("B".into(), vec![384])].into(), ..TensorSpec::default() };
    assert_eq!(resolve(&mut spec, &model, None, 1), Ok(0));
    assert_eq!((dims(&spec)[1].clone(), spec.batched), (vec![384], Some(true)));

    // A model without batching keeps all of its shape; only the open dimension must be configured.
    let model = declared(&[("A", &[-1, 4])]);
    for given in [vec![2], vec![2, 4]] {
        let mut spec = TensorSpec { shapes: [("A".into(), given)].into(), ..TensorSpec::default() };
        assert_eq!(resolve(&mut spec, &model, Some(0), 1), Ok(0));
        assert_eq!((dims(&spec), spec.batched), (vec![vec![2, 4]], Some(false)));
    }
}

#[test]
fn what_contradicts_the_model_is_refused() {
    let model = declared(&[("A", &[-1, 4])]);
    let refused = |shapes: &[(&str, &[u32])], max_batch, rows| {
        let shapes = shapes.iter().map(|(name, dims)| ((*name).into(), dims.to_vec())).collect();
        let mut spec = TensorSpec { shapes, ..TensorSpec::default() };
        resolve(&mut spec, &model, max_batch, rows).expect_err("refused").to_string()
    };
    assert!(refused(&[("A", &[5])], Some(8), 1).contains("target.tensors.shapes.A"));
    assert!(refused(&[("Z", &[5])], Some(8), 1).contains("Z"));
    assert!(refused(&[], Some(8), 9).contains("at most 8"));
    assert!(refused(&[], Some(0), 2).contains("does not batch"));
    let mut huge = TensorSpec {
        inputs: vec![InputSpec {
            name: "A".into(),
            datatype: Datatype::Fp32,
            dims: vec![u32::MAX, u32::MAX],
        }],
        ..TensorSpec::default()
    };
    assert!(resolve(&mut huge, &[], None, 1).is_err());
}

#[test]
fn the_same_seed_draws_the_same_rows() {
    let scenario = |seed: u64| {
        Scenario::from_json(&json!({
            "target": {"url": "http://h/v2", "protocol": "kserve", "stream": false, "tensors": {
                "batched": true,
                "inputs": [{"name": "A", "datatype": "FP32", "dims": [3]}, {"name": "B", "datatype": "INT64", "dims": []}],
            }},
            "sizes": {"prompt": "uniform:1,8", "output": 0}, "seed": seed, "nonce": 1,
        }))
        .expect("valid")
    };
    let drawn = |seed: u64| {
        let scenario = scenario(seed);
        let prompts = Prompts::new(&scenario, 0).expect("valid");
        let schedule =
            Schedule::generate(&scenario, 50.0, plimsoll_model::Span::from_secs(1), 0).expect("drawn");
        let payload = |arrival| match prompts.payload(arrival) {
            Payload::Tensors(tensors) => (arrival.prompt_tokens, tensors),
            other => panic!("{other:?}"),
        };
        schedule.arrivals.iter().map(payload).collect::<Vec<_>>()
    };
    assert_eq!(scenario(1).target.protocol, Protocol::Kserve);
    let (first, again, other) = (drawn(1), drawn(1), drawn(2));
    assert_eq!(first, again);
    assert_ne!(first, other);
    for (rows, tensors) in &first {
        assert!((1..=8).contains(rows));
        assert_eq!((&tensors[0].shape[..], tensors[0].drawn.len() as u32), (&[*rows, 3][..], rows * 3));
        assert_eq!((&tensors[1].shape[..], tensors[1].drawn.len() as u32), (&[*rows][..], *rows));
        assert_ne!(tensors[0].drawn[..*rows as usize], tensors[1].drawn, "inputs are drawn apart");
    }
    let texts: std::collections::BTreeSet<_> = first.iter().map(|(_, t)| t[0].drawn.clone()).collect();
    assert_eq!(texts.len(), first.len(), "no two requests are alike, or a response cache would answer");
}

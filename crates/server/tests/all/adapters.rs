//! Tests live adapters (LoRA): requested by model name, loaded on first use, with separate prefixes.

use plimsoll_model::Span;
use plimsoll_server::serve;
use plimsoll_server::truth::read;
use plimsoll_sim::{AdapterSpec, catalogue::profile};

use super::http::{Client, chat, config, get, metric, post};

const LOAD_NS: i64 = 60_000_000;

#[test]
fn an_adapter_is_a_model_that_is_loaded_on_first_use() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("truth.jsonl");
    let mut config = config(profile::find("demo").unwrap().spec);
    let names = ["sql", "law"].map(str::to_owned).to_vec();
    config.fleet.adapters = Some(AdapterSpec { names, slots: 1, load: Span(LOAD_NS) });
    config.truth_log = Some(path.clone());
    let running = serve(config).unwrap();
    let addr = running.addr();
    let listed = get(addr, "/v1/models").json();
    let ids: Vec<_> = listed["data"].as_array().unwrap().iter().map(|m| (&m["id"], &m["parent"])).collect();
    assert_eq!(
        format!("{ids:?}"),
        r#"[(String("tiny"), Null), (String("sql"), String("tiny")), (String("law"), String("tiny"))]"#
    );
    // Each entry is also available separately, as in the list.
    for entry in listed["data"].as_array().unwrap() {
        assert_eq!(get(addr, &format!("/v1/models/{}", entry["id"].as_str().unwrap())).json(), *entry);
    }
    assert_eq!(get(addr, "/v1/models/%73ql").json(), listed["data"][1]);
    assert_eq!((get(addr, "/v1/models/other").status, get(addr, "/v1/models/%").status), (404, 404));
    let mut client = Client::connect(addr);
    // In sequence, with equal prompts of forty words: two full blocks of sixteen.
    let asked = ["tiny", "tiny", "sql", "sql", "law", "sql", "tiny"];
    for model in asked {
        client.post("/v1/chat/completions", model, &chat(40, 2, "").replace("tiny", model));
        let answer = client.answer();
        assert_eq!((answer.status, answer.json()["model"].as_str()), (200, Some(model)));
    }
    let unknown = post(addr, "/v1/chat/completions", &chat(40, 2, "").replace("tiny", "lwa"));
    assert_eq!(unknown.status, 404);
    assert_eq!(metric(addr, r#"vllm:num_requests_running{engine="0",model_name="tiny"}"#), 0.0);
    running.shutdown().unwrap();
    let (_, mut records) = read(&std::fs::read_to_string(&path).unwrap()).unwrap();
    records.retain(|record| record.number.is_some());
    records.sort_by_key(|record| record.number);
    // In the engine's virtual time, which lateness does not affect: the adapter's load precedes the queue.
    let found: Vec<(bool, u32)> = records
        .iter()
        .map(|record| {
            let waited = record.admitted_ns.unwrap() - record.submitted_ns;
            assert!(!(20_000_000..LOAD_NS).contains(&waited), "{waited}");
            (waited >= LOAD_NS, record.cached_tokens.unwrap())
        })
        .collect();
    // As in vLLM, an adapter's blocks outlive its unloading, because they are named by the adapter and not by its slot.
    let expected = [(false, 0), (false, 32), (true, 0), (false, 32), (true, 0), (true, 32), (false, 32)];
    assert_eq!(found, expected);
}

//! Tests the binary from the outside: one test binary, with short helpers in [`kit`].

#[path = "all/kit.rs"]
mod kit;
#[path = "all/levers.rs"]
mod levers;

#[path = "all/again.rs"]
mod again;
#[path = "all/agents.rs"]
mod agents;
#[path = "all/apis.rs"]
mod apis;
#[path = "all/audit.rs"]
mod audit;
#[path = "all/bad_input.rs"]
mod bad_input;
#[path = "all/bad_servers.rs"]
mod bad_servers;
#[path = "all/batches.rs"]
mod batches;
#[path = "all/browse.rs"]
mod browse;
#[path = "all/browser.rs"]
mod browser;
#[path = "all/budget_split.rs"]
mod budget_split;
#[path = "all/calc.rs"]
mod calc;
#[path = "all/canary.rs"]
mod canary;
#[path = "all/chains.rs"]
mod chains;
#[path = "all/ci_recipes.rs"]
mod ci_recipes;
#[path = "all/cold_start.rs"]
mod cold_start;
#[path = "all/collect.rs"]
mod collect;
#[path = "all/compare.rs"]
mod compare;
#[path = "all/demos.rs"]
mod demos;
#[path = "all/diagnose_url.rs"]
mod diagnose_url;
#[path = "all/documents.rs"]
mod documents;
#[path = "all/endpoints.rs"]
mod endpoints;
#[path = "all/engine_grpc.rs"]
mod engine_grpc;
#[path = "all/engine_tls.rs"]
mod engine_tls;
#[path = "all/export.rs"]
mod export;
#[path = "all/faults.rs"]
mod faults;
#[path = "all/gate.rs"]
mod gate;
#[path = "all/gate_url.rs"]
mod gate_url;
#[path = "all/gateway.rs"]
mod gateway;
#[path = "all/gateway_clients.rs"]
mod gateway_clients;
#[path = "all/gateway_deadlines.rs"]
mod gateway_deadlines;
#[path = "all/gateway_record.rs"]
mod gateway_record;
#[path = "all/gateway_replicas.rs"]
mod gateway_replicas;
#[path = "all/gateway_traces.rs"]
mod gateway_traces;
#[path = "all/generated_media.rs"]
mod generated_media;
#[path = "all/import.rs"]
mod import;
#[path = "all/install.rs"]
mod install;
#[path = "all/interleave.rs"]
mod interleave;
#[path = "all/k8s.rs"]
mod k8s;
#[path = "all/keys.rs"]
mod keys;
#[path = "all/kill.rs"]
mod kill;
#[path = "all/line.rs"]
mod line;
#[path = "all/lint.rs"]
mod lint;
#[path = "all/listed.rs"]
mod listed;
#[path = "all/manual.rs"]
mod manual;
#[cfg(feature = "mcp")]
#[path = "all/mcp.rs"]
mod mcp;
#[path = "all/media.rs"]
mod media;
#[path = "all/network.rs"]
mod network;
#[cfg(feature = "object-store")]
#[path = "all/objects.rs"]
mod objects;
#[path = "all/old_run.rs"]
mod old_run;
#[path = "all/one_figure.rs"]
mod one_figure;
#[path = "all/pages.rs"]
mod pages;
#[path = "all/parity.rs"]
mod parity;
#[path = "all/picker.rs"]
mod picker;
#[path = "all/plan.rs"]
mod plan;
#[path = "all/plan_later.rs"]
mod plan_later;
#[path = "all/plan_live.rs"]
mod plan_live;
#[path = "all/profile.rs"]
mod profile;
#[path = "all/progress.rs"]
mod progress;
#[path = "all/protocol.rs"]
mod protocol;
#[path = "all/quality.rs"]
mod quality;
#[path = "all/read.rs"]
mod read;
#[path = "all/real.rs"]
mod real;
#[path = "all/real_answers.rs"]
mod real_answers;
#[path = "all/real_llama.rs"]
mod real_llama;
#[path = "all/real_triton.rs"]
mod real_triton;
#[path = "all/real_triton_grpc.rs"]
mod real_triton_grpc;
#[path = "all/refused.rs"]
mod refused;
#[path = "all/repeat.rs"]
mod repeat;
#[path = "all/replay.rs"]
mod replay;
#[path = "all/reports.rs"]
mod reports;
#[path = "all/sarif.rs"]
mod sarif;
#[path = "all/scrape.rs"]
mod scrape;
#[path = "all/secrets.rs"]
mod secrets;
#[path = "all/security.rs"]
mod security;
#[path = "all/selftest.rs"]
mod selftest;
#[path = "all/session_runs.rs"]
mod session_runs;
#[path = "all/sessions.rs"]
mod sessions;
#[path = "all/shards.rs"]
mod shards;
#[path = "all/shards_network.rs"]
mod shards_network;
#[path = "all/shards_search.rs"]
mod shards_search;
#[path = "all/simulate.rs"]
mod simulate;
#[path = "all/stranger.rs"]
mod stranger;
#[path = "all/struck.rs"]
mod struck;
#[path = "all/tidy.rs"]
mod tidy;
#[path = "all/tradeoff.rs"]
mod tradeoff;
#[path = "all/transcriptions.rs"]
mod transcriptions;
#[path = "all/tune.rs"]
mod tune;
#[path = "all/wait.rs"]
mod wait;
#[path = "all/watch.rs"]
mod watch;
#[path = "all/watch_alertmanager.rs"]
mod watch_alertmanager;
#[path = "all/watch_alerts.rs"]
mod watch_alerts;
#[path = "all/watch_bad.rs"]
mod watch_bad;
#[path = "all/watch_history.rs"]
mod watch_history;
#[path = "all/watch_page.rs"]
mod watch_page;
#[path = "all/watch_pushed.rs"]
mod watch_pushed;
#[path = "all/watch_replay.rs"]
mod watch_replay;
#[path = "all/watch_windows.rs"]
mod watch_windows;
#[path = "all/what_if.rs"]
mod what_if;
#[path = "all/workload.rs"]
mod workload;
#[path = "all/workload_pages.rs"]
mod workload_pages;

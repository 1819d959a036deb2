//! Help texts: the list of commands, a summary of each command (`-h`) and all its flags (`--help`).
//!
//! The text of a flag is its doc comment in [`crate::flags`]. This module selects the flags that a help text shows, because
//! a list of 70 flags is hard to read. Rarely used flags set fields of the scenario file; `plimsoll help flags` lists them.
//! A second set of arguments for the summary was rejected, because the two sets drift apart.

use std::collections::BTreeMap;

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::flags::Cli;
use crate::progress;

/// The flags that a help text shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HelpDetail {
    /// The ten most used flags: `-h`.
    Summary,
    /// All flags but the rarely used ones: `--help`.
    Usual,
    /// Every flag: man pages, completions and the reference.
    Full,
}

/// A question: its heading, its commands in the order of a reader's work, and an example.
type Topic = (&'static str, &'static [&'static str], &'static str);

/// The commands of the first help screen.
const FIRST: &[Topic] = &[
    ("Measure", &["demo", "run", "sweep", "show"], "plimsoll run http://host:8000/v1 --rate 12/s --for 60s"),
    ("Judge", &["gate", "compare"], "plimsoll gate RUN --budget budget.yaml"),
    ("Explain", &["diagnose"], "plimsoll diagnose RUN --baseline release"),
    ("Plan", &["plan", "simulate"], "plimsoll plan --from RUN --rate 50/s --slo \"ttft p99 < 500ms\""),
    ("Serve", &["gateway", "engine"], "plimsoll gateway --replica http://a:8000 --replica http://b:8000"),
    ("Watch", &["watch"], "plimsoll watch http://host:8000/metrics -b budget.yaml"),
];

/// Commands that only `plimsoll help all` shows.
const OTHER: &[Topic] = &[
    (
        "Measure more",
        &["tune", "cold-start", "interleave", "quality", "rerun", "import", "merge", "k8s", "ls", "browse"],
        "plimsoll rerun RUN --target http://candidate:8000/v1",
    ),
    (
        "Budgets and baselines",
        &["budget", "baseline", "history"],
        "plimsoll budget init --from RUN -o budget.yaml",
    ),
    (
        "Explain and plan more",
        &["profile", "audit", "levers", "what-if", "tradeoff", "calc"],
        "plimsoll what-if RUN \"rate 2x\"",
    ),
    (
        "Production",
        &["canary", "export", "collect", "workload"],
        "plimsoll export rules -b budget.yaml --source vllm -o rules",
    ),
    ("This machine", &["doctor", "selftest", "dev"], "plimsoll doctor"),
    ("Manual and agents", &["docs", "mcp"], "plimsoll docs gate"),
];

/// Flags that `--help` leaves out, because few users need them: each sets a field of the scenario file or a detail of the client.
const RARE: &[&str] = &[
    "adapters",
    "alone",
    "audio",
    "batch",
    "before_level",
    "body",
    "cancel",
    "client_cert",
    "client_key",
    "connections",
    "documents",
    "first_token_timeout",
    "http",
    "idle_timeout",
    "images",
    "keep_text",
    "key_env_b",
    "knee_factor",
    "least_n_eff",
    "max_in_flight",
    "models",
    "natural_length",
    "no_stream",
    "nonce",
    "pause",
    "prompts",
    "real_answers",
    "quality",
    "scrape_every",
    "shapes",
    "shard_wait",
    "speed",
    "start_at",
    "streams_per_connection",
    "wave",
    "workers",
];

/// The headings of `k8s` that `--help` leaves out, because `run --help` and `sweep --help` show their flags.
const OF_RUN: &[&str] = &["Client", "Server side", "Shards", "Ceilings", "Price", "Search", "Limits"];

/// A command, the flags in its `-h`, and two examples. Commands that are not listed have few flags, and `-h` shows all of them.
type Short = (&'static str, &'static [&'static str], [&'static str; 2]);

const SHORT: &[Short] = &[
    (
        "run",
        &["model", "key_env", "rate", "concurrency", "duration", "isl", "osl", "slo", "out", "format"],
        [
            "plimsoll run http://host:8000/v1 --rate 12/s --for 60s",
            "plimsoll run URL --concurrency 16 --isl 512 --osl 128 -o before",
        ],
    ),
    (
        "k8s",
        &["shards", "claim", "place", "spec", "key_secret", "name", "rate", "duration", "isl", "osl"],
        [
            "plimsoll k8s http://vllm:8000/v1 --shards 8 --claim load --rate 4000/s",
            "plimsoll k8s URL --shards 4 --place s3://load --spec load.yaml --name monday",
        ],
    ),
    (
        "sweep",
        &["model", "key_env", "time", "hold", "slo", "isl", "osl", "max_rate", "out", "format"],
        [
            "plimsoll sweep http://host:8000/v1 --time 15m --hold 5m",
            "plimsoll sweep URL --slo \"ttft p99 < 500ms, errors < 1%\"",
        ],
    ),
    (
        "gate",
        &["budget", "baseline", "time", "model", "key_env", "junit", "markdown", "map_exit", "out", "format"],
        [
            "plimsoll gate RUN --budget budget.yaml --junit gate.xml",
            "plimsoll gate http://host:8000/v1 --budget budget.yaml --time 15m",
        ],
    ),
    (
        "watch",
        &["budget", "every", "window", "listen", "record", "history", "time", "format"],
        [
            "plimsoll watch http://vllm:8000/metrics -b budget.yaml --history history",
            "plimsoll watch cut history --from 2h --to 1h -o RUN",
        ],
    ),
    (
        "export",
        &["run_format", "budget", "source", "labels", "out"],
        [
            "plimsoll export RUN --as csv -o requests.csv",
            "plimsoll export rules -b budget.yaml --source vllm --label job=vllm -o rules",
        ],
    ),
    (
        "gateway",
        &["replicas", "listen", "admin", "route", "format"],
        [
            "plimsoll gateway --replica http://a:8000 --replica http://b:8000 --admin 8081",
            "plimsoll gateway check gateway.yaml",
        ],
    ),
    (
        "workload",
        &["out", "hash_prompts", "model", "level", "isl", "osl", "profile", "format"],
        [
            "plimsoll workload litellm.jsonl -o workload.jsonl.gz",
            "plimsoll workload access.log --isl lognormal:900,1 --osl 150 -o w.jsonl.gz",
        ],
    ),
    (
        "interleave",
        &[
            "model",
            "model_b",
            "key_env",
            "rate",
            "duration",
            "alternations",
            "stop_early",
            "margins",
            "out",
            "format",
        ],
        [
            "plimsoll interleave URL_A URL_B --rate 12/s",
            "plimsoll interleave URL_A URL_B --rate 12/s --for 20s --stop-early",
        ],
    ),
    (
        "diagnose",
        &["baseline", "budget", "level", "timeline", "model", "key_env", "time", "html", "out", "format"],
        [
            "plimsoll diagnose RUN --baseline release",
            "plimsoll diagnose http://host:8000/v1 --model m --time 5m",
        ],
    ),
    (
        "levers",
        &["level", "slo", "budget", "profile", "replicas", "by", "price", "gpus", "list", "format"],
        ["plimsoll levers RUN", "plimsoll levers RUN --price 2.49USD/gpu-hour --gpus 1"],
    ),
    (
        "plan",
        &["from", "profile", "rate", "slo", "price", "search", "html", "out", "format"],
        [
            "plimsoll plan --from RUN --rate 50/s --slo \"ttft p99 < 500ms\"",
            "plimsoll plan --rate 50/s --latency 2s --slots 8",
        ],
    ),
    (
        "what-if",
        &["level", "profile", "slots", "replicas", "schedules", "out", "format"],
        [
            "plimsoll what-if RUN \"rate 2x\" \"prompts +30%\"",
            "plimsoll what-if RUN \"weights fp8\" --level 2",
        ],
    ),
    (
        "simulate",
        &["profile", "replicas", "faults", "rate", "duration", "sweep", "isl", "osl", "out", "format"],
        [
            "plimsoll simulate --profile llama-3.1-8b@h100 --rate 12/s --for 10m",
            "plimsoll simulate --profile demo --sweep -o curve",
        ],
    ),
    (
        "engine",
        &["listen", "profile", "replicas", "faults", "list", "model", "seed"],
        [
            "plimsoll engine --listen 127.0.0.1:8000",
            "plimsoll engine --profile llama-3.1-8b@h100 --replicas 2",
        ],
    ),
    (
        "audit",
        &["price", "gpus", "slo", "budget", "long_answer", "format"],
        ["plimsoll audit RUN --price 2.49USD/gpu-hour --gpus 8", "plimsoll audit HISTORY --price 20USD/h"],
    ),
    (
        "tradeoff",
        &["price", "gpus", "quality", "base_eval", "candidate_eval", "max_loss", "html", "format"],
        [
            "plimsoll tradeoff A B --price 20USD/h --quality quality.json",
            "plimsoll tradeoff A B --price 20USD/h --base-eval a --candidate-eval b",
        ],
    ),
    (
        "tune",
        &["launch", "set", "slo", "goal", "price", "first", "isl", "osl", "out", "resume"],
        [
            "plimsoll tune --launch \"llama-server --port {port} -np {np}\" --set np=1,4",
            "plimsoll tune --resume plimsoll-runs/tune-001",
        ],
    ),
    (
        "cold-start",
        &["model", "key_env", "idle", "repeat", "isl", "osl", "price", "gpus", "out", "format"],
        [
            "plimsoll cold-start http://host:8000/v1 --idle 20m",
            "plimsoll cold-start URL --idle 20m --repeat 3 -o cold",
        ],
    ),
    (
        "quality",
        &[
            "model",
            "model_b",
            "key_env",
            "eval",
            "repeat",
            "max_tokens",
            "concurrency",
            "margin",
            "out",
            "format",
        ],
        [
            "plimsoll quality URL_OLD URL_NEW --eval eval.jsonl",
            "plimsoll quality URL_OLD URL_NEW --eval eval.jsonl --repeat 3",
        ],
    ),
    (
        "rerun",
        &[
            "target",
            "profile",
            "model",
            "key_env",
            "key_file",
            "headers",
            "replicas",
            "max_errors",
            "out",
            "format",
        ],
        [
            "plimsoll rerun RUN --target http://candidate:8000/v1",
            "plimsoll rerun RUN --profile llama-3.1-8b@h100 -o after",
        ],
    ),
];

/// Returns the command line, with the flags of `detail` in its help texts.
pub fn command(detail: HelpDetail) -> Command {
    let plain = Cli::command();
    let list = topics(&plain, FIRST);
    let cli = plain.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{{options}}{{after-help}}"
    ));
    let names: Vec<String> = cli.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    names.iter().fold(compact(cli), |cli, name| {
        cli.mut_subcommand(name, |command| with_detail(progress::with_flag(command), detail))
    })
}

/// Returns the detail that a command line requests.
pub fn asked(words: impl Iterator<Item = String>) -> HelpDetail {
    if words.into_iter().any(|word| word == "-h") { HelpDetail::Summary } else { HelpDetail::Usual }
}

/// Returns the page of `plimsoll help all` or `plimsoll help flags`; `None` for every other command line.
pub fn page(words: &[String]) -> Option<String> {
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["help", "all"] => {
            let cli = Cli::command();
            Some(format!("{}{}", topics(&cli, FIRST), topics(&cli, OTHER)))
        }
        ["help", "flags"] => Some(rare_flags(&Cli::command())),
        _ => None,
    }
}

/// Lists commands under their headings, because `clap` supports headings only for flags.
fn topics(cli: &Command, topics: &[Topic]) -> String {
    let mut list = String::new();
    for (topic, names, example) in topics {
        list += &format!("{topic}: {example}\n");
        for command in names.iter().filter_map(|name| cli.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            list += &format!("  {:<10}  {about}\n", command.get_name());
        }
        list.push('\n');
    }
    list
}

/// Lists each rarely used flag once, with the commands that accept it.
fn rare_flags(cli: &Command) -> String {
    let mut flags: BTreeMap<String, (String, Vec<&str>)> = BTreeMap::new();
    for command in cli.get_subcommands().filter(|command| !command.is_hide_set()) {
        for arg in command.get_arguments().filter(|arg| RARE.contains(&arg.get_id().as_str())) {
            let Some(name) = arg.get_long() else { continue };
            let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
            flags.entry(format!("--{name}")).or_insert((text, Vec::new())).1.push(command.get_name());
        }
    }
    let mut list =
        String::from("Rarely used flags. Most of them set fields of the scenario file (--spec FILE).\n");
    for (name, (text, commands)) in flags {
        list += &format!("\n{name}\n    {text}\n    Accepted by: {}\n", commands.join(", "));
    }
    list
}

/// Prints `--help` as densely as `-h`: the blank line that `clap` puts between long texts would double each page.
fn compact(command: Command) -> Command {
    let help = Arg::new("help").short('h').long("help").global(true).action(ArgAction::HelpShort);
    command.disable_help_flag(true).arg(help.help("Print help: -h the usual flags, --help nearly all"))
}

fn with_detail(command: Command, detail: HelpDetail) -> Command {
    let short = SHORT.iter().find(|(name, ..)| *name == command.get_name());
    let wraps_run = command.get_name() == "k8s";
    let after = short.map(|(_, _, examples)| format!("Examples:\n  {}\n  {}", examples[0], examples[1]));
    let hidden = |arg: &Arg| {
        let id = arg.get_id().as_str();
        match (detail, short) {
            (HelpDetail::Summary, Some((_, shown, _))) => !arg.is_positional() && !shown.contains(&id),
            (HelpDetail::Summary, _) if id == "progress" => true,
            (HelpDetail::Full, _) => false,
            _ => {
                let of_run =
                    wraps_run && arg.get_help_heading().is_some_and(|heading| OF_RUN.contains(&heading));
                of_run || RARE.contains(&id)
            }
        }
    };
    let hides = command.get_arguments().any(&hidden);
    let more = match detail {
        HelpDetail::Summary if hides => "\n\nMore flags: --help",
        HelpDetail::Usual if wraps_run => "\n\nMore flags: see plimsoll run, and with --sweep plimsoll sweep",
        HelpDetail::Usual if hides => "\n\nRarely used flags: plimsoll help flags",
        _ => "",
    };
    let command = command.mut_args(|arg| {
        let hide = arg.is_hide_set() || hidden(&arg);
        let is_format = ["format", "progress"].contains(&arg.get_id().as_str());
        arg.hide(hide).hide_possible_values(is_format)
    });
    match (after, more.trim_start()) {
        (Some(after), _) => {
            let own = command.get_after_help().map_or(String::new(), |own| format!("{own}\n\n"));
            command.after_help(own + &after + more)
        }
        (None, "") => command,
        (None, more) => command.after_help(more.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text that a terminal of 80 columns shows.
    fn seen(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let cli = command(asked(words.iter().cloned())).term_width(80);
        cli.try_get_matches_from(words).expect_err("help is no run").to_string()
    }

    fn names() -> Vec<String> {
        let command = command(HelpDetail::Usual);
        let seen = command.get_subcommands().filter(|command| !command.is_hide_set());
        seen.map(|command| command.get_name().to_owned()).collect()
    }

    #[test]
    fn a_summary_fits_two_screens_and_a_help_five() {
        for name in names() {
            for (flag, most) in [("-h", 48), ("--help", 120)] {
                let text = seen(&format!("plimsoll {name} {flag}"));
                let lines = text.lines().count();
                assert!(lines <= most, "{name} {flag}: {lines} lines\n{text}");
            }
            let summary = seen(&format!("plimsoll {name} -h"));
            assert_eq!(summary.lines().find(|line| line.chars().count() > 80), None, "{name}");
        }
    }

    #[test]
    fn a_summary_shows_ten_flags_and_no_flag_is_lost() {
        let rare = page(&["help".to_owned(), "flags".to_owned()]).expect("a page");
        for (name, shown, examples) in SHORT {
            assert!(shown.len() <= 10, "{name}");
            let (short, long) =
                (seen(&format!("plimsoll {name} -h")), seen(&format!("plimsoll {name} --help")));
            assert!(examples.iter().all(|example| short.contains(example)), "{name}");
            let cli = Cli::command();
            let command = cli.find_subcommand(name).unwrap_or_else(|| panic!("{name} is a command"));
            for id in *shown {
                assert!(command.get_arguments().any(|arg| arg.get_id() == id), "{name} has no {id}");
            }
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let Some(flag) = arg.get_long() else { continue };
                let named = |text: &str| text.split([' ', '\n', ',']).any(|word| word == format!("--{flag}"));
                let of_run = arg.get_help_heading().is_some_and(|heading| OF_RUN.contains(&heading));
                let elsewhere = named(&rare) || *name == "k8s" && of_run;
                assert!(named(&long) || elsewhere, "no help names --{flag} of {name}");
            }
        }
    }

    #[test]
    fn every_rare_flag_exists() {
        let cli = Cli::command();
        for id in RARE {
            let exists =
                cli.get_subcommands().any(|command| command.get_arguments().any(|arg| arg.get_id() == id));
            assert!(exists, "{id}");
        }
    }

    /// An example that can't be typed teaches the wrong thing.
    #[test]
    fn every_example_can_be_typed() {
        let topics = FIRST.iter().chain(OTHER).map(|(_, _, example)| *example);
        for example in topics.chain(SHORT.iter().flat_map(|(_, _, examples)| *examples)) {
            let mut words: Vec<String> = Vec::new();
            for (i, part) in example.split('"').enumerate() {
                match i % 2 {
                    0 => words.extend(part.split_whitespace().map(str::to_owned)),
                    _ => words.push(part.to_owned()),
                }
            }
            let typed = command(HelpDetail::Full).try_get_matches_from(words);
            assert!(typed.is_ok(), "{example}: {}", typed.err().map(|e| e.to_string()).unwrap_or_default());
        }
    }

    #[test]
    fn the_first_screen_has_twelve_commands_and_help_all_has_the_rest() {
        let first = seen("plimsoll --help");
        let all = page(&["help".to_owned(), "all".to_owned()]).expect("a page");
        for name in names() {
            let topics = FIRST.iter().chain(OTHER);
            assert_eq!(topics.filter(|(_, names, _)| names.contains(&name.as_str())).count(), 1, "{name}");
            assert!(all.lines().any(|line| line.starts_with(&format!("  {name} "))), "{name}: {all}");
        }
        assert_eq!(FIRST.iter().map(|(_, names, _)| names.len()).sum::<usize>(), 12);
        assert!(first.lines().count() <= 36, "{first}");
        for line in first.lines().chain(all.lines()) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    /// Style guide: a verb phrase of at most 60 characters.
    #[test]
    fn the_text_of_a_command_is_short() {
        for command in command(HelpDetail::Usual).get_subcommands() {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(about.chars().count() <= 60, "{}: {about}", command.get_name());
        }
    }

    /// Names that moved are still understood.
    #[test]
    fn old_names_are_kept_out_of_sight() {
        for (line, kept) in [
            ("validate", true),
            ("dev validate", true),
            ("calibrate RUN -o FILE", true),
            ("dev calibrate RUN -o FILE", true),
            ("report RUN", true),
            ("show RUN --html", true),
            ("show RUN -o FILE", false),
        ] {
            let typed = command(HelpDetail::Full).try_get_matches_from(format!("plimsoll {line}").split(' '));
            assert_eq!(typed.is_ok(), kept, "{line}");
        }
        for old in ["validate", "calibrate", "report"] {
            assert!(!names().contains(&old.to_owned()), "{old}");
        }
    }
}

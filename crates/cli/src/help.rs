//! How the help reads: commands by task, and a short help of a command that fits two screens.
//!
//! What a flag does is said once, in its doc comment in [`crate::flags`]; here stands only which flags most people use (`-h`
//! shows these, `--help` all) and what is typed with them. A second copy of the arguments for the short help lost, because the two drift apart.

use clap::{Command, CommandFactory};

use crate::flags::Cli;

/// A task: its name, its commands in the order in which they are met, and an example.
type Task = (&'static str, &'static [&'static str], &'static str);

/// A command that is not in the build is passed over; one that is in no task fails a test.
const TASKS: &[Task] = &[
    (
        "Measure",
        &["demo", "run", "sweep", "import", "merge", "show", "ls"],
        "plimsoll run http://host:8000/v1 --rate 12/s --for 60s",
    ),
    (
        "Judge",
        &["gate", "compare", "interleave", "baseline", "history"],
        "plimsoll gate RUN --budget budget.yaml",
    ),
    (
        "In production",
        &["watch", "canary", "export", "gateway", "workload"],
        "plimsoll gateway --replica http://a:8000 --replica http://b:8000",
    ),
    (
        "Explain and plan",
        &["diagnose", "profile", "levers", "plan", "what-if", "simulate"],
        "plimsoll diagnose RUN --baseline release",
    ),
    (
        "Set up",
        &[
            "budget",
            "engine",
            "doctor",
            "selftest",
            "collect",
            "cold-start",
            "quality",
            "rerun",
            "calc",
            "k8s",
            "dev",
        ],
        "plimsoll budget init --from RUN -o budget.yaml",
    ),
];

/// A command, the flags that its `-h` shows, and two examples. What is not named here has few flags, and `-h` shows them all.
type Short = (&'static str, &'static [&'static str], [&'static str; 2]);

const SHORT: &[Short] = &[
    (
        "run",
        &["model", "key_env", "rate", "concurrency", "duration", "isl", "osl", "trace", "out", "format"],
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
        &["budget", "every", "window", "listen", "record", "history", "out", "time", "format"],
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

/// The command line with its help in order.
pub fn command() -> Command {
    let plain = Cli::command();
    let list = tasks(&plain);
    let cli = plain.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{{options}}{{after-help}}"
    ));
    SHORT.iter().fold(cli, |cli, short| match cli.find_subcommand(short.0) {
        Some(_) => cli.mut_subcommand(short.0, |command| shortened(command, short)),
        None => cli,
    })
}

/// The commands by task. `clap` knows headings for flags alone.
fn tasks(cli: &Command) -> String {
    let mut list = String::new();
    for (task, names, example) in TASKS {
        list += &format!("{task}: {example}\n");
        for command in names.iter().filter_map(|name| cli.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            list += &format!("  {:<10}  {about}\n", command.get_name());
        }
        list.push('\n');
    }
    list
}

fn shortened(command: Command, (_, shown, examples): &Short) -> Command {
    let examples = format!("Examples:\n  {}\n  {}", examples[0], examples[1]);
    command.after_help(examples).mut_args(|arg| {
        let hide = !arg.is_positional() && !shown.contains(&arg.get_id().as_str());
        arg.hide_short_help(hide)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a person sees who types it at a terminal of 80 columns.
    fn seen(line: &str) -> String {
        let words = line.split(' ');
        let wrong = command().term_width(80).try_get_matches_from(words).expect_err("help is no run");
        wrong.to_string()
    }

    fn names() -> Vec<String> {
        let command = command();
        let seen = command.get_subcommands().filter(|command| !command.is_hide_set());
        seen.map(|command| command.get_name().to_owned()).collect()
    }

    /// `run -h` had 131 lines, `compare -h` 168.
    #[test]
    fn a_short_help_fits_two_screens() {
        for name in names() {
            let text = seen(&format!("plimsoll {name} -h"));
            assert!(text.lines().count() <= 48, "{name}: {} lines\n{text}", text.lines().count());
            let wide = text.lines().find(|line| line.chars().count() > 80);
            assert_eq!(wide, None, "{name}");
        }
    }

    #[test]
    fn a_short_help_names_ten_flags_at_most_and_the_long_one_all() {
        for (name, shown, examples) in SHORT {
            assert!(shown.len() <= 10, "{name}");
            let (short, long) =
                (seen(&format!("plimsoll {name} -h")), seen(&format!("plimsoll {name} --help")));
            assert!(examples.iter().all(|example| short.contains(example)), "{name}");
            let cli = command();
            let command = cli.find_subcommand(name).unwrap_or_else(|| panic!("{name} is a command"));
            for id in *shown {
                assert!(command.get_arguments().any(|arg| arg.get_id() == id), "{name} has no {id}");
            }
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let Some(flag) = arg.get_long() else { continue };
                let named = |text: &str| text.split([' ', '\n', ',']).any(|word| word == format!("--{flag}"));
                assert!(named(&long), "{name} --help leaves out --{flag}");
            }
        }
    }

    /// An example that can't be typed teaches the wrong thing.
    #[test]
    fn every_example_can_be_typed() {
        let tasks = TASKS.iter().map(|(_, _, example)| *example);
        for example in tasks.chain(SHORT.iter().flat_map(|(_, _, examples)| *examples)) {
            let mut words: Vec<String> = Vec::new();
            for (i, part) in example.split('"').enumerate() {
                match i % 2 {
                    0 => words.extend(part.split_whitespace().map(str::to_owned)),
                    _ => words.push(part.to_owned()),
                }
            }
            let typed = command().try_get_matches_from(words);
            assert!(typed.is_ok(), "{example}: {}", typed.err().map(|e| e.to_string()).unwrap_or_default());
        }
    }

    #[test]
    fn every_command_has_its_task() {
        let text = seen("plimsoll --help");
        for name in names() {
            let listed = TASKS.iter().filter(|(_, names, _)| names.contains(&name.as_str())).count();
            assert_eq!(listed, 1, "{name}");
            assert!(text.lines().any(|line| line.starts_with(&format!("  {name} "))), "{name}: {text}");
        }
        // A line for each command, and a screen of an editor beside a terminal.
        assert!(text.lines().count() <= 52, "{text}");
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{wide:#?}");
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
            let typed = command().try_get_matches_from(format!("plimsoll {line}").split(' '));
            assert_eq!(typed.is_ok(), kept, "{line}");
        }
        for old in ["validate", "calibrate", "report"] {
            assert!(!names().contains(&old.to_owned()), "{old}");
        }
    }
}

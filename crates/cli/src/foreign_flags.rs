//! Flags of other load generators and the equivalent flags here. They are needed because clap's suggestions by spelling mislead.

/// Flags of other tools (vLLM and SGLang bench, GuideLLM, AIPerf and GenAI-Perf, k6, genai-bench) with the replacement.
const FLAGS: [(&str, &str); 51] = [
    // vLLM and SGLang bench.
    ("--request-rate", "--rate"),
    ("--num-prompts", "--requests"),
    ("--num-prompt", "--requests"),
    ("--max-concurrency", "--concurrency"),
    ("--burstiness", "--arrivals"),
    ("--random-input-len", "--isl"),
    ("--random-output-len", "--osl"),
    ("--random-input", "--isl"),
    ("--random-output", "--osl"),
    ("--input-len", "--isl"),
    ("--output-len", "--osl"),
    ("--sharegpt-output-len", "--osl"),
    ("--random-prefix-len", "--prefix"),
    ("--dataset-path", "--prompts"),
    ("--backend", "--protocol"),
    ("--endpoint-type", "--protocol"),
    ("--save-result", "--out"),
    ("--result-dir", "--out"),
    ("--output-file", "--out"),
    ("--num-warmups", "--warm-up"),
    ("--served-model-name", "--model"),
    ("--extra-request-body", "--set"),
    ("--extra-body", "--set"),
    // GuideLLM.
    ("--rate-type", "--arrivals"),
    ("--profile", "--arrivals"),
    ("--max-seconds", "--for"),
    ("--data", "--prompts"),
    ("--backend-type", "--protocol"),
    ("--request-type", "--protocol"),
    ("--output-path", "--out"),
    ("--random-seed", "--seed"),
    // AIPerf and GenAI-Perf.
    ("--request-count", "--requests"),
    ("--num-requests", "--requests"),
    ("--synthetic-input-tokens-mean", "--isl"),
    ("--isl-mean", "--isl"),
    ("--output-tokens-mean", "--osl"),
    ("--osl-mean", "--osl"),
    ("--prompt-input-tokens-mean", "--isl"),
    ("--prompt-output-tokens-mean", "--osl"),
    ("--benchmark-duration", "--for"),
    ("--warmup-request-count", "--warm-up"),
    ("--input-file", "--prompts"),
    ("--extra-inputs", "--set"),
    ("--service-kind", "--protocol"),
    ("--artifact-dir", "--out"),
    ("--output-artifact-dir", "--out"),
    ("--request-timeout-seconds", "--timeout"),
    // k6.
    ("--vus", "--concurrency"),
    ("--duration", "--for"),
    ("--iterations", "--requests"),
    ("--rps", "--rate"),
];

/// Flags with the target's address in these tools; here it is an argument.
const ADDRESSES: [&str; 6] = ["--base-url", "--url", "--target", "--host", "--api-base", "--endpoint-url"];

/// Returns the replacement for another tool's flag; `None` if it is unknown or this command has no such flag.
pub fn advice(typed: &str, has: impl Fn(&str) -> bool) -> Option<String> {
    let typed = typed.split('=').next().unwrap_or(typed).replace('_', "-");
    if ADDRESSES.contains(&typed.as_str()) {
        return Some("the target's address is the first argument, without a flag".to_owned());
    }
    let (_, own) = FLAGS.iter().find(|(foreign, own)| *foreign == typed && has(own))?;
    Some(format!("here it is '{own}'"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::flags::Cli;

    fn of_run(flag: &str) -> bool {
        let cli = Cli::command();
        let run = cli.find_subcommand("run").expect("it exists");
        run.get_arguments().any(|arg| arg.get_long() == flag.strip_prefix("--"))
    }

    #[test]
    fn every_flag_that_is_named_exists_and_every_foreign_one_does_not() {
        for (foreign, own) in FLAGS {
            assert!(of_run(own), "{own} for {foreign}");
            assert!(!of_run(foreign), "{foreign} is a flag here");
        }
    }

    #[test]
    fn the_flags_that_people_type_are_translated() {
        for (typed, own) in [
            ("--request-rate", "'--rate'"),
            ("--num_prompts=10", "'--requests'"),
            ("--base-url", "first argument"),
        ] {
            assert!(advice(typed, of_run).is_some_and(|line| line.contains(own)), "{typed}");
        }
        assert_eq!(advice("--request-rate", |_| false), None);
        assert_eq!(advice("--unknown", of_run), None);
    }
}

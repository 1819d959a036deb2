//! `plimsoll docs` prints a page of the manual, or the list of its pages.
//!
//! The pages are part of the binary (`build.rs`), because a user without network has the binary and no
//! checkout.

use plimsoll_workload::{closest, nearest};

use crate::exit::{Exit, Stop};
use crate::flags::DocsArgs;
use crate::out;

/// Path below `docs/` without `.md`, and text of every page.
const PAGES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));

/// Folders in the order of the list; others follow.
const FOLDERS: [&str; 3] = ["", "how-to", "commands"];

/// Prints the page, or the list.
pub fn run(args: &DocsArgs) -> Result<Exit, Stop> {
    match &args.page {
        Some(name) => out::plain(page(name).map_err(Stop::usage)?),
        None => out::plain(&list()),
    }
    Ok(Exit::Done)
}

/// Returns the text of the page for a name or for a link of another page.
fn page(name: &str) -> Result<&'static str, String> {
    let path = name.split('#').next().unwrap_or_default().trim_start_matches("./").trim_start_matches("../");
    let path = path.trim_start_matches("docs/").trim_end_matches('/').trim_end_matches(".md");
    // A command's page first, because `plimsoll docs watch` follows `plimsoll watch`.
    let exact = [format!("commands/{path}"), path.to_owned(), format!("{path}/README")];
    if let Some(page) = exact.iter().find_map(|name| PAGES.iter().find(|page| page.0 == name)) {
        return Ok(page.1);
    }
    let ending: Vec<_> = PAGES.iter().filter(|page| short(page.0) == path).collect();
    match ending.as_slice() {
        [only] => Ok(only.1),
        [] => Err(format!("{name}: no such page; {}; plimsoll docs lists all", near(path))),
        several => {
            let names: Vec<&str> = several.iter().map(|page| page.0).collect();
            Err(format!("{name}: there are {} such pages: {}", names.len(), names.join(", ")))
        }
    }
}

/// Most bytes of the passages about a word.
#[cfg(feature = "mcp")]
const PASSAGES_BYTES: usize = 3000;

/// Returns the lines of the manual that define or use a word, with their page and heading, definitions first.
///
/// # Errors
/// Fails if no page has the word; the text names similar words.
#[cfg(feature = "mcp")]
pub fn passages(word: &str) -> Result<String, String> {
    let word = word.trim().trim_matches('`').to_lowercase();
    let mut found: Vec<(usize, String)> = Vec::new();
    for (page, text) in PAGES {
        let mut heading = String::new();
        for line in text.lines() {
            if line.starts_with('#') {
                heading = line.trim_start_matches(['#', ' ']).replace('`', "");
            }
            let lower = line.to_lowercase();
            if word.is_empty() || !format!(" {} ", words(&lower)).contains(&format!(" {} ", words(&word))) {
                continue;
            }
            // The name of a table's row or of a list's item is what the line defines.
            let defined = lower
                .trim_start_matches(['|', '*', '-', ' '])
                .split(['|', ':', '.'])
                .next()
                .unwrap_or_default()
                .to_owned();
            let defines = defined.contains(&format!("`{word}`")) || defined.contains(&format!("**{word}**"));
            let is_method = page.starts_with("methods/");
            let rank = match (defines, is_method) {
                (true, true) => 0,
                (true, false) => 1,
                (false, true) => 2,
                (false, false) => 3,
            };
            found.push((rank, format!("{page} · {heading}: {}", line.trim())));
        }
    }
    if found.is_empty() {
        return Err(format!("{word}: the manual has no such word; {}", near(&word)));
    }
    found.sort_by_key(|(rank, _)| *rank);
    let mut all = String::new();
    for (_, line) in found {
        if all.len() + line.len() > PASSAGES_BYTES {
            break;
        }
        all += &line;
        all.push('\n');
    }
    Ok(
        all + "Intervals, the window and failed requests: methods/measuring. Rules of verdicts: methods/judging. plimsoll docs PAGE prints a page."
    )
}

/// Returns the words of a line, with one space between them.
#[cfg(feature = "mcp")]
fn words(line: &str) -> String {
    let is_between = |c: char| !c.is_alphanumeric() && c != '_';
    line.split(is_between).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Returns a phrase with the pages that are spelled like this word, or else use it most.
fn near(word: &str) -> String {
    let names = || PAGES.iter().flat_map(|page| [page.0, short(page.0)]);
    if let Some(name) = nearest(word, names()) {
        return format!("did you mean {name}?");
    }
    let word = word.to_lowercase();
    let mut uses: Vec<(usize, &str)> =
        PAGES.iter().map(|page| (page.1.to_lowercase().matches(&word).count(), page.0)).collect();
    uses.retain(|(count, _)| *count > 0 && !word.is_empty());
    uses.sort_by_key(|(count, name)| (std::cmp::Reverse(*count), *name));
    match uses.as_slice() {
        [] => format!("near are {}", closest(&word, names(), 3).join(", ")),
        uses => {
            let names: Vec<&str> = uses.iter().take(3).map(|(_, name)| *name).collect();
            format!("these use the word: {}", names.join(", "))
        }
    }
}

/// Returns the last part of a page's path.
fn short(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Returns a line for each page: the name to type, and the title.
fn list() -> String {
    let folder = |name: &str| name.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
    let rank = |name: &str| FOLDERS.iter().position(|known| *known == folder(name)).unwrap_or(FOLDERS.len());
    let mut pages: Vec<_> = PAGES.iter().collect();
    pages.sort_by_key(|page| (rank(page.0), folder(page.0), page.0 != "tutorial", page.0));
    let width = pages.iter().map(|page| page.0.len()).max().unwrap_or_default();
    let mut list = String::from("plimsoll docs PAGE prints a page.\n");
    let mut last = None;
    for (name, text) in pages {
        let here = folder(name);
        if last.replace(here.clone()).is_some_and(|last| last != here) {
            list.push('\n');
        }
        let title = text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default();
        list += &format!("\n{name:<width$}  {}", title.replace('`', ""));
    }
    list
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::FromArgMatches;
    use clap::error::ErrorKind;

    use super::*;
    use crate::flags::Cli;
    use crate::{help, typed};

    #[test]
    fn a_page_has_its_short_name_its_path_and_its_link() {
        let gate = page("gate").expect("a page");
        for name in
            ["commands/gate", "commands/gate.md", "../commands/gate.md#limits", "docs/commands/gate.md"]
        {
            assert_eq!(page(name), Ok(gate), "{name}");
        }
        assert_eq!(page("ci"), page("how-to/ci"));
        assert_eq!(page("README.md").map(|text| text.starts_with("# Documentation")), Ok(true));
    }

    #[test]
    fn an_unknown_page_is_answered_with_pages_that_exist() {
        let wrong = |name| page(name).expect_err("no page");
        assert!(wrong("gaet").contains("did you mean gate?"), "{}", wrong("gaet"));
        assert!(wrong("Kubernetes").contains("these use the word: "), "{}", wrong("Kubernetes"));
        assert!(wrong("qqqqqqqqqqqqqq").contains("near are "), "{}", wrong("qqqqqqqqqqqqqq"));
        assert!(wrong("").contains("no such page"));
        assert!(!wrong("Kubernetes").contains('\n'));
    }

    #[test]
    fn the_list_names_every_page_with_its_title() {
        let list = list();
        for (name, _) in PAGES {
            let line = list.lines().find(|line| line.split_whitespace().next() == Some(name));
            assert!(
                line.is_some_and(|line| line.trim() != *name),
                "{name}: no line, or a page without a title"
            );
            assert!(page(name).is_ok(), "{name}");
        }
    }

    /// The commands of a page: line, words, and whether a part of a command is enough.
    fn commands(text: &str) -> Vec<(usize, Vec<String>, bool)> {
        let (mut found, mut fence, mut pending) = (Vec::new(), None::<String>, String::new());
        for (at, line) in text.lines().enumerate() {
            let bare = line.trim_start();
            if let Some(kind) = bare.strip_prefix("```") {
                fence = if fence.is_some() { None } else { Some(kind.trim().to_owned()) };
                continue;
            }
            let Some(kind) = &fence else {
                // Prose names commands without the arguments that they need.
                let spans = line.split('`').skip(1).step_by(2);
                found.extend(spans.flat_map(typed_words).map(|words| (at + 1, words, true)));
                continue;
            };
            pending += bare.strip_prefix("$ ").unwrap_or(bare);
            if pending.ends_with('\\') {
                pending.pop();
                continue;
            }
            let line = std::mem::take(&mut pending);
            // A screen contains sentences about commands, so there a prompt marks the typed lines.
            if ["sh", "bash", "yaml"].contains(&kind.as_str()) || bare.starts_with("$ ") {
                found.extend(typed_words(&line).into_iter().map(|words| (at + 1, words, false)));
            }
        }
        found
    }

    /// Returns the commands in a line of a shell. A command starts with `plimsoll`.
    fn typed_words(line: &str) -> Vec<Vec<String>> {
        let (mut parts, mut word, mut quote) = (vec![Vec::new()], None::<String>, None);
        let end = |parts: &mut Vec<Vec<String>>, word: &mut Option<String>| {
            parts.last_mut().expect("a part").extend(word.take());
        };
        for letter in line.chars() {
            match (quote, letter) {
                (Some(open), _) if letter == open => quote = None,
                (None, '"' | '\'') => (quote, word) = (Some(letter), Some(word.unwrap_or_default())),
                (None, ' ') => end(&mut parts, &mut word),
                (None, '#') if word.is_none() => break,
                (None, '|' | ';' | '&' | '>' | '<' | '(' | ')')
                    if word.as_deref() != Some("2") || letter == '>' =>
                {
                    end(&mut parts, &mut word);
                    parts.push(Vec::new());
                }
                _ => word.get_or_insert_default().push(letter),
            }
        }
        end(&mut parts, &mut word);
        let before = ["-", "run:", "exec", "time", "sudo", "nohup", "uvx"];
        let commands = parts.into_iter().map(|words| {
            let skipped = |word: &String| {
                before.contains(&word.as_str()) || (word.contains('=') && !word.starts_with('-'))
            };
            words.into_iter().skip_while(skipped).collect::<Vec<_>>()
        });
        commands.filter(|words| words.len() > 1 && words[0] == "plimsoll").collect()
    }

    /// The problem of a command, if it has one.
    fn problem(words: Vec<String>, part: bool) -> Option<String> {
        if help::page(&words[1..]).is_some() || words[1] == "COMMAND" {
            return None;
        }
        let words = words.into_iter().filter(|word| word != "…" && word != "...");
        let url = |word: String| match word.trim_start_matches('$') {
            "URL" | "URL_A" | "URL_B" | "URL_OLD" | "URL_NEW" => "http://host:8000/v1".to_owned(),
            // `last` would be resolved, and there is no run here.
            "last" => "RUN".to_owned(),
            _ => word,
        };
        let matches = match help::command(help::HelpDetail::Full).try_get_matches_from(words.map(url)) {
            Ok(matches) => matches,
            Err(e) => {
                let shown = matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
                let unfinished = matches!(
                    e.kind(),
                    ErrorKind::MissingRequiredArgument
                        | ErrorKind::MissingSubcommand
                        | ErrorKind::InvalidValue
                        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                );
                return (!(shown || part && unfinished))
                    .then(|| e.to_string().lines().next().unwrap_or_default().to_owned());
            }
        };
        let cli = Cli::from_arg_matches(&matches).ok()?;
        typed::check(&cli, &matches).err().map(|stop| stop.line)
    }

    #[test]
    fn shell_lines_are_split_as_a_shell_does() {
        let words = |line: &str| -> Vec<String> {
            typed_words(line).into_iter().map(|words| words.join("_")).collect()
        };
        assert_eq!(
            words("plimsoll run URL --slo \"ttft p99 < 5s\"  # a remark"),
            ["plimsoll_run_URL_--slo_ttft p99 < 5s"]
        );
        assert_eq!(
            words("A=1 plimsoll ls >x && plimsoll show 'a b' | jq ."),
            ["plimsoll_ls", "plimsoll_show_a b"]
        );
        assert_eq!(words("More  plimsoll show RUN"), [""; 0]);
        assert_eq!(words("- run: plimsoll ls x"), ["plimsoll_ls_x"]);
        assert_eq!(commands("```sh\nplimsoll show \\\n  RUN\n```").len(), 1);
    }

    #[test]
    fn a_command_that_cannot_be_typed_is_a_problem() {
        let typed = |line: &str, part| problem(line.split(' ').map(str::to_owned).collect(), part);
        assert_eq!(typed("plimsoll run URL --rate 12/s", false), None);
        assert!(typed("plimsoll run URL --rte 12/s", true).is_some());
        assert!(typed("plimsoll gate RUN", false).is_some());
        assert_eq!(typed("plimsoll gate RUN", true), None);
        assert!(typed("plimsoll gaet", true).is_some());
    }

    /// Every command in the manual is valid, because users copy the commands.
    #[test]
    fn every_command_in_the_manual_can_be_typed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let outside =
            ["README.md", "CONTRIBUTING.md", "AGENTS.md", "SECURITY.md", "docs/release-checklist.md"];
        let read = |name: &&str| {
            let text = std::fs::read_to_string(root.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            ((*name).to_owned(), text)
        };
        let pages = PAGES.iter().map(|(name, text)| (format!("docs/{name}.md"), (*text).to_owned()));
        let (mut wrong, mut count) = (Vec::new(), 0);
        for (name, text) in outside.iter().map(read).chain(pages) {
            for (line, words, part) in commands(&text) {
                let shown = words.join(" ");
                count += 1;
                wrong.extend(problem(words, part).map(|why| format!("{name}:{line}: {shown}\n    {why}")));
            }
        }
        assert!(count > 100, "only {count} commands were found");
        assert!(wrong.is_empty(), "{} commands can't be typed:\n{}", wrong.len(), wrong.join("\n"));
    }
}

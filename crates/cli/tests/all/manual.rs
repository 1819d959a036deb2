//! The manual: every relative link and every anchor in Markdown leads somewhere, and every page is in the table of contents.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::kit::{plimsoll, run_folder};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace root exists")
}

/// All Markdown below a folder, without build outputs and hidden folders.
fn pages(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let skipped =
                name.starts_with('.') && name != ".github" || name == "target" || name.ends_with("-runs");
            match path.is_dir() {
                true if !skipped => folders.push(path),
                false if name.ends_with(".md") => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// The lines of a page outside of code, with their numbers; code spans are emptied.
fn prose(text: &str) -> Vec<(usize, String)> {
    let (mut lines, mut fenced) = (Vec::new(), false);
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let spans: Vec<&str> = line.split('`').collect();
            let kept = spans.iter().enumerate().map(|(i, span)| if i % 2 == 0 { span } else { "" });
            lines.push((at + 1, kept.collect::<Vec<_>>().join("`")));
        }
    }
    lines
}

/// The targets of the links of a line: of `[text](target)` and of `[name]: target`.
fn links(line: &str) -> Vec<String> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let named = line
        .split_once("]: ")
        .filter(|(name, _)| name.starts_with('[') && !name.contains("]("))
        .map(|(_, to)| to);
    let first = |target: &str| {
        target.split_whitespace().next().unwrap_or_default().trim_matches(['<', '>']).to_owned()
    };
    inline.chain(named).map(first).filter(|target| !target.is_empty()).collect()
}

/// The anchors of a page: its headings, as GitHub and mdBook name them, and its `id` attributes.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut all, mut counts, mut fenced) = (BTreeSet::new(), BTreeMap::<String, usize>::new(), false);
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if !fenced && line.starts_with('#') && heading.starts_with(' ') {
            let anchor = anchor(heading.trim());
            let count = counts.entry(anchor.clone()).or_default();
            all.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
            *count += 1;
        }
        let ids = ["id=\"", "name=\""].into_iter().flat_map(|mark| line.split(mark).skip(1));
        all.extend(ids.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
    }
    all
}

fn anchor(heading: &str) -> String {
    let mut text = heading.replace('`', "");
    while let Some((before, rest)) = text.split_once("](") {
        let after = rest.split_once(')').map_or("", |(_, after)| after);
        text = format!("{}{after}", before.replacen('[', "", 1));
    }
    let kept = text
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .collect::<String>();
    kept.replace(' ', "-")
}

/// `page:line: link: reason` of every link that leads nowhere.
fn broken(root: &Path, pages: &[PathBuf]) -> Vec<String> {
    let mut wrong = Vec::new();
    for page in pages {
        let text = fs::read_to_string(page).expect("a page");
        let name = page.strip_prefix(root).unwrap_or(page).display();
        for (line, prose) in prose(&text) {
            for link in links(&prose) {
                if link.contains("://") || link.starts_with("mailto:") {
                    continue;
                }
                let (path, anchor) =
                    link.split_once('#').map_or((link.as_str(), None), |(p, a)| (p, Some(a)));
                let file =
                    if path.is_empty() { page.clone() } else { page.parent().expect("a folder").join(path) };
                let why = match anchor {
                    _ if !file.exists() => "there is no such file",
                    Some(anchor) if path.is_empty() || path.ends_with(".md") => {
                        let there = fs::read_to_string(&file).map(|text| anchors(&text)).unwrap_or_default();
                        if there.contains(anchor) { continue } else { "the page has no such heading" }
                    }
                    _ => continue,
                };
                wrong.push(format!("{name}:{line}: {link}: {why}"));
            }
        }
    }
    wrong
}

#[test]
fn every_link_leads_somewhere() {
    let root = root();
    let pages = pages(&root);
    assert!(pages.len() > 60, "only {} pages were found", pages.len());
    let wrong = broken(&root, &pages);
    assert!(wrong.is_empty(), "{} links lead nowhere:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_link_that_leads_nowhere_is_named_with_page_and_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    write(
        "a.md",
        "# A\n\n[gone](gone.md) and [b](b.md#two-words)\n\n`[code](no.md)` [x](#a) [b]\n\n[b]: b.md#three\n",
    );
    write(
        "b.md",
        "# B `c`\n\n## Two words\n\n```\n[fenced](no.md)\n```\n\n## Two words\n\n[again](#two-words-1) [itself](#b-c)\n",
    );
    let wrong = broken(folder.path(), &pages(folder.path()));
    assert_eq!(
        wrong,
        ["a.md:3: gone.md: there is no such file", "a.md:7: b.md#three: the page has no such heading"]
    );
}

/// mdBook leaves out a page that its table of contents does not name.
#[test]
fn every_page_of_the_manual_is_in_the_table_of_contents() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).expect("docs/SUMMARY.md");
    let listed: BTreeSet<PathBuf> =
        summary.lines().flat_map(links).filter_map(|link| docs.join(link).canonicalize().ok()).collect();
    let missing: Vec<PathBuf> = pages(&docs).into_iter().filter(|page| !listed.contains(page)).collect();
    let missing: Vec<&Path> = missing.iter().map(|page| page.strip_prefix(&docs).unwrap_or(page)).collect();
    assert_eq!(missing, [Path::new("SUMMARY.md")], "pages that docs/SUMMARY.md lacks");
}

#[test]
fn the_generated_reference_has_a_page_for_each_command_and_no_broken_link() {
    let (_folder, out) = run_folder();
    let ended = plimsoll(&["dev", "reference", "-o", &out]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let out = Path::new(&out);
    let pages = pages(out);
    for page in ["cli/run.md", "cli/budget-init.md", "files/scenario.md", "files/budget.md"] {
        assert!(out.join(page).exists(), "{page}");
    }
    let wrong = broken(out, &pages);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let summary = fs::read_to_string(out.join("SUMMARY.md")).expect("a summary");
    assert_eq!(summary.lines().count() + 1, pages.len());
}

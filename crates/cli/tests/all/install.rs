//! Files that are installed with the binary: completions that their shell reads, man pages, the second name.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::kit::{PLIMSOLL, plimsoll};

/// Bash loads its completions; the completions of other shells contain every command.
#[test]
fn completions_are_read_by_their_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = plimsoll(&["completions", shell]);
        assert_eq!(said.code, 0, "{}", said.stderr);
        for command in ["sweep", "what-if", "completions"] {
            assert!(said.stdout.contains(command), "{shell} lacks {command}");
        }
        if shell == "bash" {
            let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().expect("a bash");
            bash.stdin.take().expect("piped").write_all(said.stdout.as_bytes()).expect("it reads");
            assert!(bash.wait().expect("ended").success());
        }
    }
    assert_eq!(plimsoll(&["completions", "csh"]).code, 2);
}

/// One page per command that the help lists, each with its flags.
#[test]
fn every_command_has_a_man_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("man/man1");
    assert_eq!(plimsoll(&["man", dir.to_str().expect("utf-8")]).code, 0);
    let page = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(page("plimsoll.1").contains("plimsoll\\-sweep(1)"), "{}", page("plimsoll.1"));
    assert!(page("plimsoll-gate.1").contains("\\-\\-budget"));
    page("plimsoll-plan-verify.1");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    let refused = plimsoll(&["man", file.join("sub").to_str().expect("utf-8")]);
    assert_eq!((refused.code, refused.stderr.lines().count()), (2, 1), "{}", refused.stderr);
}

#[test]
fn the_wheels_name_starts_the_same() {
    let bench = Path::new(PLIMSOLL).with_file_name("plimsoll-bench");
    let said = |binary: &Path| {
        Command::new(binary).args(["calc", "mmc", "--help"]).output().expect("it starts").stdout
    };
    assert_eq!(said(&bench), said(Path::new(PLIMSOLL)));
}

/// What the bill of materials says of a crate is what the lock says, and what only tests use is not in it.
#[test]
fn the_bill_of_materials_is_what_the_lock_pins() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let made = |target: &str| -> serde_json::Value {
        let script = root.join("scripts/sbom");
        let said =
            Command::new("python3").arg(script).arg(target).current_dir(&root).output().expect("python3");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        serde_json::from_slice(&said.stdout).expect("JSON")
    };
    let bill = made("x86_64-unknown-linux-gnu");
    let lock = fs::read_to_string(root.join("Cargo.lock")).expect("the lock");
    let parts = bill["components"].as_array().expect("components");
    let word = |part: &serde_json::Value, key: &str| part[key].as_str().expect("a text").to_owned();
    for part in parts {
        let (name, version) = (word(part, "name"), word(part, "version"));
        let pinned = lock
            .split("[[package]]")
            .find(|block| block.contains(&format!("name = \"{name}\"\nversion = \"{version}\"\n")));
        let pinned = pinned.unwrap_or_else(|| panic!("{name} {version} is not in the lock"));
        let sum = pinned.split_once("checksum = \"").and_then(|(_, rest)| rest.split('"').next());
        assert_eq!(part["hashes"][0]["content"].as_str(), sum, "{name}");
        assert!(part["licenses"][0]["expression"].is_string(), "{name} has no licence");
    }
    let names: Vec<String> = parts.iter().map(|part| word(part, "name")).collect();
    for (name, is_in) in [
        ("hyper", true),
        ("ring", true),
        ("plimsoll-store", true),
        ("proptest", false),
        ("plimsoll-lab", false),
    ] {
        assert_eq!(names.iter().any(|one| one == name), is_in, "{name}");
    }
    assert_eq!(bill["metadata"]["component"]["name"], "plimsoll");
    assert_eq!(bill["dependencies"].as_array().map(Vec::len), Some(parts.len() + 1));
}

/// A key of this test signs. A file signed by another key, for another purpose, or changed afterwards is refused.
#[test]
fn checksums_are_signed_and_what_was_changed_is_found() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let keygen = |name: &str| {
        let made =
            Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at(name)).status();
        made.is_ok_and(|status| status.success())
    };
    if !keygen("key") || !keygen("other") {
        assert!(std::env::var_os("PLIMSOLL_REQUIRE").is_none(), "ssh-keygen is missing");
        return eprintln!("SKIPPED: no ssh-keygen here");
    }
    let public = fs::read_to_string(at("key.pub")).expect("a public key");
    let signers = at("allowed_signers");
    fs::write(&signers, format!("releases@plimsoll namespaces=\"plimsoll-release\" {public}"))
        .expect("written");
    let packages = at("packages");
    fs::create_dir(&packages).expect("made");
    fs::write(packages.join("plimsoll-1.tar.gz"), "an archive").expect("written");
    fs::write(packages.join("plimsoll bench.whl"), "a wheel").expect("written");
    let script = |words: &[&str], key: Option<&str>| {
        let mut command = Command::new("bash");
        command
            .arg(root.join("scripts/package"))
            .args(words)
            .env("OUT", &packages)
            .env_remove("PLIMSOLL_SIGNING_KEY");
        command.envs(key.map(|key| ("PLIMSOLL_SIGNING_KEY", key)));
        let ended = command.output().expect("bash starts");
        let said = [ended.stdout, ended.stderr].concat();
        (ended.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned())
    };
    let (dir, list) = (packages.to_str().expect("utf-8"), signers.to_str().expect("utf-8"));
    let verify = || script(&["verify", dir, list], None).0;
    let (code, said) = script(&["sums"], None);
    assert!(code == 0 && said.contains("is not signed"), "{said}");
    assert_ne!(verify(), 0, "nobody signed it");
    // The key itself, as a CI's secret is given, and its file.
    let text = fs::read_to_string(at("key")).expect("a key");
    for key in [text.trim_end(), at("key").to_str().expect("utf-8")] {
        let (code, said) = script(&["sums"], Some(key));
        assert!(code == 0 && !said.contains("PRIVATE KEY"), "{said}");
        let sums = fs::read_to_string(packages.join("SHA256SUMS")).expect("sums");
        assert_eq!(sums.lines().count(), 2, "{sums}");
        assert_eq!(verify(), 0);
    }
    fs::write(packages.join("plimsoll-1.tar.gz"), "another archive").expect("written");
    assert_eq!(verify(), 1, "a file was changed");
    fs::write(packages.join("plimsoll-1.tar.gz"), "an archive").expect("written");
    assert_eq!(verify(), 0);
    let sums = fs::read_to_string(packages.join("SHA256SUMS")).expect("sums");
    fs::write(packages.join("SHA256SUMS"), sums.replacen('a', "b", 1)).expect("written");
    assert_ne!(verify(), 0, "the sums were changed");
    assert_eq!(script(&["sums"], at("other").to_str()).0, 0);
    assert_ne!(verify(), 0, "another key signed");
    let (code, said) = script(&["sums"], Some("no key"));
    assert!(code == 2 && said.contains("no private key of OpenSSH"), "{said}");
}

/// The hook's entry, split as pre-commit splits it and given files as it gives them.
#[test]
fn the_hook_refuses_a_budget_that_can_t_be_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let hooks: Value =
        serde_saphyr::from_str(&fs::read_to_string(root.join(".pre-commit-hooks.yaml")).expect("there"))
            .expect("YAML");
    let hook = &hooks[0];
    assert_eq!(hook["language"], "system");
    let pattern = hook["files"].as_str().expect("a pattern");
    let python = format!("import re, sys; print([bool(re.search(r'{pattern}', n)) for n in sys.argv[1:]])");
    let names = ["budget.yaml", "ci/budget-chat.yml", "docs/budget.md", "mybudget.yaml"];
    let said = Command::new("python3").arg("-c").arg(python).args(names).output().expect("python starts");
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "[True, True, False, False]");
    let folder = tempfile::tempdir().expect("a folder");
    let bad = folder.path().join("budget bad.yaml");
    fs::write(&bad, "version: 1\nbudgets:\n  - {id: a, metric: nothing, max: 1s}\n").expect("written");
    let good = root.join("docs/examples/budget-chat.yaml");
    let entry = format!("{} \"$@\"", hook["entry"].as_str().expect("an entry"));
    let path = format!("{}:{}", Path::new(PLIMSOLL).parent().expect("a folder").display(), env!("PATH"));
    let run = |files: &[&Path]| {
        let mut command = Command::new("sh");
        command.args(["-c", &entry, "sh"]).args(files).env("PATH", &path);
        command.output().expect("a shell").status.code()
    };
    assert_eq!((run(&[&good]), run(&[&good, &good])), (Some(0), Some(0)));
    assert_eq!((run(&[&bad]), run(&[&good, &bad])), (Some(1), Some(1)));
}

/// An image of a small program: the same bytes twice, every blob under its own digest, nobody's rights, the machine that the program is for.
#[test]
fn the_image_is_the_same_twice_and_runs_as_nobody() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().expect("a folder");
    let of = |name: &str, binary: &Path, further: &[&Path]| {
        let dir = folder.path().join(name);
        let script = root.join("scripts/oci-image");
        let mut python = Command::new("python3");
        let said = python.arg(script).arg(binary).arg(&dir).arg("1.2.3").args(further).output();
        (dir, said.expect("python3"))
    };
    let made = |name: &str, binary: &Path| of(name, binary, &[]);
    let bench = Path::new(PLIMSOLL).with_file_name("plimsoll-bench");
    let (dir, said) = made("one", &bench);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let (again, _) = made("two", &bench);
    let read = |path: &Path| fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(read(&dir.join("index.json")), read(&again.join("index.json")));
    let held = "import hashlib, pathlib, sys
for blob in pathlib.Path(sys.argv[1], 'blobs/sha256').iterdir():
    assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name, blob";
    assert!(Command::new("python3").args(["-c", held]).arg(&dir).status().expect("python3").success());
    let blob_of = |dir: &Path, digest: &Value| {
        let digest = digest["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
        read(&dir.join("blobs/sha256").join(digest.expect("a digest")))
    };
    let blob = |digest: &Value| blob_of(&dir, digest);
    let json = |bytes: Vec<u8>| serde_json::from_slice::<Value>(&bytes).expect("JSON");
    let manifest = json(blob(&json(read(&dir.join("index.json")))["manifests"][0]));
    let config = json(blob(&manifest["config"]));
    let machine = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    assert_eq!((&config["architecture"], &config["os"]), (&Value::from(machine), &Value::from("linux")));
    assert_eq!(config["config"]["User"], "65532:65532");
    let layer = folder.path().join("layer.tar");
    fs::write(&layer, blob(&manifest["layers"][0])).expect("written");
    let listed = Command::new("tar").arg("-tvf").arg(&layer).output().expect("tar").stdout;
    let listed = String::from_utf8_lossy(&listed);
    let line = |name: &str| {
        listed.lines().find(|line| line.ends_with(name)).unwrap_or_else(|| panic!("no {name}: {listed}"))
    };
    assert!(line("usr/bin/plimsoll").starts_with("-rwxr-xr-x 0/0"), "{listed}");
    assert!(line("work/").contains("65532/65532"), "what it writes is its own: {listed}");
    assert!(!listed.contains("bin/sh"), "{listed}");
    // With an image of another architecture, the name is that of an index, which lists both by architecture.
    let mut other = read(&bench);
    other[18..20].copy_from_slice(&if machine == "amd64" { 183u16 } else { 62 }.to_le_bytes());
    let foreign = folder.path().join("foreign");
    fs::write(&foreign, other).expect("written");
    let (both, said) = of("both", &bench, &[&foreign]);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let top = json(read(&both.join("index.json")))["manifests"][0].clone();
    assert_eq!(top["mediaType"], "application/vnd.oci.image.index.v1+json");
    let each = json(blob_of(&both, &top))["manifests"].clone();
    let machines: Vec<&Value> = [0, 1].iter().map(|n| &each[n]["platform"]["architecture"]).collect();
    assert!(
        machines[0] == machine && machines.contains(&&"arm64".into()) && machines.contains(&&"amd64".into())
    );
    assert_eq!(json(blob_of(&both, &each[0])), manifest);
    // A file that is not a Linux program is refused in one line.
    let (_, said) = made("none", &root.join("README.md"));
    let why = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.code() == Some(1) && why.lines().count() == 1 && why.contains("README.md"), "{why}");
}

/// A build that fails ends the packaging: what an earlier build left is not put into a package.
#[test]
fn a_build_that_fails_is_not_packaged() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().expect("a folder");
    let failing = folder.path().join("failing");
    fs::create_dir(&failing).expect("made");
    // `sh` is no cargo: it knows no command `build` and fails.
    std::os::unix::fs::symlink("/bin/sh", failing.join("cargo")).expect("linked");
    let path = format!("{}:{}", failing.display(), std::env::var("PATH").unwrap_or_default());
    for package in ["archive", "image"] {
        let out = folder.path().join(package);
        let mut command = Command::new("bash");
        command.arg(root.join("scripts/package")).arg(package).env("OUT", &out).env("PATH", &path);
        let ended = command.env_remove("TARGET").output().expect("bash starts");
        assert!(!ended.status.success(), "{package}: {}", String::from_utf8_lossy(&ended.stdout));
        assert_eq!(fs::read_dir(&out).expect("there").count(), 0, "{package}");
    }
}

/// The names that cargo binstall would fetch and unpack agree with scripts/package.
#[test]
fn binstall_is_told_the_archives_own_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let manifest = fs::read_to_string(root.join("crates/cli/Cargo.toml")).expect("there");
    let field = |name: &str| {
        let line = manifest.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        let text = line.unwrap_or_else(|| panic!("no {name}")).trim_matches('"').to_owned();
        [
            ("{ version }", "1.2.3"),
            ("{ target }", "t"),
            ("{ bin }", "plimsoll"),
            ("{ binary-ext }", ""),
            ("{ repo }", "r"),
        ]
        .iter()
        .fold(text, |text, (from, to)| text.replace(from, to))
    };
    let script = fs::read_to_string(root.join("scripts/package")).expect("there");
    let dir =
        script.lines().find_map(|line| line.trim().strip_prefix("local binary dir=$out/")).expect("a line");
    let dir = dir.replace("$version", "1.2.3").replace("$target", "t");
    assert_eq!(field("bin-dir"), format!("{dir}/plimsoll"));
    assert_eq!(field("pkg-url"), format!("r/releases/download/v1.2.3/{dir}.tar.gz"));
    let bins = manifest.matches("[[bin]]").count();
    assert!(
        bins == 2 && script.contains("\"$binary\" \"$binary-bench\" \"$dir\""),
        "both are in the archive"
    );
}

//! Shards that meet and store their runs in an object store: S3 by moto, with signature checks and conditional puts.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use plimsoll_model::{How, Level, Load, RunState};
use plimsoll_store::StoredRun;
use tempfile::TempDir;

use crate::kit::{Ended, Engine, PLIMSOLL, begun, ended, until};
use crate::real::{Real, installed, moto, or_skipped, root};
use crate::shards::{LOAD, arrivals, open};

/// An engine, a bucket, and a folder that commands run in.
struct Field {
    engine: Engine,
    s3: Option<Real>,
    port: u16,
    id: String,
    secret: String,
    folder: TempDir,
    reader: RefCell<Option<(ChildStdin, BufReader<ChildStdout>)>>,
}

impl Field {
    fn new() -> Option<Field> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let keys = tempfile::tempdir().expect("a temporary folder");
        let (s3, [id, secret]) = or_skipped(moto(&keys.path().join("keys")))?;
        let port = s3.port;
        Some(Field {
            engine: Engine::start("canned"),
            s3: Some(s3),
            port,
            id,
            secret,
            folder,
            reader: RefCell::default(),
        })
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("utf-8").to_owned()
    }

    /// A command that knows the store and the keys to it.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PLIMSOLL);
        command.args(args).current_dir(self.folder.path());
        command.env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port));
        command.envs([("AWS_REGION", "us-east-1"), ("RUST_BACKTRACE", "1")]);
        // The metadata service is unreachable, so no credentials come from a cloud machine.
        command.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9");
        command.envs([("AWS_ACCESS_KEY_ID", &self.id), ("AWS_SECRET_ACCESS_KEY", &self.secret)]);
        command
    }

    fn shard(&self, shard: &str, place: &str, more: &[&str]) -> Command {
        let args = ["run", &self.engine.url, "--shard", shard, "--rendezvous", place];
        self.command(&[&args[..], &LOAD, more].concat())
    }

    fn merge(&self, places: &[&str], out: &str) -> Ended {
        let args = [&["merge"][..], places, &["-o", out, "--format", "json"]].concat();
        ended(begun(&mut self.command(&args)))
    }

    /// Returns the objects below a prefix in the bucket, by Amazon's own library.
    fn objects(&self, prefix: &str) -> BTreeMap<String, Vec<u8>> {
        let mut reader = self.reader.borrow_mut();
        let (asks, says) = reader.get_or_insert_with(|| self.read());
        writeln!(asks, "{prefix}").expect("python reads");
        let mut said = String::new();
        says.read_line(&mut said).expect("python answers");
        let texts: BTreeMap<String, String> = serde_json::from_str(&said).expect("JSON");
        let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).expect("text"), 16).expect("hex");
        let bytes = |text: String| text.as_bytes().chunks(2).map(byte).collect();
        texts.into_iter().map(|(key, text)| (key, bytes(text))).collect()
    }

    /// Amazon's library in a separate process, which ends when its input is closed.
    #[expect(clippy::zombie_processes, reason = "it ends with its pipe, and is the test process's to bury")]
    fn read(&self) -> (ChildStdin, BufReader<ChildStdout>) {
        let python = installed("venv-moto/bin/python", "moto").expect("moto runs");
        let script = root().join("crates/cli/tests/servers/bucket.py");
        let mut command = Command::new(python);
        command.arg(script).args([&self.port.to_string(), &self.id, &self.secret]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python starts");
        (child.stdin.take().expect("piped"), BufReader::new(child.stdout.take().expect("piped")))
    }

    fn names(&self, prefix: &str) -> Vec<String> {
        self.objects(prefix).into_keys().collect()
    }
}

fn words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

#[test]
fn two_shards_meet_in_a_bucket_and_send_what_one_machine_sends() {
    let Some(field) = Field::new() else { return };
    let place = "s3://load/monday/first";
    let same = words("--for 2s --seed 5 --nonce 9 --sessions 2,20ms");
    let all: Vec<Child> =
        (0..2).map(|index| begun(&mut field.shard(&format!("{index}/2"), place, &same))).collect();
    let all: Vec<Ended> = all.into_iter().map(ended).collect();
    all.iter().for_each(|one| assert!(matches!(one.code, 0 | 4), "{}", one.stderr));
    assert!(all[0].stderr.contains(&format!("also put at {place}")), "{}", all[0].stderr);
    // The log's parts are removed after the upload of the run's files.
    let names = field.names("monday/");
    assert_eq!(
        names,
        [
            "monday/first/rendezvous/ready-0.json",
            "monday/first/rendezvous/ready-1.json",
            "monday/first/rendezvous/start.json",
            "monday/first/shard-0-of-2/requests.parquet",
            "monday/first/shard-0-of-2/run.json",
            "monday/first/shard-0-of-2/server.parquet",
            "monday/first/shard-1-of-2/requests.parquet",
            "monday/first/shard-1-of-2/run.json",
            "monday/first/shard-1-of-2/server.parquet",
        ]
    );
    let merge = field.merge(&[place], "merged");
    assert!(matches!(merge.code, 0 | 4), "{}", merge.stderr);
    let one = field.path("one");
    let mut alone = field.command(&[&["run", &field.engine.url, "-o", &one][..], &LOAD, &same].concat());
    let alone = ended(begun(&mut alone));
    assert!(matches!(alone.code, 0 | 4), "{}", alone.stderr);
    let (merged, one) = (open(field.path("merged")), open(&one));
    assert!(one.attempts.len() > 100, "{}", one.attempts.len());
    assert_eq!(arrivals(&merged), arrivals(&one));
    assert_eq!(merged.attempts.len(), one.attempts.len());
    assert_eq!(merged.manifest.levels[0].schedule_hash, one.manifest.levels[0].schedule_hash);
    assert_eq!(merged.manifest.progress, RunState::Complete);
    // The objects in the bucket equal, byte for byte, the files on the machines; either can be merged.
    let local: Vec<String> = std::fs::read_dir(field.path("plimsoll-runs"))
        .expect("the shards' own folders")
        .flatten()
        .map(|entry| entry.path().to_str().expect("utf-8").to_owned())
        .collect();
    assert_eq!(local.len(), 2);
    let put = field.objects("monday/");
    for dir in &local {
        let index = if dir.contains("shard-0-of-2") { 0 } else { 1 };
        for file in ["run.json", "requests.parquet", "server.parquet"] {
            let key = format!("monday/first/shard-{index}-of-2/{file}");
            let there = std::fs::read(Path::new(dir).join(file)).expect("a file");
            assert_eq!(put[&key], there, "{key}");
        }
    }
    let first = local.iter().find(|dir| dir.contains("shard-0-of-2")).expect("shard 0");
    let mixed = field.merge(&["s3://load/monday/first/shard-1-of-2", first], "mixed");
    assert!(matches!(mixed.code, 0 | 4), "{}", mixed.stderr);
    assert_eq!(arrivals(&open(field.path("mixed"))), arrivals(&merged));
    // Nothing is left of what was fetched.
    let left = std::fs::read_dir(field.folder.path()).expect("a folder").flatten();
    let left: BTreeSet<String> = left.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(left, ["merged", "mixed", "one", "plimsoll-runs"].map(str::to_owned).into());
    // A number that comes again sends nothing.
    let again = ended(begun(&mut field.shard("1/2", place, &same)));
    assert_eq!(again.code, 2, "{}", again.stderr);
    assert!(again.stderr.contains("shard-1-of-2: already exists"), "{}", again.stderr);
    assert_eq!(field.names("monday/"), names);
    secret_is_nowhere(&field, &[&all[0], &all[1], &merge, &alone, &mixed, &again]);
}

/// The secret is in nothing that was printed, put or left behind.
fn secret_is_nowhere(field: &Field, said: &[&Ended]) {
    let holds = |bytes: &[u8], word: &str| bytes.windows(word.len()).any(|part| part == word.as_bytes());
    let free = |what: &str, bytes: &[u8]| {
        for word in [&field.secret, &field.id] {
            assert!(!holds(bytes, word), "{what} holds {word}");
        }
    };
    for one in said {
        free("what was printed", one.stdout.as_bytes());
        free("what was printed", one.stderr.as_bytes());
    }
    field.objects("").iter().for_each(|(key, bytes)| free(key, bytes));
    let mut folders = vec![field.folder.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path => free(&path.display().to_string(), &std::fs::read(&path).expect("a file")),
            }
        }
    }
}

#[test]
fn of_eight_that_come_with_one_number_one_is_first() {
    let Some(field) = Field::new() else { return };
    let place = "s3://load/crowd";
    let more = words("--for 1s --nonce 3 --shard-wait 1s");
    let all: Vec<Child> = (0..8).map(|_| begun(&mut field.shard("0/2", place, &more))).collect();
    let all: Vec<Ended> = all.into_iter().map(ended).collect();
    let of = |code: i32, words: &str| {
        all.iter().filter(|one| one.code == code && one.stderr.contains(words)).count()
    };
    let said: Vec<&str> = all.iter().map(|one| one.stderr.as_str()).collect();
    // The first waits for the other shard, which does not come; the others send nothing.
    assert_eq!(of(4, "shard 1/2 did not connect to s3://load/crowd in time"), 1, "{said:?}");
    assert_eq!(of(2, "--shard 0/2: has already used s3://load/crowd"), 7, "{said:?}");
    assert_eq!(field.names("crowd/"), ["crowd/rendezvous/ready-0.json", "crowd/rendezvous/start.json"]);
}

#[test]
fn a_machine_that_is_lost_leaves_what_it_had_put() {
    let Some(field) = Field::new() else { return };
    let place = "s3://load/lost";
    let more = words("--for 16s");
    let mut all: Vec<Child> =
        (0..2).map(|index| begun(&mut field.shard(&format!("{index}/2"), place, &more))).collect();
    let part = "lost/shard-1-of-2/parts/00000002".to_owned();
    until("shard 1 brings a part", || field.names("lost/shard-1-of-2/").contains(&part));
    all[1].kill().expect("killed");
    let lost = all.pop().map(ended).expect("shard 1");
    assert_eq!(lost.code, -1, "{}", lost.stderr);
    // The machine's disk is lost too.
    for entry in std::fs::read_dir(field.path("plimsoll-runs")).expect("folders").flatten() {
        if entry.file_name().to_string_lossy().starts_with("shard-1-of-2") {
            std::fs::remove_dir_all(entry.path()).expect("removed");
        }
    }
    // The other one still runs, so that there is nothing to merge yet.
    let early = field.merge(&[place], "early");
    assert_eq!(early.code, 2, "{}", early.stderr);
    assert!(
        early.stderr.contains("s3://load/lost/shard-0-of-2: still being written; wait until it has ended"),
        "{}",
        early.stderr
    );
    let first = all.pop().map(ended).expect("shard 0");
    assert!(matches!(first.code, 0 | 4), "{}", first.stderr);
    let merge = field.merge(&[place], "merged");
    assert_eq!(merge.code, 4, "{}", merge.stderr);
    let run = open(field.path("merged"));
    let known: BTreeSet<u64> = run.attempts.iter().map(|row| row.request).collect();
    assert_eq!(known, (0..run.manifest.levels[0].arrivals).collect(), "each arrival has its row");
    let of = |how: How| run.attempts.iter().filter(move |row| row.request % 2 == 1 && row.outcome.how == how);
    // What it had sent five seconds before it was killed was up: some seconds of 60/s, less what was in flight.
    assert!(of(How::Finished).count() > 150, "{}", of(How::Finished).count());
    assert!(of(How::NeverSent).count() > 150, "{}", of(How::NeverSent).count());
    assert!(of(How::NeverSent).all(|row| row.sent.is_none()));
    let RunState::Partial { why } = &run.manifest.progress else { panic!("partial") };
    let never = of(How::NeverSent).count();
    assert!(why.contains(&format!("shard 1/2 was cut off, {never} requests never sent")), "{why}");
}

#[test]
fn a_store_that_goes_away_leaves_the_runs_on_their_machines() {
    let Some(mut field) = Field::new() else { return };
    let place = "s3://load/gone";
    let same = words("--for 4s --seed 5 --nonce 9");
    // The reader starts before the first upload, because the load lasts four seconds.
    assert!(field.names("").is_empty());
    let all: Vec<Child> =
        (0..2).map(|index| begun(&mut field.shard(&format!("{index}/2"), place, &same))).collect();
    let first = |index| format!("gone/shard-{index}-of-2/parts/00000000");
    until("both bring a part", || {
        let names = field.names("gone/");
        (0..2).all(|index| names.contains(&first(index)))
    });
    field.s3 = None;
    let all: Vec<Ended> = all.into_iter().map(ended).collect();
    let mut local = Vec::new();
    for (index, one) in all.iter().enumerate() {
        assert_eq!(one.code, 4, "{}", one.stderr);
        let (_, rest) = one.stderr.split_once("the complete run is in ").expect("where it is");
        let dir = rest.split_whitespace().next().expect("a folder").to_owned();
        assert!(dir.starts_with(&format!("plimsoll-runs/shard-{index}-of-2-")), "{dir}");
        // The findings are printed anyway.
        assert!(one.stdout.contains("This run is partial: shard"), "{}", one.stdout);
        local.push(dir);
    }
    let merge = field.merge(&[&local[0], &local[1]], "merged");
    assert!(matches!(merge.code, 0 | 4), "{}", merge.stderr);
    let run = open(field.path("merged"));
    assert_eq!(run.manifest.progress, RunState::Complete);
    assert_eq!(run.attempts.len() as u64, run.manifest.levels[0].arrivals);
}

#[test]
fn a_store_that_can_t_be_used_is_one_line() {
    let Some(field) = Field::new() else { return };
    let check = |command: &mut Command, code: i32, why: &str| {
        let one = ended(begun(command));
        assert_eq!(one.code, code, "{why}: {}", one.stderr);
        assert!(one.stderr.contains(why) && one.stderr.lines().count() == 1, "{why}: {}", one.stderr);
        assert!(
            !one.stderr.contains(&field.secret) && !one.stderr.contains("wrong-secret"),
            "{}",
            one.stderr
        );
    };
    let shard = |place: &str| field.shard("0/2", place, &["--for", "1s"]);
    let no_keys = |mut command: Command| {
        command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
        command
    };
    check(&mut no_keys(shard("s3://load/x")), 2, "no credentials: set AWS_ACCESS_KEY_ID");
    check(&mut shard("s3://not-there/x"), 2, "--rendezvous s3://not-there/x: there is no such bucket");
    check(
        shard("s3://load/x").env("AWS_SECRET_ACCESS_KEY", "wrong-secret"),
        5,
        "refused (403 Forbidden, SignatureDoesNotMatch)",
    );
    check(
        shard("s3://load/x").env("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
        5,
        "the store can't be reached: Connection refused",
    );
    check(&mut shard("ftp://load/x"), 2, "--rendezvous ftp://…: a folder, s3://bucket/prefix");
    check(&mut shard("s3://a:wrong-secret@load/x"), 2, "keys come from the environment");
    check(&mut shard("az://load/x"), 2, "no credentials: set AZURE_STORAGE_ACCOUNT_NAME");
    // A run that is not a shard's is not uploaded.
    let alone = [&["run", &field.engine.url, "-o", "s3://load/x"][..], &LOAD, &["--for", "1s"]].concat();
    check(
        &mut field.command(&alone),
        2,
        "only the run of a shard (plimsoll run --shard) is put into an object store",
    );
    let show = "runs are read from folders; shards there become one with plimsoll merge s3://load/x -o RUN";
    check(&mut field.command(&["show", "s3://load/x"]), 2, show);
    for (place, code, why) in [
        ("s3://load/x", 2, "s3://load/x: no run of a shard"),
        ("s3://not-there/x", 2, "merge s3://not-there/x: there is no such bucket"),
    ] {
        check(&mut field.command(&["merge", place, "-o", "run"]), code, why);
    }
    assert_eq!(field.names(""), Vec::<String>::new());
    assert!(std::fs::read_dir(field.folder.path()).expect("a folder").next().is_none(), "nothing is left");
}

#[test]
fn a_sweep_meets_in_a_bucket_and_leaves_its_run_there() {
    let Some(field) = Field::new() else { return };
    let place = "s3://load/search";
    let sweep = |index: u32| {
        let shard = format!("{index}/2");
        let args = ["sweep", &field.engine.url, "--shard", &shard, "--rendezvous", place];
        let same = words("--time 6s --max-rate 120/s --osl 4 --isl 32 --scrape off --seed 5 -q");
        begun(&mut field.command(&[&args[..], &same].concat()))
    };
    let all: Vec<Ended> = [sweep(0), sweep(1)].into_iter().map(ended).collect();
    assert!(matches!(all[0].code, 0 | 4), "{}", all[0].stderr);
    assert!(all[0].stderr.contains("also put at s3://load/search/run"), "{}", all[0].stderr);
    assert_eq!(all[1].code, 0, "{}", all[1].stderr);
    let names = field.names("search/");
    for file in ["run/report.html", "run/requests.parquet", "run/run.json", "shard-1-of-2/requests.parquet"] {
        assert!(names.contains(&format!("search/{file}")), "{names:?}");
    }
    let homes = std::fs::read_dir(field.path("plimsoll-runs")).expect("folders").flatten();
    let mut homes: Vec<_> = homes.map(|entry| entry.path()).collect();
    homes.sort();
    let (run, part) = (open(&homes[0]), open(&homes[1]));
    assert_eq!(run.manifest.progress, RunState::Complete);
    let is_open = |load: &Load| matches!(load, Load::Open { .. });
    let levels: Vec<&Level> = run.manifest.levels.iter().filter(|level| is_open(&level.load)).collect();
    assert!(!levels.is_empty());
    for level in levels {
        let of = |run: &StoredRun| -> BTreeSet<u64> {
            run.attempts.iter().filter(|row| row.level == level.id).map(|row| row.request).collect()
        };
        assert_eq!(of(&run), (0..level.arrivals).collect());
        assert_eq!(of(&part), (0..level.arrivals).filter(|request| request % 2 == 1).collect());
    }
}

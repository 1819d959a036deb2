"""The cases of README.md, each as a test.

    PLIMSOLL=path/to/plimsoll python3 cases.py [--part 1/4] [CASE ...]

A case prints `right`, or `WRONG` and what was seen. `case.sh` prints what Plimsoll prints for one case.
"""

import pathlib, sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "gateway"))
import lab as kit
from lab import *

HERE = pathlib.Path(__file__).resolve().parent
LOAD = "--rate 8/s --for 4s --isl 32 --scrape off".split()
CASES = {}


def case(name, *args, seconds=5):
    """Registers a case; `seconds` orders them, the longest first."""

    def register(f):
        CASES[name] = (lambda lab: f(lab, *args), seconds, f.__doc__)
        return f

    return register


class Ended:
    """A command that ran to its end, and the log of the mock that it spoke to."""

    def __init__(self, process, truth):
        self.code, self.stdout, self.stderr, self.truth = process.returncode, process.stdout, process.stderr, truth
        self.text = " ".join((process.stdout + process.stderr).split())

    def __repr__(self):
        return f"exit {self.code}: {self.text[-400:]!r}"


class LoadLab(kit.Lab):
    def serve(self, name, *args, seconds=60):
        """Starts a mock of this folder; returns its port and the path of its log."""
        port = free_port()
        out = self.dir / f"{name}-{port}.log"
        env = {**os.environ, "SECONDS": str(seconds), "PYTHONDONTWRITEBYTECODE": "1"}
        with open(out, "w") as log, open(self.dir / f"{name}-{port}.err", "w") as err:
            p = subprocess.Popen(
                [sys.executable, HERE / f"{name}.py", str(port), *map(str, args)], stdout=log, stderr=err, env=env
            )
        self.processes.append(p)
        wait_port(port, process=p)
        return port, out

    def command(self, *words, env=None, timeout=60):
        """Runs `plimsoll WORDS` to its end in this lab's folder."""
        return subprocess.run(
            [BIN, *map(str, words)],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=self.dir,
            env={**os.environ, **(env or {})},
        )

    def against(self, mock, *words, env=None, timeout=60):
        """Runs a command against a mock, named as `name` or `name argument …`.

        In the words, URL is the mock's address with /v1, HOST the address without, INPUTS the folder of input files.
        """
        port, log = self.serve(*mock.split())
        host = f"http://127.0.0.1:{port}"
        named = [
            str(w).replace("URL", f"{host}/v1").replace("HOST", host).replace("INPUTS", str(HERE / "inputs")) for w in words
        ]
        done = self.command(*named, env=env, timeout=timeout)
        return Ended(done, [json.loads(l) for l in log.read_text().splitlines() if l.startswith("{")])


def main():
    kit.main(CASES, LoadLab)


# Client reading: what a server's answer means.


class Read(Ended):
    """A run whose findings are read from its JSON."""

    def __init__(self, ended):
        self.__dict__.update(ended.__dict__)
        try:
            level = json.loads(self.stdout)["findings"]["levels"][0]
        except (ValueError, LookupError):
            raise Wrong(repr(self)) from None
        self.summary, self.validity = level["summary"], level["validity"]

    def p50(self, metric):
        """Median in ms; None if the metric is absent or refused without a value."""
        reading = (self.summary["latency"][metric] or {}).get("p50") or {}
        value = reading.get("value") or (reading.get("seen") or {}).get("value")
        return value and 1e3 * value

    def all_finish(self):
        counts = self.summary["counts"]
        check(self.code in (0, 4) and counts["requests"] > 10, repr(self))
        check(counts["by_outcome"] == {"finished": counts["requests"]}, f"{counts}")

    def tpot_is(self, first, last, tokens):
        """The median tpot is that of the mock's log, from event `first` to event `last`."""
        true = middle((one["events"][last] - one["events"][first]) / (tokens - 1) for one in self.answers(last))
        check(self.p50("tpot") and abs(self.p50("tpot") / true - 1) < 0.1, f"tpot {self.p50('tpot')} ms, true {true} ms")

    def tokens_are(self, n):
        mean = self.summary["lengths"]["output"].get("reported_mean")
        check(mean == n, f"{mean} output tokens, true {n}")

    def answers(self, last):
        """Answers of the load in the mock's log: those of one token came before."""
        return [one for one in self.truth if len(one["events"]) > last]


def middle(values):
    values = sorted(values)
    return values[len(values) // 2]


def read(lab, mock, *words):
    return Read(lab.against(mock, "run", "URL", *words, "--format", "json"))


def gate(lab, run, budget):
    """Exit code of a gate on `run`, a folder in the lab's."""
    (lab.dir / "budget.yaml").write_text(f"version: 1\nname: case\nbudgets:\n  - {{id: b, {budget}}}\n")
    return lab.command("gate", run, "--budget", "budget.yaml").returncode


@case("L1")
def thinking_parts(lab):
    """Thinking as a list of parts: the first token is the first thought."""
    run = read(lab, "thinking_parts", *LOAD, "--osl", 40, "--natural-length")
    run.all_finish()
    run.tokens_are(40)
    run.tpot_is(1, 40, 40)
    thought, text = (middle(one["events"][at] for one in run.answers(40)) for at in (1, 31))
    ttft, ttfot = run.p50("ttft_after_send"), run.p50("ttfot")
    check(thought - 2 < ttft < (thought + text) / 2, f"ttft {ttft} ms, true {thought} ms")
    check(text - 5 < ttfot, f"ttfot {ttfot} ms, true {text} ms")


@case("L2", seconds=8)
def invisible_tail(lab):
    """Tokens without text count as tokens where they make the total."""
    words = "--rate 20/s --for 6s --isl 32 --osl 64 --scrape off -o run".split()
    run = read(lab, "invisible_tail", *words)
    run.all_finish()
    run.tpot_is(1, 64, 64)
    check(gate(lab, "run", "metric: tpot, p: 50, max: 5ms") != 0, "the gate passes")


@case("L3", seconds=9)
def finish_error(lab):
    """A finish reason of failure is a failure in every figure, and no gate passes."""
    words = "--rate 30/s --for 6s --isl 32 --osl 16 --scrape off --natural-length -o run".split()
    run = read(lab, "finish_error", *words)
    bad = sum(one["bad"] for one in run.truth)
    counts = run.summary["counts"]
    check(counts["by_outcome"].get("stream_error") == counts["failed"] > 0, f"{counts}")
    true, seen = bad / counts["requests"], counts["error_rate"]["value"]
    check(abs(seen - true) < 0.03, f"error_rate {seen}, true {true}")
    check(gate(lab, "run", "metric: error_rate, max: 1%") != 0, "the gate passes")


@case("L4")
def reasoning_additive(lab):
    """Reasoning tokens beside the completion are added."""
    run = read(lab, "reasoning_additive", *LOAD, "--osl", 39, "--natural-length")
    run.all_finish()
    run.tokens_are(39)
    run.tpot_is(0, 38, 39)


@case("L4-undercount", seconds=8)
def undercount(lab):
    """A count that the events contradict is unknown: no figure per token, both figures in a line, no gate passes."""
    run = read(lab, "undercount", *LOAD, "--osl", 16, "--natural-length", "-o", "run")
    run.all_finish()
    check(run.p50("tpot") is None and run.p50("ntpot") is None, f"tpot {run.p50('tpot')} ms")
    said = [one["figure"] for one in run.validity["reasons"] if one["check"] == "token_counts"]
    check(said and " 4 output tokens" in said[0] and " 16 events" in said[0], f"{said}")
    check(gate(lab, "run", "metric: tpot, p: 50, max: 1s") != 0, "the gate passes")
    check(gate(lab, "run", "metric: output_tokens_per_s, min: 0.1") != 0, "the gate passes")


@case("L5")
def usage_in_choice(lab):
    """Usage in `choices[0].usage`."""
    run = read(lab, "usage_in_choice", *LOAD, "--osl", 16)
    run.all_finish()
    run.tokens_are(16)
    run.tpot_is(0, 15, 16)


@case("L12")
def sse_as_json(lab):
    """Server-sent events as `application/json`."""
    run = read(lab, "sse_as_json", *LOAD, "--osl", 16)
    run.all_finish()
    run.tpot_is(0, 15, 16)


def in_one_event(lab, mock):
    """Answers of one event have no time to first token, and a line gives the reason."""
    done = lab.against(mock, "run", "URL", *LOAD, "--osl", 16, "-o", "run")
    check(done.code in (0, 4) and re.search(r"(\d+) of \1 answers came in one event", done.text), repr(done))
    check("ttft [" not in done.text and not re.search(r"ttft +[\d≥]", done.stdout), done.stdout)
    check(gate(lab, "run", "metric: ttft, p: 50, max: 10s") != 0, "a gate on ttft passes")


for name, mock in [("L13", "json_as_sse"), ("L14", "whole_json")]:
    case(name, mock)(in_one_event)


@case("L15")
def gzip_unasked(lab):
    """A compressed stream that nobody asked for is decoded."""
    run = read(lab, "gzip_unasked", *LOAD, "--osl", 16)
    run.all_finish()
    run.tpot_is(0, 15, 16)


@case("L16")
def lone_surrogate(lab):
    """Half an emoji in a chunk breaks no answer."""
    run = read(lab, "lone_surrogate", *LOAD, "--osl", 16)
    run.all_finish()
    run.tpot_is(0, 15, 16)


@case("L23", seconds=9)
def big_event(lab):
    """An event may hold a picture."""
    for size in (200_000, 1_500_000):
        read(lab, f"big_event {size}", *LOAD, "--osl", 16).all_finish()


def ends(lab, *ways):
    """The end of a stream is written in several ways."""
    for way in ways:
        run = read(lab, f"done_ways {way}", *LOAD, "--osl", 16)
        run.all_finish()
        run.tpot_is(0, 15, 16)


case("L26", "quoted")(ends)
case("L35", "nospace", "blank", "none", seconds=14)(ends)


@case("L28")
def running(lab):
    """A running usage tells of tokens without text."""
    run = read(lab, "invisible_tail running", *LOAD, "--osl", 32)
    run.all_finish()
    run.tpot_is(1, 32, 32)


@case("L34")
def four_a_chunk(lab):
    """Four tokens a chunk are 64 tokens."""
    run = read(lab, "four_a_chunk", *LOAD, "--osl", 64)
    run.all_finish()
    run.tokens_are(64)
    run.tpot_is(0, 15, 64)


@case("L36")
def interim(lab):
    """Interim answers (103, 102) come before the answer: all requests finish."""
    done = lab.against("interim", "run", "URL", *LOAD, "--osl", 16)
    check(done.code in (0, 4) and len(done.truth) > 10, repr(done))


if __name__ == "__main__":
    main()

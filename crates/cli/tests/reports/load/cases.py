"""The cases of README.md, each as a test.

    PLIMSOLL=path/to/plimsoll python3 cases.py [--part 1/4] [CASE ...]

A case prints `right`, or `WRONG` and what was seen. `case.sh` prints what Plimsoll prints for one case.
"""

import pathlib, sys, time

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
            level = json.loads(self.stdout)["data"]["findings"]["levels"][0]
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


# First contact, hopeless loads, the environment, files and flags.

RAN = (0, 4)


def finishes(done, at_least=15):
    """The load ran, and every request of it was answered."""
    check(done.code in RAN, repr(done))
    check("failed" not in done.text or "0 of" in done.text, repr(done))
    check(len([t for t in done.truth if t["events"]]) >= at_least, repr(done))


def refused(done, *words, code=2):
    """One line that names these words, and no traceback."""
    check(done.code == code and all(w in done.text for w in words), repr(done))


@case("L6")
def models_forbidden(lab):
    """A key may not list models: with --model a real request decides, without one a line asks for it."""
    key = {"K": "good"}
    finishes(lab.against("models_forbidden", "run", "URL", *LOAD, "--osl", 16, "--model", "m", "--key-env", "K", env=key))
    refused(lab.against("models_forbidden", "run", "URL", *LOAD, "--key-env", "K", env=key), "403", "--model")
    wrong = lab.against("models_forbidden", "run", "URL", *LOAD, "--model", "m", "--key-env", "K", env={"K": "bad"})
    refused(wrong, "no key", "401", code=5)


def refuses_ignore_eos(lab, how, *words):
    done = lab.against(f"extra_forbidden{how}", "run", "URL", *LOAD, *words)
    finishes(done)
    check("ignore_eos" in done.stderr, repr(done))


@case("L7")
def extra_forbidden(lab):
    """pydantic's list names the refused field by `loc`: a request without the field follows."""
    refuses_ignore_eos(lab, "", "--osl", 16)


@case("L8", seconds=20)
def extra_forbidden_nim(lab):
    """The list is text, and the prompts are the user's own, of a class, of sessions or of a trace."""
    prompts = ["--prompts", HERE / "inputs/vllm_custom.jsonl"]
    for words in (prompts, ["--models", "m=1"], ["--sessions", "2,0.1s"]):
        refuses_ignore_eos(lab, " nim", "--osl", 16, *words)
    trace = HERE / "inputs/mooncake_unsorted.jsonl"
    done = lab.against("extra_forbidden nim", "run", "URL", "--scrape", "off", "--trace", trace)
    finishes(done, 5)


@case("L9")
def o_series(lab):
    """max_tokens is refused: max_completion_tokens carries the drawn lengths, and answers are judged by them."""
    done = lab.against("o_series", "run", "URL", *LOAD, "--osl", "uniform:8,24", "--format", "json")
    check(done.code in RAN and "max_completion_tokens" in done.stderr, repr(done))
    sent = [t["mct"] for t in done.truth if t.get("mct", 1) != 1]
    check(len(set(sent)) > 3 and all(8 <= n <= 24 for n in sent), str(sent))
    counts = json.loads(done.stdout)["data"]["findings"]["levels"][0]["summary"]["counts"]
    check(not counts["broken"] and counts["finished"] == counts["requests"], str(counts))


@case("L10", seconds=12)
def loading(lab):
    """--wait-ready waits for an answer, not for a list of models."""
    done = lab.against("loading 4", "run", "URL", *LOAD, "--osl", 16, "--wait-ready", "40s")
    check(done.code in RAN and "Loading model" in done.stderr, repr(done))
    check("503" not in done.stdout and len([t for t in done.truth if t["events"]]) > 15, repr(done))
    refused(lab.against("loading 40", "run", "URL", *LOAD, "--wait-ready", "2s"), "Loading model", code=5)


@case("L11", seconds=3)
def error_page_200(lab):
    """An error page with 200 is no answer; the address that works is named."""
    for words in ([], ["--model", "m"]):
        done = lab.against("error_page_200", "run", "HOST", *LOAD, "--osl", 16, *words)
        refused(done, "/v1", "Unexpected endpoint", code=5)


@case("L17", seconds=6)
def proxy(lab):
    """A proxy that curl would use is named, unless no_proxy covers the host."""
    port, _ = lab.serve("plain")
    env = {"http_proxy": "http://u:secret@127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}
    done = lab.command("run", "http://llm.invalid:8000/v1", *LOAD, env=env)
    refused(Ended(done, []), "http_proxy is set", "not used", code=5)
    check("secret" not in done.stderr, done.stderr)
    short = ["--rate", "8/s", "--for", "1s", "--scrape", "off", "--osl", 4]
    for no_proxy, named in (("", True), ("127.0.0.1", False), ("127.0.0.0/8", False)):
        done = lab.command("run", f"http://127.0.0.1:{port}/v1", *short, env={**env, "no_proxy": no_proxy})
        check(("http_proxy" in done.stderr) == named, done.stderr)


@case("L18", seconds=8)
def dropped_column(lab):
    """A column of a trace that is not replayed is named."""
    done = lab.against("echo_body", "run", "URL", "--scrape", "off", "--trace", "INPUTS/azure_multimodal.csv")
    check(done.code in RAN and "NumImages" in done.stderr, repr(done))


@case("L19", seconds=20)
def prompt_files(lab):
    """The prompt files of other tools are read, or refused with the wanted form."""
    short = ["--rate", "20/s", "--for", "1s", "--scrape", "off", "--osl", 16]
    read = {"sharegpt.json": None, "aiperf_single.jsonl": 7, "guidellm.jsonl": 7, "messages_max_tokens.jsonl": 7}
    read |= {"openai_batch.jsonl": 7, "sglang_custom.jsonl": 3}
    for name, length in read.items():
        done = lab.against("echo_body", "run", "URL", *short, "--prompts", f"INPUTS/{name}")
        finishes(done, 5)
        load = done.truth[1:]
        check(all(t["roles"] == ["user"] and t["asked"] == (length or t["asked"]) for t in load), f"{name}: {load[:2]}")
    for name in ("aiperf_multi.jsonl", "plain_text.txt"):
        refused(lab.against("echo_body", "run", "URL", *short, "--prompts", f"INPUTS/{name}"), '{"prompt": …}')


@case("L20")
def agent_messages(lab):
    """Any role, null content, tool calls, pictures and `tools` arrive unchanged."""
    done = lab.against("echo_body", "run", "URL", *LOAD, "--osl", 16, "--prompts", "INPUTS/agent_messages.jsonl")
    finishes(done)
    for t in done.truth:
        check(t["roles"] == ["developer", "user", "assistant", "tool", "user"] and t["pictures"] == 1, str(t))
        check(t["body"]["tools"][0]["function"]["name"] == "look", str(t))


def imports(lab, name, tool):
    done = lab.command("import", HERE / "inputs" / name, "--format", "json")
    text = done.stdout + done.stderr
    check(done.returncode in (0, 3, 4) and tool in text, f"exit {done.returncode}: {text[-600:]}")
    return text


@case("L21", seconds=1)
def guidellm_before_0_4(lab):
    """GuideLLM's report before 0.4 has benchmarks only: 12 requests are read."""
    check("12" in imports(lab, "guidellm_0_2.json", "GuideLLM"), "no 12 requests")


@case("L22", seconds=1)
def vllm_benchmark_serving(lab):
    """vLLM's older script names a backend: both files are read, three requests each."""
    for name in ("vllm_2025_detail.json", "vllm_all_failed.json"):
        imports(lab, name, "vLLM bench")


@case("L24", seconds=20)
def retry_after(lab):
    """A long Retry-After is reported, a short one obeyed, a negative one ignored; the run ends in time."""
    sent = {}
    for wait in ("3600", "0.2", "-43"):
        words = ["--concurrency", 2, "--for", "4s", "--isl", 32, "--osl", 8, "--scrape", "off"]
        began = time.time()
        done = lab.against(f"retry_after {wait}", "run", "URL", *words)
        check(done.code in RAN and time.time() - began < 30, repr(done))
        check(("Retry-After" in done.stderr) == (wait != "-43"), repr(done))
        sent[wait] = len(done.truth)
    check(sent["3600"] < 30 < sent["0.2"] < sent["-43"], str(sent))


@case("L25", seconds=7)
def idle_close(lab):
    """A server that closes idle connections: the advice names the flag that helps, and it helps."""
    load = ["--arrivals", "constant", "--rate", "1.4/s", "--for", "5s", "--isl", 32, "--osl", 16, "--scrape", "off"]
    done = lab.against("idle_close", "run", "URL", *load)
    check(done.code in RAN and "--connections fresh" in done.text, repr(done))
    done = lab.against("idle_close", "run", "URL", *load, "--connections", "fresh")
    check(not any(t.get("reset") for t in done.truth), repr(done))


@case("L27", seconds=1)
def flags_of_other_tools(lab):
    """The flag that does what another tool's flag does is suggested, not the one that is spelt alike."""
    for typed, own in (
        ("--request-rate", "'--rate'"),
        ("--num-prompts", "'--requests'"),
        ("--max-seconds", "'--for'"),
        ("--request-count", "'--requests'"),
        ("--vus", "'--concurrency'"),
        ("--base-url", "first argument"),
    ):
        done = lab.command("run", "http://127.0.0.1:9/v1", typed, 10)
        check(done.returncode == 2 and own in done.stderr, f"{typed}: {done.stderr}")


@case("L29")
def extra_forbidden_text(lab):
    """The list as text, with drawn prompts: all finish."""
    refuses_ignore_eos(lab, " nim", "--osl", 16)


@case("L30")
def azure(lab):
    """Azure's path, query and key; the first chunk has no choices."""
    extra = 'target.extra={"max_tokens":null,"max_completion_tokens":16}'
    words = ["--osl", 16, "--model", "m", "-H", "api-key:$AK", "--set", extra]
    url = "HOST/openai/deployments/d?api-version=2024-06-01"
    finishes(lab.against("o_series azure", "run", url, *LOAD, *words, env={"AK": "azure-key-0001"}))


@case("L31", seconds=2)
def strict_path(lab):
    """The URL lacks /v1: the line names the one that works."""
    refused(lab.against("strict_path", "run", "HOST", *LOAD, "--osl", 16), "/v1 does", code=5)


@case("L32", seconds=5)
def mooncake_variants(lab):
    """Mooncake files with other fields are refused, and the field is named."""
    for name, field in (
        ("text", "input_length"),
        ("no_output", "output_length"),
        ("no_time", "timestamp"),
        ("delay", "timestamp"),
        ("messages", "input_length"),
    ):
        words = ["run", "URL", "--scrape", "off", "--trace", f"INPUTS/mooncake_{name}.jsonl"]
        refused(lab.against("plain", *words), field)


@case("L33", seconds=8)
def clock_times(lab):
    """Times of day without a date are read as they are."""
    finishes(lab.against("plain", "run", "URL", "--scrape", "off", "--trace", "INPUTS/burstgpt_3.csv"), 5)


@case("L37", seconds=10)
def roles(lab):
    """No system role is sent, and roles alternate, with --prefix and --sessions."""
    for words in (["--prefix", "0.5,2"], ["--sessions", "3,0.2s"]):
        finishes(lab.against("roles", "run", "URL", *LOAD, "--osl", 8, *words))


@case("L38", seconds=20)
def plain_variants(lab):
    """One prompt token, a late [DONE], a 502 page and an unsorted trace."""
    load = ["--rate", "8/s", "--for", "4s", "--isl", 1, "--osl", 16, "--scrape", "off"]
    finishes(lab.against("plain", "run", "URL", *load))
    done = lab.against("plain late", "run", "URL", *LOAD, "--osl", 16, "--format", "json")
    summary = json.loads(done.stdout)["data"]["findings"]["levels"][0]["summary"]
    check(summary["counts"]["finished"] == summary["counts"]["requests"] > 15, str(summary["counts"]))
    done = lab.against("html_502", "run", "URL", *LOAD, "--osl", 16, "--format", "json")
    json.loads(done.stdout, parse_constant=lambda name: check(False, name))
    trace = lab.against("plain", "run", "URL", "--scrape", "off", "--trace", "INPUTS/mooncake_unsorted.jsonl")
    finishes(trace, 5)


@case("L39", seconds=15)
def hopeless(lab):
    """A load of which every request is refused with the same words stops, keeps its rows and shows the words."""
    port, _ = lab.serve("refusing", 400)
    url = f"http://127.0.0.1:{port}/v1"
    words = ["--scrape", "off", "--osl", 16, "-o", "run"]
    done = lab.command("run", url, "--rate", "50/s", "--for", "60s", *words, timeout=30)
    check("same message" in done.stderr and "no such tier" in done.stderr, done.stderr)
    check(done.returncode == 4 and (lab.dir / "run/run.json").exists(), f"{done.returncode} {done.stderr}")
    port, _ = lab.serve("refusing", 400)
    url = f"http://127.0.0.1:{port}/v1"
    done = lab.command("sweep", url, "--time", "60s", "--scrape", "off", "--osl", 16, timeout=40)
    check("same message" in done.stderr and "no such tier" in done.stderr, done.stderr)


if __name__ == "__main__":
    main()

"""Results, verdicts and errors, against what the binary itself prints."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest
from typing import Any, Callable, Dict, Iterator, List, Tuple
from unittest import mock

import plimsoll_bench as pb
from plimsoll_bench import _binary
from plimsoll_bench._results import _hints, decode

from .kit import TEMP, Case, engine, simulated


def printed(*words: Any) -> Any:
    made = subprocess.run([_binary.binary(), *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    return json.loads(made.stdout)


def data(*words: Any) -> Any:
    """Returns the data of a command's answer."""
    return printed(*words, "--format", "json")["data"]


class Results(Case):
    def test_a_run_has_the_figures_of_its_file(self) -> None:
        run = simulated()
        shown = data("show", run.path)["findings"]["levels"][0]["summary"]
        summary = run.levels[0].summary
        ttft = summary.latency.ttft
        assert ttft is not None
        self.assertEqual(ttft.p50.value, shown["latency"]["ttft"]["p50"]["value"])
        self.assertEqual(summary.counts.requests, shown["counts"]["requests"])
        self.assertEqual(str(summary.load), "8/s")
        self.assertEqual(ttft.p999.is_, "refused")
        self.assertIn("needs 10000 effective requests", ttft.p999.why or "")
        self.assertEqual(ttft.raw["metric"], "ttft")
        self.assertEqual((run.verdict, run.exit_code, run.curves), ("short", 0, ()))
        self.assertEqual(pb.open(run).raw["id"], run.id)
        self.assertTrue(run.headline)
        self.assertEqual(dataclasses.replace(run, headline=None, reasons=(), next=()), pb.open(run))

    def test_a_sweep_has_lines_and_a_curve(self) -> None:
        run = pb.simulate(out="sweep", sweep=True, time="2m", slo=["ttft p50 < 20ms", "errors < 1%"])
        lines = run.lines[0]
        assert lines.budget is not None
        self.assertEqual(lines.raw["budget_spec"]["error_rate"], 0.01)
        rate = lines.stability.rate
        assert rate is not None
        self.assertTrue(rate.lower <= rate.value <= rate.upper)
        self.assertIn(f"{rate.value:.3g}/s", run._repr_html_())
        self.assertEqual(run.curves[0].points[0].raw, run.raw["findings"]["curves"][0]["points"][0])

    def test_an_endpoint_is_measured_searched_and_gated(self) -> None:
        with engine() as url:
            run = pb.run(url, rate="20/s", for_="2s", out="run", label="now", header=["X-A: 1", "X-B: 2"])
            found = pb.sweep(url, time="5s", max_rate="50/s", out="sweep")
            judged = pb.gate(url, budget=self.budget("1s"), time="4s")
        self.assertEqual((run.kind, run.label, run.path.name), ("run", "now", "run"))
        self.assertEqual(set(run.raw["scenario"]["target"]["headers"]), {"x-a", "x-b"})
        self.assertEqual(found.kind, "sweep")
        self.assertEqual(len(found.lines), 1)
        self.assertIn(judged.verdict, ("pass", "inconclusive"))

    def test_a_verdict_is_a_result(self) -> None:
        run = simulated()
        for ceiling, verdict, code in [("1s", "pass", 0), ("1ms", "broken", 1)]:
            judged = pb.gate(run, budget=self.budget(ceiling))
            self.assertEqual((judged.verdict, judged.exit_code, judged.passed), (verdict, code, code == 0))
            self.assertEqual(judged.headline, data("gate", run.path, "--budget", "budget.yaml")["headline"])
        self.assertEqual(judged.next, (f"plimsoll diagnose {run.path}",))
        self.assertIn("ttft", judged.reasons[0])
        few = simulated(for_="2s")
        self.budget("1s").write_text("version: 1\nname: x\nbudgets:\n  - {id: a, metric: ttft, p: 99.9, max: 10ms}\n")
        judged = pb.gate(few, budget="budget.yaml")
        self.assertEqual((judged.verdict, judged.exit_code), ("inconclusive", 3))
        row = data("gate", few.path, "--budget", "budget.yaml")["rows"][0]
        self.assertEqual((judged.rows[0].held, judged.rows[0].why, judged.rows[0].needed), ("inconclusive", row["why"], row["needed"]))

    def test_an_invalid_run_is_a_result(self) -> None:
        path = shutil.copytree(simulated().path, self.folder / "run")
        (path / "run.json").write_text((path / "run.json").read_text().replace('"arrivals": 4', '"arrivals": 94'))
        judged = pb.gate(path, budget=self.budget("1s"))
        self.assertEqual((judged.verdict, judged.exit_code), ("invalid", 4))
        self.assertTrue(judged.refusals)

    def test_a_regression_is_a_result(self) -> None:
        slow = simulated(fault="slow:factor=1.5")
        found = pb.compare(simulated(), slow)
        self.assertEqual((found.verdict, found.exit_code), ("regressed", 1))
        tpot = next(row for row in found.groups[0].rows if (row.metric, row.statistic) == ("tpot", "p50"))
        assert tpot.effect is not None and tpot.base.value is not None
        self.assertEqual(tpot.effect.value, tpot.raw["effect"]["value"])
        again = simulated(seed=1)
        self.assertEqual(pb.compare(simulated(), again, despite_differences=True).raw["runs"]["candidate"], again.folder)
        self.assertIn("tpot p50", found._repr_html_())

    def test_a_number_without_end_is_infinite(self) -> None:
        run = simulated(fault="error:share=0.6,status=500")
        latency = run.levels[0].summary.latency
        self.assertEqual(latency.e2e.p50.value, math.inf)
        self.assertEqual(latency.e2e.max_s, math.inf)
        self.assertIn("inf ms", run._repr_html_())

    def test_a_killed_run_is_recovered(self) -> None:
        with engine() as url:
            words = [_binary.binary(), "run", url, "--rate", "50/s", "--for", "60s", "-o", "killed"]
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            assert process.stderr is not None
            while "done" not in (line := process.stderr.readline()):
                self.assertTrue(line, "the run ended")
            time.sleep(1.5)
            process.kill()
            process.wait()
            process.stderr.close()
        self.assertEqual(json.loads((self.folder / "killed/run.json").read_text())["progress"]["state"], "running")
        run = pb.open("killed")
        self.assertEqual(run.progress.state, "partial")
        self.assertGreater(run.levels[0].summary.counts.finished, 0)

    def test_an_interrupt_ends_the_load_in_order(self) -> None:
        # A shell's background job ignores the signal.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        with engine() as url:
            timer = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with self.assertRaises(KeyboardInterrupt):
                pb.run(url, rate="20/s", for_="60s", out="ended")
            timer.join()
        self.assertEqual(pb.open("ended").progress.state, "partial")


    def test_a_display_that_fails_does_not_stop_the_load(self) -> None:
        class Bar:
            def show(self, line: str) -> None:
                raise OSError(line)

            def close(self) -> None:
                pass

        with mock.patch.object(_binary, "_bar", lambda *_: Bar()):
            self.assertEqual(pb.simulate(rate="8/s", for_="2s", out="run").kind, "simulate")


class Errors(Case):
    def test_an_error_has_the_words_of_the_binary(self) -> None:
        cases: List[Tuple[Callable[[], object], str, str, int]] = [
            (lambda: pb.run("http://127.0.0.1:1/v1", rate="1/s"), "http://127.0.0.1:1/v1 cannot be reached", "", 5),
            (lambda: pb.run("http://127.0.0.1:1/v1", ratte="1/s"), "unexpected argument '--ratte' found", "'--rate'", 2),
            (lambda: pb.gate(simulated(), budget="none.yaml"), "none.yaml", "", 2),
            (lambda: pb.open("nothing"), "nothing", "", 2),
            (lambda: pb.simulate(rate="fast"), "load.rate: `fast`", "", 2),
            (lambda: pb.compare("-a", "-b"), "-a", "", 2),
        ]
        for call, message, hint, code in cases:
            with self.subTest(message), self.assertRaises(pb.PlimsollError) as caught:
                call()
            error = caught.exception
            self.assertIn(message, error.message)
            self.assertIn(hint, error.hint)
            self.assertEqual(error.exit_code, code)
            self.assertEqual(str(pickle.loads(pickle.dumps(error))), str(error))

    def test_an_error_as_json_is_read(self) -> None:
        told = '{"error": {"message": "m", "hint": "h", "exit_code": 5}}'
        with self.assertRaises(pb.PlimsollError) as caught:
            _binary._result(told, ["plimsoll: other"], 5)
        self.assertEqual((caught.exception.message, caught.exception.hint, caught.exception.exit_code), ("m", "h", 5))

    def test_a_missing_binary_is_named(self) -> None:
        with mock.patch.dict(os.environ, {"PLIMSOLL_BIN": "/no/plimsoll"}), self.assertRaises(pb.PlimsollError) as caught:
            pb.simulate(rate="1/s")
        self.assertIn("/no/plimsoll", caught.exception.message)

    def test_the_format_is_not_a_choice(self) -> None:
        with self.assertRaises(TypeError):
            pb.simulate(format="text")

    def test_another_json_is_an_error(self) -> None:
        with self.assertRaises(pb.PlimsollError) as caught:
            decode(pb.Estimate, {"value": 1.0})
        self.assertIn("`lower`", caught.exception.message)


class Flags(unittest.TestCase):
    def test_keywords_are_flags(self) -> None:
        flags: Dict[str, pb.Flag] = {
            "rate": "12/s", "for_": "60s", "max_rate": 3, "slo": ["a < 1ms", "b < 2ms"], "no_stream": True, "smoke": False, "seed": None, "out": TEMP
        }
        expected = ["--rate=12/s", "--for=60s", "--max-rate=3", "--slo=a < 1ms", "--slo=b < 2ms", "--no-stream", f"--out={TEMP}"]
        self.assertEqual(_binary.arguments(flags), expected)

    def test_head_and_data_are_one_object(self) -> None:
        text = '{"schema": 2, "command": "gate", "headline": "h", "data": {"rows": []}}'
        document = _binary._result(text, [], 3)
        self.assertEqual((document["headline"], document["rows"], document["exit_code"]), ("h", [], 3))


class Schemas(unittest.TestCase):
    """Each attribute is a field of the binary's own schema."""

    def test_the_head_is_in_the_schema(self) -> None:
        self.assertLessEqual(self.HEAD, set(printed("schema", "answer")["properties"]))

    SCHEMAS = {"findings": pb.Findings, "manifest": pb.Run, "gate": pb.GateResult, "comparison": pb.Comparison}
    OWN = {"folder", "exit_code", "raw"}
    HEAD = {"headline", "reasons", "next"}

    def test_every_attribute_is_in_the_schema(self) -> None:
        for of, kind in self.SCHEMAS.items():
            schema = printed("schema", of)
            seen = set()
            for node, cls in walk(schema, schema, kind):
                known = properties(schema, node)
                own = {field.name.rstrip("_") for field in dataclasses.fields(cls)} - self.OWN - self.HEAD
                self.assertLessEqual(own, known, f"{of}: {cls.__name__}")
                required = {f.name.rstrip("_") for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING} - self.OWN
                self.assertLessEqual(required, everywhere(schema, node), f"{of}: {cls.__name__} needs a field that may be missing")
                seen.add(cls)
            self.assertGreater(len(seen), 1)


def resolved(schema: Any, node: Any) -> Any:
    while "$ref" in node and "properties" not in node:
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return node


def variants(schema: Any, node: Any) -> Iterator[Any]:
    node = resolved(schema, node)
    options = node.get("oneOf") or node.get("anyOf")
    if options:
        for option in options:
            if option.get("type") != "null":
                yield from variants(schema, option)
        return
    if "$ref" in node:
        named = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
        node = {**node, "properties": {**named["properties"], **node["properties"]}, "required": named["required"] + node["required"]}
    yield node


def properties(schema: Any, node: Any) -> set[str]:
    return {name for variant in variants(schema, node) for name in variant.get("properties", {})}


def everywhere(schema: Any, node: Any) -> set[str]:
    sets = [set(variant.get("required", [])) | set(defaulted(variant)) for variant in variants(schema, node)]
    return set.intersection(*sets)


def defaulted(node: Any) -> Iterator[str]:
    """Fields that older files lack and this version always writes."""
    return (name for name, value in node.get("properties", {}).items() if "default" in value and value["default"] is not None)


def walk(schema: Any, node: Any, cls: Any) -> Iterator[Any]:
    yield node, cls
    for field in dataclasses.fields(cls):
        for inner in inner_types(_hints(cls)[field.name]):
            for variant in variants(schema, node):
                child = variant.get("properties", {}).get(field.name.rstrip("_"))
                if child is None or not (child.get("$ref") or child.get("items") or child.get("anyOf")):
                    continue
                child = resolved(schema, child)
                yield from walk(schema, child["items"] if "items" in child else child, inner)


def inner_types(kind: Any) -> Iterator[Any]:
    if isinstance(kind, type) and issubclass(kind, pb.Result):
        yield kind
    for part in getattr(kind, "__args__", ()):
        yield from inner_types(part)


class Notebook(Case):
    def test_texts_are_escaped(self) -> None:
        run = simulated(label="<b>x</b>")
        self.assertIn("&lt;b&gt;x&lt;/b&gt;", run._repr_html_())
        self.assertNotIn("<b>x</b>", run._repr_html_())
        self.assertIn("&lt;", pb.gate(run, budget=self.named("<script>"))._repr_html_())

    def named(self, name: str) -> str:
        path = self.budget("1ms")
        path.write_text(path.read_text().replace("id: ttft", f'id: "{name}"'))
        return str(path)

    def test_progress_lines_move_the_bar(self) -> None:
        cases = [
            ("open loop, 20.0/s · 19.6/s done · 0 in flight · 0 failed · 6.74 s left", 6.74),
            ("steady: one at a time · at most 2 min 10 s left · 19.9/s done · 2.25 s left", 130.0),
            ("draining 1000 ms left", 1.0),
            ("writing run", None),
            ("3 s for those who left", None),
        ]
        for line, seconds in cases:
            self.assertEqual(_binary.seconds_left(line), seconds, line)

    def test_a_notebook_has_a_bar(self) -> None:
        shown: List[str] = []

        class Handle:
            def update(self, html: Dict[str, str], raw: bool) -> None:
                shown.append(html["text/html"])

        def display(html: Dict[str, str], raw: bool, display_id: bool) -> Handle:
            Handle().update(html, raw)
            return Handle()

        shell = mock.Mock(kernel=object())
        modules = {"IPython": mock.Mock(get_ipython=lambda: shell), "IPython.display": mock.Mock(display=display)}
        with engine() as url, mock.patch.dict(sys.modules, modules):
            pb.run(url, rate="20/s", for_="2s", out="run")
        shares = [float(html.split('value="')[1].split('"')[0]) for html in shown[:-1]]
        self.assertEqual(shares, sorted(shares))
        self.assertTrue(0 < shares[-1] < 1, shown)
        self.assertEqual(shown[-1], "")
        with mock.patch.dict(sys.modules, modules):
            self.assertIsNone(_binary._bar("run", False))


if __name__ == "__main__":
    unittest.main()

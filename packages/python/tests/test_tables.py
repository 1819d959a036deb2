"""Data frames, held equal to the rows that `plimsoll show --csv` writes."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import math
import pathlib
import random
import shutil
import subprocess
from typing import Any, Dict, List
from unittest import mock

import plimsoll_bench as pb
from plimsoll_bench._binary import binary

from .kit import Case, engine, simulated

arrow: Any = importlib.import_module("pyarrow")
parquet: Any = importlib.import_module("pyarrow.parquet")

COLUMNS = ["level", "request", "attempts", "due_s", "ttft_s", "e2e_s", "tpot_s"]


def written(folder: pathlib.Path) -> List[Dict[str, Any]]:
    """Returns the rows of `show --csv`."""
    path = folder.parent / "rows.csv"
    subprocess.run([binary(), "show", folder, "--csv", path], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with path.open() as file:
        return [{name: float(row[name]) if row[name] else None for name in COLUMNS} for row in csv.DictReader(file)]


class Tables(Case):
    def check(self, run: pb.Run) -> List[Dict[str, Any]]:
        expected = written(run.path)
        self.assertTrue(expected)
        frames = {to: run.requests(to) for to in ("pandas", "polars", "arrow")}
        found = {
            "pandas": [{k: None if v != v else v for k, v in row.items()} for row in frames["pandas"][COLUMNS].to_dict("records")],
            "polars": frames["polars"].select(COLUMNS).to_dicts(),
            "arrow": frames["arrow"].select(COLUMNS).to_pylist(),
        }
        for to, rows in found.items():
            self.assertEqual(rows, expected, to)
            names = list(frames[to].column_names if to == "arrow" else frames[to].columns)
            self.assertEqual(names[: len(COLUMNS)], COLUMNS)
            self.assertIn("prompt_tokens", names)
            self.assertNotIn("event_kind", names)
        return expected

    def test_a_plain_run(self) -> None:
        self.check(simulated())

    def test_failures_retries_cancellations_and_levels(self) -> None:
        run = simulated(fault="error:share=0.3,status=503", retries=2, cancel=0.2, timeout="60ms", warm_up=5)
        rows = self.check(run)
        for name in ("e2e_s", "tpot_s"):
            values = {row[name] for row in rows}
            self.assertTrue({math.inf, None} < values, name)
        self.assertEqual({row["attempts"] for row in rows}, {1, 2, 3})
        self.assertEqual(len({row["level"] for row in rows}), 2)
        self.assertEqual(len(run.attempts("arrow")), sum(int(row["attempts"]) for row in rows))

    def test_whole_answers_and_an_endpoint(self) -> None:
        with engine() as url:
            self.check(pb.run(url, rate="20/s", for_="1s", out="streamed", osl="uniform:1,4"))
            rows = self.check(pb.run(url, rate="20/s", for_="1s", out="whole", no_stream=True))
        self.assertEqual({row["ttft_s"] for row in rows}, {None})

    def test_rows_of_every_kind(self) -> None:
        """Rows drawn at random reach every branch: unknown counts, hidden reasoning, wrong answers, missing stamps, retries out of order."""
        path = shutil.copytree(simulated().path, self.folder / "run")
        table = parquet.read_table(path / "requests.parquet")
        for seed in range(3):
            draw = random.Random(seed)
            rows = table.to_pylist()
            for row in rows:
                change(row, draw)
            draw.shuffle(rows)
            parquet.write_table(arrow.Table.from_pylist(rows, table.schema), path / "requests.parquet")
            found = self.check(pb.open(path))
            for name in ("ttft_s", "e2e_s", "tpot_s"):
                self.assertTrue({math.inf, None} < {row[name] for row in found}, name)
            self.assertGreater(len({row["tpot_s"] for row in found}), 15)

    def test_other_tables(self) -> None:
        run = simulated()
        self.assertIn("value", run.server("polars").columns)
        with self.assertRaisesRegex(pb.PlimsollError, "spans.parquet"):
            run.spans()

    def test_the_library_is_the_one_that_is_there(self) -> None:
        def only(*names: str) -> Any:
            return mock.patch.object(importlib.util, "find_spec", lambda name: name if name in names else None)

        run = simulated()
        for there, kind in [(("pandas", "pyarrow", "polars"), "pandas"), (("polars", "pandas"), "polars"), (("polars",), "polars")]:
            with only(*there):
                self.assertEqual(type(run.requests()).__module__.split(".")[0], kind)
        with only("pyarrow"), self.assertRaisesRegex(ImportError, "pip install 'plimsoll-bench"):
            run.requests()
        with only("polars"), self.assertRaisesRegex(ImportError, "pandas and pyarrow"):
            run.requests("pandas")
        with self.assertRaisesRegex(ValueError, "'dask'"):
            run.requests("dask")


def change(row: Dict[str, Any], draw: random.Random) -> None:
    """Changes an attempt into one of another kind, at random."""
    row["request"], row["attempt"] = row["request"] // 3 * 2 + draw.randrange(2), row["request"] * 4 + draw.randrange(4)
    row["outcome"], row["outcome_by"] = draw.choice(
        [("finished", "server")] * 6 + [("cancelled", "client"), ("cancelled", "user"), ("timeout", "client"), ("unfinished", "client")]
    )
    row["broken"] = draw.choice([None, None, None, "empty", "repeated"])
    row["asked_output_tokens"] = draw.choice([1, 64])
    row["output_tokens"] = draw.choice([None, 0, 1, 2, 64, 64, 64])
    row["reasoning_tokens"] = draw.choice([None, 0, 1, 10, 100])
    row["tokens_rule"] = draw.choice(["unknown", "usage_running", "usage_total", "tokeniser"])
    row["event_kind"] = [draw.choice([0, 0, 2, 3, 4]) for _ in row["event_kind"]]
    if draw.random() < 0.3:
        row["event_kind"][0] = 1
    if draw.random() < 0.1:
        for name in ("event_offset_ns", "event_kind", "event_tokens", "event_coalesced", "event_user_delay_ns"):
            row[name] = []
    for name in ("first_token_ns", "last_token_ns", "end_ns"):
        if draw.random() < 0.1:
            row[name] = None
    if draw.random() < 0.1:
        row["last_token_ns"] = row["first_token_ns"]

"""Python API of Plimsoll: each function starts the binary `plimsoll` and returns its JSON as typed objects."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any, Optional, Sequence, Union

from ._binary import Flag, PlimsollError, call
from ._results import (
    Arm,
    Comparison,
    ComparedFigure,
    Counts,
    Curve,
    CurvePoint,
    Difference,
    Effect,
    Estimate,
    Findings,
    GateResult,
    GateRow,
    Group,
    Itl,
    Latencies,
    LevelFinding,
    LevelSummary,
    Line,
    Lines,
    Load,
    Percentiles,
    Rates,
    Reading,
    Reason,
    Result,
    Run,
    RunState,
    Validity,
    decode,
)

__all__ = [
    "Arm",
    "Comparison",
    "ComparedFigure",
    "Counts",
    "Curve",
    "CurvePoint",
    "Difference",
    "Effect",
    "Estimate",
    "Findings",
    "Flag",
    "GateResult",
    "GateRow",
    "Group",
    "Itl",
    "Latencies",
    "LevelFinding",
    "LevelSummary",
    "Line",
    "Lines",
    "Load",
    "Percentiles",
    "PlimsollError",
    "Rates",
    "Reading",
    "Reason",
    "Result",
    "Run",
    "RunState",
    "Validity",
    "compare",
    "gate",
    "open",
    "run",
    "simulate",
    "sweep",
]

Path = Union[str, "os.PathLike[str]"]


def run(url: str, *urls: str, extra: Sequence[str] = (), progress: Optional[bool] = None, **flags: Flag) -> Run:
    """Sends one load to an endpoint: `run(url, rate="12/s", for_="60s")` is `plimsoll run URL --rate=12/s --for=60s`.

    Each keyword is a flag: `_` becomes `-`, a trailing `_` is dropped, `True` sets a flag without a value and a list repeats
    the flag. `extra` holds further arguments as they are. `progress` shows a bar; the default is a bar in notebooks only.
    """
    return decode(Run, call("run", (url, *urls), flags, extra, progress))


def sweep(url: str, *urls: str, extra: Sequence[str] = (), progress: Optional[bool] = None, **flags: Flag) -> Run:
    """Finds the curve and the limits of an endpoint: `sweep(url, time="10m", slo=["ttft p99 < 500ms"])`."""
    return decode(Run, call("sweep", (url, *urls), flags, extra, progress))


def simulate(simulation: Optional[Path] = None, *, extra: Sequence[str] = (), progress: Optional[bool] = None, **flags: Flag) -> Run:
    """Sends a load to a simulated engine in virtual time: `simulate(profile="demo", rate="12/s", for_="10m")`."""
    return decode(Run, call("simulate", () if simulation is None else (simulation,), flags, extra, progress))


def gate(target: Path, *urls: str, extra: Sequence[str] = (), progress: Optional[bool] = None, **flags: Flag) -> GateResult:
    """Checks a run, a baseline or an endpoint against a budget: `gate(run, budget="budget.yaml")`. A broken budget is a result."""
    return decode(GateResult, call("gate", (target, *urls), flags, extra, progress))


def compare(base: Path, candidate: Path, *, extra: Sequence[str] = (), progress: Optional[bool] = None, **flags: Flag) -> Comparison:
    """Compares two runs of one load. A regression is a result."""
    return decode(Comparison, call("compare", (base, candidate), flags, extra, progress))


def open(path: Path) -> Run:
    """Returns the run in a folder. `plimsoll show` recovers a run that was killed."""
    folder = pathlib.Path(path)
    try:
        document: Any = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        complete = document["progress"]["state"] != "running" and (folder / "requests.parquet").is_file()
    except (OSError, ValueError, KeyError, TypeError):
        complete = False
    if not complete:
        document = call("show", (path,), {}, (), False)
    return decode(Run, {**document, "folder": os.fspath(path)})

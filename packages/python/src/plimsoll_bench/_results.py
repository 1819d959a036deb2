"""Typed results. Fields follow the JSON of the binary (`plimsoll schema findings`, `manifest`, `gate`, `comparison`).

An object keeps its JSON in `raw`, so that fields without an attribute are there too. A trailing `_` avoids a keyword (`is_`).
"""

from __future__ import annotations

import dataclasses
import html
import pathlib
import typing
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence, Tuple, Type, TypeVar

from . import _tables
from ._binary import PlimsollError

T = TypeVar("T", bound="Result")


@dataclass(frozen=True)
class Result:
    """An object of the JSON. `raw` holds all of its fields."""

    raw: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Estimate(Result):
    """A figure with its 95 % interval, its sample size and its effective sample size. `value` is infinite among failed requests."""

    value: float
    lower: float
    upper: float
    n: int
    n_eff: float


@dataclass(frozen=True)
class Reading(Result):
    """An estimate (`is_ == "estimate"`), or the reason why none exists (`"refused"`: then `value` is `None` and `why` tells)."""

    is_: str
    n: int
    value: Optional[float] = None
    lower: Optional[float] = None
    upper: Optional[float] = None
    n_eff: Optional[float] = None
    why: Optional[str] = None
    seen: Optional[Estimate] = None


@dataclass(frozen=True)
class Percentiles(Result):
    """Percentiles of a latency, in seconds."""

    metric: str
    n: int
    infinite: int
    absent: int
    p50: Reading
    p90: Reading
    p95: Reading
    p99: Reading
    p999: Reading
    mean_finite_s: Optional[float] = None
    max_s: Optional[float] = None


@dataclass(frozen=True)
class Itl(Result):
    """Inter-token latency, with the rule that counted the tokens of an event."""

    rule: str
    exact_share: float
    percentiles: Percentiles


@dataclass(frozen=True)
class Latencies(Result):
    """Latencies of a level. `None`: the metric does not exist for these answers."""

    ttfb: Percentiles
    e2e: Percentiles
    e2e_after_send: Percentiles
    ttft: Optional[Percentiles] = None
    ttft_after_send: Optional[Percentiles] = None
    ttfot: Optional[Percentiles] = None
    tpot: Optional[Percentiles] = None
    ntpot: Optional[Percentiles] = None
    event_gap: Optional[Percentiles] = None
    itl: Optional[Itl] = None
    session_e2e: Optional[Percentiles] = None


@dataclass(frozen=True)
class Counts(Result):
    """Requests and attempts by the way they ended."""

    requests: int
    attempts: int
    amplification: float
    finished: int
    failed: int
    cancelled: int
    by_outcome: Mapping[str, int]
    broken: Mapping[str, int]
    error_rate: Optional[Estimate] = None


@dataclass(frozen=True)
class Rates(Result):
    """Rates per second of the window."""

    offered_per_s: float
    achieved_per_s: Reading
    tokens_from: str
    good_per_s: Optional[Reading] = None
    good_share: Optional[Estimate] = None
    input_tokens_per_s: Optional[Reading] = None
    output_tokens_per_s: Optional[Reading] = None
    total_tokens_per_s: Optional[Reading] = None
    tokens_per_s_per_user: Optional[Reading] = None


@dataclass(frozen=True)
class Load(Result):
    """The load of a level: `mode` is `open` (with `rate_per_s`), `closed` (with `concurrency`) or `wave` (with `requests`)."""

    mode: str
    rate_per_s: Optional[float] = None
    concurrency: Optional[int] = None
    requests: Optional[int] = None

    def __str__(self) -> str:
        if self.rate_per_s is not None:
            return f"{self.rate_per_s:.3g}/s"
        return f"{self.concurrency} in flight" if self.concurrency is not None else f"{self.mode} {self.requests or ''}".strip()


@dataclass(frozen=True)
class Reason(Result):
    """A reason against a measurement: figure, meaning and advice."""

    check: str
    verdict: str
    figure: str
    means: str
    advice: str
    level: Optional[int] = None


@dataclass(frozen=True)
class Validity(Result):
    """Trust in a level or a run: `verdict` is `valid`, `short`, `suspect` or `invalid`."""

    verdict: str
    reasons: Tuple[Reason, ...]


@dataclass(frozen=True)
class LevelSummary(Result):
    """The figures of a level."""

    level: int
    traffic: str
    purpose: str
    load: Load
    counts: Counts
    rates: Rates
    latency: Latencies


@dataclass(frozen=True)
class LevelFinding(Result):
    """A level: its figures and the trust in them."""

    summary: LevelSummary
    validity: Validity


@dataclass(frozen=True)
class CurvePoint(Result):
    """An open-loop level of a curve, with percentiles of the curve's metric in seconds."""

    level: int
    purpose: str
    offered_per_s: float
    in_flight: float
    p50: Reading
    p90: Reading
    p95: Reading
    p99: Reading
    error_rate: float
    stability: str
    trust: str
    achieved_per_s: Optional[float] = None
    good_per_s: Optional[float] = None
    budget: Optional[str] = None


@dataclass(frozen=True)
class Curve(Result):
    """The curve of a sweep."""

    traffic: str
    metric: str
    percentile: float
    knee_factor: float
    points: Tuple[CurvePoint, ...]
    zero_contention: Reading


@dataclass(frozen=True)
class Line(Result):
    """A limit of the load. `is_`: `found` (`rate`), `above` or `below` (`rate_per_s`), or `cannot_tell` (`why`)."""

    is_: str
    rate: Optional[Estimate] = None
    rate_per_s: Optional[float] = None
    how: Optional[str] = None
    why: Optional[str] = None

    def __str__(self) -> str:
        if self.rate is not None:
            return f"{self.rate.value:.3g}/s [{self.rate.lower:.3g}, {self.rate.upper:.3g}]"
        return self.is_.replace("_", " ") if self.rate_per_s is None else f"{self.is_} {self.rate_per_s:.3g}/s"


@dataclass(frozen=True)
class Lines(Result):
    """The limits of a kind of traffic: queueing onset, stability and budget."""

    traffic: str
    onset: Line
    stability: Line
    budget: Optional[Line] = None

    def _named(self) -> Tuple[Tuple[str, Line], ...]:
        named = (("onset", self.onset), ("budget", self.budget), ("stability", self.stability))
        return tuple((name, line) for name, line in named if line is not None)


@dataclass(frozen=True)
class Findings(Result):
    """The findings of a run."""

    levels: Tuple[LevelFinding, ...]
    curves: Tuple[Curve, ...]
    lines: Tuple[Lines, ...]
    validity: Validity


@dataclass(frozen=True)
class RunState(Result):
    """`state` is `complete`, `partial` (with `why`) or `running`."""

    state: str
    why: Optional[str] = None


@dataclass(frozen=True)
class Run(Result):
    """A run: its manifest as `raw`, its findings, and its tables as data frames. `next` holds commands that explain it."""

    folder: str
    id: str
    kind: str
    tool: str
    seed: int
    reproduce: str
    progress: RunState
    findings: Optional[Findings] = field(default=None, repr=False)
    label: Optional[str] = None
    flags: Tuple[str, ...] = ()
    headline: Optional[str] = None
    reasons: Tuple[str, ...] = ()
    next: Tuple[str, ...] = ()
    exit_code: int = 0

    @property
    def path(self) -> pathlib.Path:
        """The run folder."""
        return pathlib.Path(self.folder)

    @property
    def verdict(self) -> Optional[str]:
        """The trust in the run: `valid`, `short`, `suspect` or `invalid`; `None` for a run of spans only."""
        return self.findings.validity.verdict if self.findings else None

    @property
    def levels(self) -> Tuple[LevelFinding, ...]:
        """The levels, in order of execution."""
        return self.findings.levels if self.findings else ()

    @property
    def lines(self) -> Tuple[Lines, ...]:
        """The limits that a sweep found; empty for other runs."""
        return self.findings.lines if self.findings else ()

    @property
    def curves(self) -> Tuple[Curve, ...]:
        """The curves that a sweep measured; empty for other runs."""
        return self.findings.curves if self.findings else ()

    def requests(self, to: Optional[str] = None) -> Any:
        """Returns one row per request with `attempts`, `due_s`, `ttft_s`, `e2e_s` and `tpot_s` (infinite: failed; null: does not exist).

        `to` is "pandas", "polars" or "arrow"; the default is pandas if it is installed with pyarrow, else polars.
        """
        return _tables.requests(self.path, to)

    def attempts(self, to: Optional[str] = None) -> Any:
        """Returns `requests.parquet`: one row per attempt, with its events as lists."""
        return _tables.stored(self.path, "requests", to)

    def server(self, to: Optional[str] = None) -> Any:
        """Returns `server.parquet`: time series of the metrics endpoints."""
        return _tables.stored(self.path, "server", to)

    def spans(self, to: Optional[str] = None) -> Any:
        """Returns `spans.parquet`: one row per span of a trace."""
        return _tables.stored(self.path, "spans", to)

    def __fspath__(self) -> str:
        return self.folder

    def _repr_html_(self) -> str:
        rows = []
        for level in self.levels:
            summary, latency = level.summary, level.summary.latency
            ttft, tpot = latency.ttft, latency.tpot
            shown = [ttft.p50 if ttft else None, ttft.p99 if ttft else None, tpot.p50 if tpot else None, latency.e2e.p99]
            counts = [str(summary.counts.requests), str(summary.counts.failed)]
            rows.append([str(summary.level), str(summary.load), *counts, *map(_ms, shown), level.validity.verdict])
        lines = [f"{found.traffic}: {name} {line}" for found in self.lines for name, line in found._named()]
        headline = [self.headline] if self.headline else []
        reasons = self.findings.validity.reasons if self.findings else ()
        advice = [f"{reason.figure}: {reason.means}; {reason.advice}" for reason in reasons]
        head = ["level", "load", "requests", "failed", "ttft p50", "ttft p99", "tpot p50", "e2e p99", "trust"]
        return _html(f"{self.kind} {self.label or self.folder}: {self.verdict or self.progress.state}", headline + lines + advice, head, rows)


@dataclass(frozen=True)
class GateRow(Result):
    """A budget: `held` is `pass`, `inconclusive` or `fail`."""

    id: str
    place: str
    what: str
    slice: str
    role: str
    held: str
    limit_shown: str
    measured: Reading
    measured_shown: str
    missing: bool
    why: str
    levels: Tuple[int, ...]
    limit: Optional[float] = None
    needed: Optional[int] = None
    needed_s: Optional[float] = None
    owner: Optional[str] = None
    offered_per_s: Optional[float] = None


@dataclass(frozen=True)
class GateResult(Result):
    """The result of a gate: `verdict` is `pass`, `broken`, `inconclusive` or `invalid`."""

    verdict: str
    headline: str
    budget: str
    run: str
    rows: Tuple[GateRow, ...] = field(repr=False)
    validity: Validity = field(repr=False)
    refusals: Tuple[str, ...] = ()
    cut: Tuple[str, ...] = ()
    measured_s: float = 0.0
    baseline: Optional[str] = None
    reasons: Tuple[str, ...] = ()
    next: Tuple[str, ...] = ()
    exit_code: int = 0

    @property
    def passed(self) -> bool:
        """Returns whether every budget that decides holds."""
        return self.verdict == "pass"

    def _repr_html_(self) -> str:
        rows = [[row.id, row.what, row.limit_shown, row.measured_shown, row.held, row.why] for row in self.rows]
        return _html(f"{self.verdict}: {self.headline}", self.refusals, ["budget", "metric", "limit", "measured", "verdict", "why"], rows)


@dataclass(frozen=True)
class Effect(Result):
    """Candidate against base with its 95 % interval; `scale` is the unit, for example `ratio`."""

    scale: str
    value: float
    lower: float
    upper: float

    def __str__(self) -> str:
        unit = " ×" if self.scale == "ratio" else f" ({self.scale})"
        return f"{self.value:.3g}{unit} [{self.lower:.3g}, {self.upper:.3g}]"


@dataclass(frozen=True)
class Arm(Result):
    """A figure of one run."""

    n: int
    n_eff: float
    value: Optional[float] = None


@dataclass(frozen=True)
class ComparedFigure(Result):
    """A figure of both runs. `verdict` is `improved`, `no_change`, `inconclusive` or `regressed`."""

    metric: str
    statistic: str
    primary: bool
    base: Arm
    candidate: Arm
    worse: str
    margin: float
    method: str
    verdict: str
    effect: Optional[Effect] = None
    p: Optional[float] = None
    needs_s: Optional[float] = None
    why: Optional[str] = None


@dataclass(frozen=True)
class Group(Result):
    """The levels of one load, compared."""

    load: str
    unit: str
    units: int
    rows: Tuple[ComparedFigure, ...]


@dataclass(frozen=True)
class Difference(Result):
    """A difference between the two experiments."""

    about: str
    base: str
    candidate: str


@dataclass(frozen=True)
class Comparison(Result):
    """A comparison: `verdict` is `regressed`, `inconclusive`, `improved` or `no_change`."""

    verdict: str
    says: Tuple[str, ...]
    design: str
    level: float
    groups: Tuple[Group, ...] = field(repr=False)
    lines: Tuple[ComparedFigure, ...] = field(repr=False)
    differences: Tuple[Difference, ...] = ()
    notes: Tuple[str, ...] = ()
    headline: Optional[str] = None
    reasons: Tuple[str, ...] = ()
    next: Tuple[str, ...] = ()
    exit_code: int = 0

    def _repr_html_(self) -> str:
        figures = [(group.load, figure) for group in self.groups for figure in group.rows] + [("", figure) for figure in self.lines]
        rows = [[load, f"{f.metric} {f.statistic}", str(f.effect or ""), f.verdict.replace("_", " ")] for load, f in figures if f.primary]
        return _html(self.verdict.replace("_", " "), [*self.says, *self.notes], ["load", "figure", "candidate against base", "verdict"], rows)


def _ms(reading: Optional[Reading]) -> str:
    return "–" if reading is None or reading.value is None else f"{reading.value * 1e3:.3g} ms"


def _html(title: str, notes: Iterable[str], head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a small table. Texts of a server under test may be among its cells, so each one is escaped."""

    def row(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    said = "".join(f"<div>{html.escape(note)}</div>" for note in notes)
    return f"<div><b>{html.escape(title)}</b>{said}<table>{row('th', head)}{''.join(row('td', cells) for cells in rows)}</table></div>"


_HINTS: Dict[Any, Dict[str, Any]] = {}


def _hints(kind: Any) -> Dict[str, Any]:
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    return _HINTS[kind]


def decode(kind: Type[T], document: Mapping[str, Any]) -> T:
    """Returns the object of this JSON. Fails if a field that it needs is missing, which another version of the binary can cause."""
    values: Dict[str, Any] = {"raw": document}
    for own in dataclasses.fields(kind):
        name = own.name.rstrip("_")
        if own.name == "raw":
            continue
        if name in document:
            values[own.name] = _value(_hints(kind)[own.name], document[name])
        elif own.default is dataclasses.MISSING:
            raise PlimsollError(f"{kind.__name__}: the JSON lacks `{name}`", "this package reads files and binaries of its own version", 4)
    return kind(**values)


def _value(kind: Any, value: Any) -> Any:
    """Returns a value of this type. Numbers that JSON lacks are the words `inf`, `-inf` and `nan`."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if value is None or kind is Any:
        return value
    if origin is typing.Union:
        return _value(parts[0], value)
    if origin is tuple:
        return tuple(_value(parts[0], part) for part in value)
    if origin is not None:
        return {key: _value(parts[1], part) for key, part in value.items()}
    if kind is float:
        return float(value)
    return decode(kind, value) if isinstance(kind, type) and issubclass(kind, Result) else value

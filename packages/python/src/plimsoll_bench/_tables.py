"""The tables of a run as data frames, with latencies by the definitions of docs/methods/measuring.md.

One plain function computes the latencies of a request for every library. Expressions per library would define each metric three times.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import pathlib
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ._binary import PlimsollError

_NEEDS = {"pandas": ("pandas", "pyarrow"), "polars": ("polars",), "arrow": ("pyarrow",)}
_EXTRAS = "pip install 'plimsoll-bench[pandas]' or 'plimsoll-bench[polars]'"

#: Kinds of stream events that carry tokens.
_CONTENT, _REASONING, _TOOL_CALL = 0, 1, 2

#: Returns the kinds and the tokens of the events of one row.
Events = Callable[[int], Tuple[List[int], List[int]]]
Columns = Mapping[str, List[Any]]

_READ = (
    "level request attempt due_ns first_token_ns last_token_ns end_ns asked_output_tokens output_tokens reasoning_tokens "
    "tokens_rule outcome outcome_by broken"
).split()
_FIRST = ["level", "request", "attempts", "due_s", "ttft_s", "e2e_s", "tpot_s"]


def library(asked: Optional[str]) -> str:
    """Returns the library to use: the one that is asked for, else pandas, else polars. Fails if none is installed."""
    if asked is not None and asked not in _NEEDS:
        raise ValueError(f"to={asked!r}: unknown library; use {', '.join(map(repr, _NEEDS))}")
    for name in (asked,) if asked else ("pandas", "polars"):
        if all(importlib.util.find_spec(module) for module in _NEEDS[name]):
            return name
    needed = " and ".join(_NEEDS[asked]) if asked else "pandas with pyarrow, or polars"
    raise ImportError(f"a data frame needs {needed}; {_EXTRAS}")


def stored(folder: pathlib.Path, name: str, to: Optional[str]) -> Any:
    """Returns a table as its file has it."""
    to, path = library(to), folder / f"{name}.parquet"
    if not path.is_file():
        raise PlimsollError(f"{path}: there is no such file", "this run has no such table")
    if to == "polars":
        return importlib.import_module("polars").read_parquet(path)
    table = importlib.import_module("pyarrow.parquet").read_table(path)
    return table.to_pandas() if to == "pandas" else table


def requests(folder: pathlib.Path, to: Optional[str]) -> Any:
    """Returns one row per request, by level and due time: the computed columns, then those of its last attempt that are no lists."""
    to = library(to)
    if to == "polars":
        return _in_polars(stored(folder, "requests", "polars"))
    table = _in_arrow(stored(folder, "requests", "arrow"))
    return table.to_pandas() if to == "pandas" else table


def _in_polars(rows: Any) -> Any:
    polars = importlib.import_module("polars")
    rows_made = by_request(
        {name: rows[name].to_list() for name in _READ},
        lambda row: (rows["event_kind"][row].to_list(), rows["event_tokens"][row].to_list()),
    )
    flat = rows[rows_made.last].select(name for name, kind in rows.schema.items() if not isinstance(kind, polars.List))
    kinds = {"attempts": polars.Int64}
    made = [polars.Series(name, values, kinds.get(name, polars.Float64)) for name, values in rows_made.columns.items()]
    return flat.with_columns(made).select(*_FIRST, polars.exclude(*_FIRST, "attempt"))


def _in_arrow(rows: Any) -> Any:
    arrow = importlib.import_module("pyarrow")
    rows_made = by_request(
        {name: rows.column(name).to_pylist() for name in _READ},
        lambda row: (rows.column("event_kind")[row].as_py(), rows.column("event_tokens")[row].as_py()),
    )
    names = [field.name for field in rows.schema if not arrow.types.is_list(field.type) and field.name != "attempt"]
    flat = rows.select(names).take(arrow.array(rows_made.last, arrow.int64()))
    kinds = {"attempts": arrow.int64()}
    for name, values in rows_made.columns.items():
        flat = flat.append_column(name, arrow.array(values, kinds.get(name, arrow.float64())))
    return flat.select(_FIRST + [name for name in names if name not in _FIRST])


class Requests(NamedTuple):
    """Rows of requests: for each, the row of its last attempt, and its computed columns."""

    last: List[int]
    columns: Dict[str, List[Any]]


def by_request(rows: Columns, events: Events) -> Requests:
    """Returns the requests of these attempts. A request is due when its first attempt is, and ends as its last attempt does."""
    tries: Dict[Tuple[int, int], List[int]] = {}
    for row, key in enumerate(zip(rows["level"], rows["request"])):
        tries.setdefault(key, []).append(row)
    for own in tries.values():
        own.sort(key=rows["attempt"].__getitem__)
    due = rows["due_ns"]
    ordered = sorted(tries.items(), key=lambda item: (item[0][0], due[item[1][0]], item[0][1]))
    columns: Dict[str, List[Any]] = {name: [] for name in _FIRST[2:]}
    for _, own in ordered:
        columns["attempts"].append(len(own))
        columns["due_s"].append(due[own[0]] / 1e9)
        for name, value in zip(("ttft_s", "e2e_s", "tpot_s"), latencies(rows, own[-1], due[own[0]], events)):
            columns[name].append(value if value is None or math.isinf(value) else value / 1e9)
    return Requests([own[-1] for _, own in ordered], columns)


def latencies(rows: Columns, row: int, due: int, events: Events) -> Tuple[Optional[float], Optional[float], Optional[float]]:
    """Returns `ttft`, `e2e` and `tpot` of the request that ended with this attempt, ns. Infinite: it failed. `None`: the metric does not exist."""
    first, last, end = rows["first_token_ns"][row], rows["last_token_ns"][row], rows["end_ns"][row]
    finished = rows["outcome"][row] == "finished"
    cancelled = rows["outcome"][row] == "cancelled" and rows["outcome_by"][row] == "client"
    if rows["broken"][row] == "empty" and finished or not (finished or cancelled):
        return math.inf, math.inf, None if rows["asked_output_tokens"][row] == 1 else math.inf
    if cancelled:
        # A reader who left before the first token never saw one; the length of a cut answer does not describe the server.
        return math.inf if first is None else first - due, None, None
    ttft = None if first is None else first - due
    e2e = None if end is None else end - due
    tokens = _streamed_tokens(rows, row, events)
    if first is None or last is None or tokens < 2 or last <= first:
        return ttft, e2e, None
    return ttft, e2e, (last - first) // (tokens - 1)


def _streamed_tokens(rows: Columns, row: int, events: Events) -> int:
    """Returns the tokens that arrived between the first and the last token event: reported, else counted in the events; 0 if unknown."""
    output, hidden = rows["output_tokens"][row], rows["reasoning_tokens"][row] or 0
    if output is None:
        if rows["tokens_rule"][row] == "unknown":
            return 0
        return sum(tokens for kind, tokens in zip(*events(row)) if kind in (_CONTENT, _REASONING, _TOOL_CALL))
    if hidden:
        kinds = events(row)[0]
        hidden = 0 if not kinds or _REASONING in kinds else hidden
    return max(0, int(output) - int(hidden))

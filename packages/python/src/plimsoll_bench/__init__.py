"""Runs of Plimsoll as data frames. The binary is `plimsoll`; `python -m plimsoll_bench` starts it too."""

import json
import pathlib

__all__ = ["Run", "open"]


class Run:
    """A run folder: `run.json` as a dictionary, and its tables as data frames."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        manifest = self.path / "run.json"
        if not manifest.is_file():
            raise FileNotFoundError(f"{self.path} is no run folder: it has no run.json")
        self.manifest = json.loads(manifest.read_text(encoding="utf-8"))

    def requests(self, to="pandas"):
        """One row per attempt; times in ns from the run's start. `to`: "pandas", "polars" or "arrow"."""
        return self._table("requests", to)

    def server(self, to="pandas"):
        """What was scraped from the server's metrics page: at, source, name, labels, value."""
        return self._table("server", to)

    def spans(self, to="pandas"):
        """Spans of traces, where the run has any."""
        return self._table("spans", to)

    def _table(self, name, to):
        path = self.path / f"{name}.parquet"
        if not path.is_file():
            why = "`plimsoll show` writes it from the log of a run that was cut off" if name == "requests" else "this run has none"
            raise FileNotFoundError(f"{path} is missing: {why}")
        if to == "pandas":
            import pandas

            return pandas.read_parquet(path)
        if to == "polars":
            import polars

            return polars.read_parquet(path)
        if to == "arrow":
            import pyarrow.parquet

            return pyarrow.parquet.read_table(path)
        raise ValueError(f'{to!r}: "pandas", "polars" or "arrow"')


def open(path):
    """The run in this folder."""
    return Run(path)

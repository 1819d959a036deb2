"""Parts that the tests share: runs of the simulated engine, made once, and a served one."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pathlib
import subprocess
import tempfile
import unittest
from typing import Any, Iterator

import plimsoll_bench as pb
from plimsoll_bench._binary import binary

ROOT = pathlib.Path(__file__).parents[3]
_TEMP = tempfile.TemporaryDirectory()
atexit.register(_TEMP.cleanup)
TEMP = pathlib.Path(_TEMP.name)

BUDGET = "version: 1\nname: chat\nload: {rate: 8/s}\nbudgets:\n  - {id: ttft, metric: ttft, p: 50, max: %s}\n"


class Case(unittest.TestCase):
    """A test with a folder of its own as working directory."""

    def setUp(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=TEMP))
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)

    def budget(self, ceiling: str) -> pathlib.Path:
        path = self.folder / "budget.yaml"
        path.write_text(BUDGET % ceiling)
        return path


@functools.lru_cache(maxsize=None)
def simulated(**flags: Any) -> pb.Run:
    """Returns a run of the simulated engine; the flags that made it are made once."""
    return pb.simulate(out=tempfile.mkdtemp(dir=TEMP) + "/run", **{"rate": "8/s", "for_": "60s", **flags})


@contextlib.contextmanager
def engine() -> Iterator[str]:
    """Serves the embedded engine; yields its URL."""
    process = subprocess.Popen([binary(), "engine", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()

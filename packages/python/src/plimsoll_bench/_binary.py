"""Calls of the binary: flags, progress, JSON and errors.

The binary is a child process and no native extension, because one wheel then serves every Python version.
"""

from __future__ import annotations

import html
import importlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

_Value = Union[str, int, float, "os.PathLike[str]"]
#: The value of a flag. `None` and `False` leave the flag out; `True` sets a flag without a value; a list repeats the flag.
Flag = Union[None, bool, _Value, Sequence[_Value]]

#: Exit codes after which no result exists: usage, and an unreachable target.
_NO_RESULT = (2, 5)


class PlimsollError(Exception):
    """An error of the binary: its `message`, its `hint` (the remedy; may be empty) and its `exit_code`."""

    def __init__(self, message: str, hint: str = "", exit_code: int = 2) -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def __reduce__(self) -> Tuple[Any, ...]:
        return (PlimsollError, (self.message, self.hint, self.exit_code))


def binary() -> str:
    """Returns the path of the binary: `PLIMSOLL_BIN`, else the one of this environment, else the first in `PATH`."""
    named = os.environ.get("PLIMSOLL_BIN")
    if named:
        return named
    places = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user"), os.path.dirname(sys.executable)]
    for place in places:
        path = pathlib.Path(place or ".") / "plimsoll"
        if path.is_file():
            return str(path)
    found = shutil.which("plimsoll")
    if found:
        return found
    raise PlimsollError("plimsoll is not in this environment", "pip install plimsoll-bench, or name the binary in PLIMSOLL_BIN")


def arguments(flags: Mapping[str, Flag]) -> List[str]:
    """Returns the flags as arguments of the command line."""
    made: List[str] = []
    for name, value in flags.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        if flag in ("--format", "--quiet"):
            raise TypeError(f"{name}: the API sets this flag itself")
        if value is None or value is False:
            continue
        if value is True:
            made.append(flag)
            continue
        values: Sequence[_Value] = [value] if isinstance(value, (str, int, float, os.PathLike)) else value
        made.extend(f"{flag}={os.fspath(v) if isinstance(v, os.PathLike) else v}" for v in values)
    return made


def call(
    command: str, positional: Sequence[Union[str, "os.PathLike[str]"]], flags: Mapping[str, Flag], extra: Sequence[str], progress: Optional[bool]
) -> Dict[str, Any]:
    """Runs a command and returns its JSON, with the key `exit_code`. Fails with `PlimsollError` if the command has no result."""
    words = [binary(), command, "--format=json", *arguments(flags), *extra, "--", *(os.fspath(word) for word in positional)]
    # In the process group of this interpreter, so that the end of a notebook's kernel ends the load too.
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
        )
    except OSError as error:
        raise PlimsollError(f"{words[0]}: {error.strerror}", "PLIMSOLL_BIN names the binary", 5) from error
    assert process.stdout is not None and process.stderr is not None
    lines: List[str] = []
    bar = _bar(command, progress)
    stderr = process.stderr

    def listen() -> None:
        shows = bar is not None
        for line in stderr:
            lines.append(line.rstrip())
            # A display that fails must not stop the reading: a full pipe would stop the load.
            try:
                if bar is not None and shows:
                    bar.show(lines[-1])
            except Exception:
                shows = False

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        with process.stdout as stdout:
            text = stdout.read()
        code = process.wait()
    except BaseException:
        # One signal drains the load, a second one stops it at once.
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait()
            except KeyboardInterrupt:
                continue
        raise
    finally:
        listener.join()
        stderr.close()
        if bar is not None:
            bar.close()
    return _result(text, lines, code)


def _result(text: str, lines: Sequence[str], code: int) -> Dict[str, Any]:
    try:
        document: Any = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, dict) and "error" not in document and code not in _NO_RESULT:
        # Head and data become one object. A field of both is that of the data.
        data: Dict[str, Any] = document.pop("data", None) or {}
        return {**document, **data, "exit_code": code}
    told = document.get("error") if isinstance(document, dict) else None
    if isinstance(told, dict):
        raise PlimsollError(str(told.get("message", "")), str(told.get("hint") or ""), code)
    # The message is the last line that names the program; notes and progress stand before it.
    own = [line[len("plimsoll: ") :] for line in lines if line.startswith("plimsoll: ")]
    message, _, hint = (own or list(lines) or [f"plimsoll ended with code {code} and without a result"])[-1].partition("; ")
    raise PlimsollError(message, hint, code)


_UNITS = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3}
_LEFT = re.compile(r"((?:[\d.]+ (?:h|min|s|ms) )+)left")


def seconds_left(line: str) -> Optional[float]:
    """Returns the time that a progress line reports as left, in seconds; `None` without one."""
    found = _LEFT.search(line)
    if not found:
        return None
    words = found.group(1).split()
    return sum(float(number) * _UNITS[unit] for number, unit in zip(words[::2], words[1::2]))


class _Bar:
    """A progress bar in a notebook, or lines on stderr elsewhere. Its share is read from the progress lines of the binary."""

    def __init__(self, command: str, display: Any) -> None:
        self.command = command
        self.display = display
        self.handle: Any = None
        self.began = time.monotonic()
        self.share = 0.0

    def show(self, line: str) -> None:
        """Shows a progress line. A bar appears with the first one, so that a quick command has none."""
        left, passed = seconds_left(line), time.monotonic() - self.began
        if left is not None and passed + left > 0:
            self.share = max(self.share, passed / (passed + left))
        text = f"{self.command}: {line.strip()}"
        if self.display is None:
            print(f"{self.share:4.0%} {text}", file=sys.stderr)
            return
        shown = {"text/plain": text, "text/html": f'<progress max="1" value="{self.share:.3f}"></progress> <code>{html.escape(text)}</code>'}
        if self.handle is None:
            self.handle = self.display(shown, raw=True, display_id=True)
        else:
            self.handle.update(shown, raw=True)

    def close(self) -> None:
        """Removes the bar."""
        if self.handle is not None:
            self.handle.update({"text/plain": "", "text/html": ""}, raw=True)


def _bar(command: str, progress: Optional[bool]) -> Optional[_Bar]:
    if progress is False:
        return None
    # A notebook has IPython loaded already: no import is worth the time outside of one.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and hasattr(shell, "kernel"):
        return _Bar(command, importlib.import_module("IPython.display").display)
    return _Bar(command, None) if progress else None

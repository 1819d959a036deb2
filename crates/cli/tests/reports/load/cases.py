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


@case("L36")
def interim(lab):
    """Interim answers (103, 102) come before the answer: all requests finish."""
    done = lab.against("interim", "run", "URL", *LOAD, "--osl", 16)
    check(done.code in (0, 4) and len(done.truth) > 10, repr(done))


if __name__ == "__main__":
    main()

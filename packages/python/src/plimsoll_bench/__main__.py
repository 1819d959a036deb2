"""`python -m plimsoll_bench …` is `plimsoll …`."""

import os
import pathlib
import sys
import sysconfig


def binary():
    """The binary that came with this wheel: beside the scripts of this environment."""
    places = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user"), pathlib.Path(sys.executable).parent]
    for place in places:
        path = pathlib.Path(place or ".") / "plimsoll"
        if path.is_file():
            return str(path)
    sys.exit("plimsoll is not in this environment: pip install plimsoll-bench")


if __name__ == "__main__":
    path = binary()
    os.execv(path, [path, *sys.argv[1:]])

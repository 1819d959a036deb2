"""`python -m plimsoll_bench …` is `plimsoll …`."""

import os
import sys

from ._binary import PlimsollError, binary

if __name__ == "__main__":
    try:
        path = binary()
    except PlimsollError as error:
        sys.exit(str(error))
    os.execv(path, [path, *sys.argv[1:]])

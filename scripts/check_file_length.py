#!/usr/bin/env python3
"""Fails for every given file of more than 500 lines: a file is read in one sitting."""

import sys
from pathlib import Path

MAX_LINES = 500


def main(paths):
    too_long = 0
    for path in paths:
        lines = Path(path).read_bytes().count(b"\n")
        if lines > MAX_LINES:
            print(f"{path}: {lines} lines, at most {MAX_LINES} are allowed")
            too_long += 1
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

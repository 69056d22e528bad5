"""`python -m tests.golden [--write] [GROUP ...]`; see `book.py`."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from .book import PAGES, difference, groups, page, played, signatures


def main() -> int:
    parser = argparse.ArgumentParser(description="Play the commands of the golden book.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="of commands.txt, or signatures; default: all")
    parser.add_argument("--write", action="store_true", help="write the pages anew")
    given = parser.parse_args()
    every = groups()
    status = 0
    for name in given.groups or ["signatures", *every]:
        began = time.process_time()
        with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
            now = signatures() if name == "signatures" else played(every[name], Path(scratch))
        told = difference(page(name), now)
        print(f"{name}: {time.process_time() - began:.1f} s\n{told}".rstrip(), flush=True)
        if given.write:
            PAGES.mkdir(exist_ok=True)
            (PAGES / f"{name}.txt").write_text(now, encoding="utf-8")
        elif told:
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())

"""Single-line mutants of the package, drawn once, each with a test that kills it.

After a change of the code or the tests, which may move and join files:

    python -m tests.mutants run      # each mutant under its recorded killer, found by name; adds to build/mutants
    python -m tests.mutants show     # how many died, survived, are gone or have no killer any more, and which

Where the killer is gone or passes, `run` tries the tests that hit the mutant today, if they were noted before:

    python -m tests.mutants hits     # every test file once, in a child of its own
    python -m tests.mutants record   # keep what was found as the killers of next time

`draw` draws anew. Results in build/mutants are kept: what is there is not run again, so remove it first for a fresh
start. Two processes share the work with `run --part 0/2` and `run --part 1/2`.
"""

import argparse
import sys
from collections import Counter

from . import draw, places


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("command", choices=["draw", "hits", "run", "show", "record"])
    parser.add_argument("--num", type=int, default=400, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=32, help="of the draw")
    parser.add_argument("--under", nargs="+", default=["tests"], help="folders of tests whose hits are noted")
    parser.add_argument("--most-s", type=float, default=600.0, help="processor seconds of a file whose hits are noted")
    parser.add_argument("--part", default="0/1", help="of the mutants: run those of this part")
    asked = parser.parse_args()
    if asked.command == "draw":
        places.write_drawn(draw.draw(asked.num, asked.seed))
        return
    # Imports torch, which drawing does not need.
    from . import run

    if asked.command == "hits":
        run.note_hits(asked.under, asked.most_s)
    elif asked.command == "run":
        run.note_fates(*map(int, asked.part.split("/")))
    elif asked.command == "record":
        run.record()
    else:
        rows = run.read(run.FATES)
        alive = [f"{row['number']:3} {row['fate']}\n" for row in rows if row["fate"] != "died"]
        sys.stdout.write("".join(alive) + f"{dict(Counter(row['fate'] for row in rows))}\n")


main()

"""Single-line mutants of the package, each with the test that kills it.

python -m tests.mutants draw --num 400 --seed 32
"""

import argparse

from . import draw, places


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="write mutants.jsonl anew")
    drawing.add_argument("--num", type=int, default=400)
    drawing.add_argument("--seed", type=int, default=32)
    asked = parser.parse_args()
    places.write_drawn(draw.draw(asked.num, asked.seed))


main()

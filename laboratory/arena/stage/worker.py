"""A process that plays: `python -m paceline.laboratory.arena.stage.worker FD`, FD its end of a line to who asks."""

import json
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from ..cell import ArenaCell
from .player import Player, RunOf
from .workers import came_to_json


def work(line: Connection) -> None:
    """Play what comes through a line until it is closed."""
    player = Player()
    while True:
        try:
            asked = json.loads(line.recv_bytes())
        except EOFError:
            return
        run = RunOf(**asked | {"trace": Path(asked["trace"]), "cell": ArenaCell.parse(asked["cell"])})
        line.send_bytes(json.dumps(came_to_json(player.outcome(run))).encode())


if __name__ == "__main__":
    work(Connection(int(sys.argv[1])))

"""A process that plays: `python -m paceline_laboratory.arena.worker FD`, FD its end of a line to who asks."""

import json
import sys
from multiprocessing.connection import Connection

from .run import Player, came_to_json, run_from_json


def work(line: Connection) -> None:
    """Play what comes through a line until it is closed."""
    player = Player()
    while True:
        try:
            asked = json.loads(line.recv_bytes())
        except EOFError:
            return
        line.send_bytes(json.dumps(came_to_json(player.outcome(run_from_json(asked)))).encode())


if __name__ == "__main__":
    work(Connection(int(sys.argv[1])))

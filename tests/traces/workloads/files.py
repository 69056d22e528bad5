"""A small sound file of every format that workloads are read from, as text, and how one is written."""

import gzip
import json

from ..sheets import OPENED, read_rows

SOUND = {row["seen"]["format"]: row["files"]["load"] for row in read_rows(OPENED) if row.get("sound")}
AGENTS, AZURE, MOONCAKE, OWN, VIDUR = (
    SOUND[name] for name in ("agent-sessions", "azure", "mooncake", "paceline", "vidur")
)


def lines(*objects):
    return "".join(f"{json.dumps(one)}\n" for one in objects)


def write(folder, text, name="load", *, zipped=False):
    data = text if isinstance(text, bytes) else text.encode()
    path = folder / (f"{name}.gz" if zipped else name)
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path

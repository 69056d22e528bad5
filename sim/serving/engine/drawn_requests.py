"""Which recorded request a served one replays: drawn by its id, so that every policy and router meets the same luck."""

from collections.abc import Iterable
from hashlib import blake2b

from ....arguments import ArgumentError
from ....counted import counted
from ....traces.recording import Request

MOST_SHOWN = 8  # tags in an error


class DrawnRequests:
    """Draws requests of a recording.

    Args:
        requests: of the recording, at least one.
        seed: of the draws; another one draws others.
    """

    def __init__(self, requests: Iterable[Request], *, seed: int) -> None:
        self._seeded = blake2b(f"{seed}\0".encode(), digest_size=8)
        self._by_tag: dict[str, list[str]] = {"": []}
        for request in requests:
            self._by_tag[""].append(request.request_id)
            if request.tag:
                self._by_tag.setdefault(request.tag, []).append(request.request_id)

    def check(self, request_id: str, tag: str) -> None:
        """Raises ArgumentError for a tag that no recorded request has."""
        if tag not in self._by_tag:
            raise self._unknown(request_id, tag)

    def of(self, request_id: str, tag: str) -> str:
        """Id of the recorded request that stands for a served one: any of its tag, of all if `tag` is "".

        The same on any machine, whatever else is drawn.

        Raises:
            ArgumentError: a tag that no recorded request has.
        """
        ids = self._by_tag.get(tag)
        if ids is None:
            raise self._unknown(request_id, tag)
        drawn = self._seeded.copy()
        drawn.update(request_id.encode())
        return ids[int.from_bytes(drawn.digest()) % len(ids)]

    def _unknown(self, request_id: str, tag: str) -> ArgumentError:
        return ArgumentError(f"request {request_id}: no request of the recording has the tag {tag!r}; {self._tags()}")

    def _tags(self) -> str:
        tags = sorted(tag for tag in self._by_tag if tag)
        if not tags:
            return "they have none"
        shown = ", ".join(tags[:MOST_SHOWN]) + (", ..." if len(tags) > MOST_SHOWN else "")
        return f"it has {counted(len(tags), 'tag')}: {shown}"

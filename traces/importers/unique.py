"""Ids that must not come twice."""

from .fields import Fields


class UniqueIds:
    """The ids seen so far in all files of an import."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def add(self, fields: Fields, field: str, request_id: str) -> None:
        """Note an id; raises TraceFormatError if it is empty or was there before."""
        if not request_id:
            raise fields.error(field, "must not be empty", request_id)
        if request_id in self._seen:
            raise fields.error(field, "must be unique", request_id)
        self._seen.add(request_id)

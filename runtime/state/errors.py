"""Why a single request fails while the others go on, and why members have to work in turns."""


class KVMemoryError(ValueError):
    """A request does not fit into KV memory even alone."""

    def __init__(
        self, request_id: str, member: str, num_tokens: int, needed_bytes: int, held_bytes: int, limit_bytes: int
    ) -> None:
        super().__init__(
            f"request {request_id}: {num_tokens} tokens in the cache of {member} take {needed_bytes:,} bytes (in steps "
            f"of slots), and the request's other caches {held_bytes:,}; the KV limit is {limit_bytes:,} bytes"
        )


class CrowdedError(Exception):
    """A member at work beside others found no memory, and could take none from them; nothing was changed."""


class CacheDesyncError(ValueError):
    """A cache does not hold what the session says it does; found by the checks of debug mode."""

    def __init__(self, request_id: str, member: str, problem: str) -> None:
        super().__init__(f"request {request_id}: the cache of {member} {problem}")

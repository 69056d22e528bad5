"""The prefix caches of all members, as a world calls them in an operation.

For each operation of a member a world divides its requests by `waves`. For each wave it lets `look_up` the requests
whose first forward by that member it is, runs the forward, and lets `enter` what that computed, in the order of the
operation. After the operation it takes the counts. A request that ends, or gives up its memory, is released. Letter: B
requests of an operation.
"""

from collections.abc import Iterator, Sequence

from .prefix_cache import NO_COUNTS, START, Entered, Hit, MemberPrefixes, PrefixCacheSize, PrefixCounts, Tokens
from .session import Session

# The block that comes before it, and its tokens.
_Block = tuple[int, Tokens]


class PoolPrefixes:
    """A prefix cache of one `size` for each member. Mutated by all methods but `waves`."""

    __slots__ = ("_counts", "_members", "size")

    def __init__(self, size: PrefixCacheSize) -> None:
        self.size = size
        self._members: dict[int, MemberPrefixes] = {}
        self._counts: dict[int, PrefixCounts] = {}

    def member(self, level: int) -> MemberPrefixes:
        """The cache of a member."""
        known = self._members.get(level)
        if known is None:
            known = self._members[level] = MemberPrefixes(self.size)
        return known

    def waves(self, level: int, sessions: Sequence[Session]) -> Iterator[list[int]]:
        """Indices of the `[B]` requests that run in each forward; the caller runs one before it takes the next.

        A request waits for an earlier one that is about to compute the next block that its text lacks, so that no block
        is computed twice in an operation; where that block did not enter for lack of room, it waits no more.
        """
        member, size = self.member(level), self.size.block_tokens
        rest = list(range(len(sessions)))
        awaited: dict[int, _Block] = {}  # by request, the block that it waits for
        while rest:
            now, waiting = list[int](), list[int]()
            coming: set[_Block] = set()
            for index in rest:
                if not self._is_due(level, sessions[index]):
                    now.append(index)
                    continue
                text = _committed(sessions[index])
                blocks = member.find(text).blocks
                end = size * (len(blocks) + 1)
                missing = blocks[-1] if blocks else START, text[end - size : end]
                if missing in coming and end < len(text) and awaited.get(index) != missing:
                    awaited[index] = missing
                    waiting.append(index)
                    continue
                now.append(index)
                if end <= len(text):
                    coming.add(missing)
            yield now
            rest = waiting

    def look_up(self, level: int, session: Session) -> Hit | None:
        """At a member's first forward for a request, what it need not read; None at any other forward."""
        if not self._is_due(level, session):
            return None
        text = _committed(session)
        hit = self.member(level).look_up(session.request_id, text)
        session.hold_prefix(level, hit.num_tokens)
        self._count(level, PrefixCounts(len(text), hit.num_tokens, 0, 0))
        return hit

    def take_back(self, level: int, session: Session, hit: Hit) -> None:
        """Undo a look-up of a request that did not read the hit; it is looked up again."""
        self.member(level).release(session.request_id)
        session.hold_prefix(level, 0)
        self._count(level, PrefixCounts(-len(_committed(session)), -hit.num_tokens, 0, 0))

    def enter(self, level: int, session: Session) -> Entered | None:
        """Enter blocks after a forward that read all of a request's committed text; None if no full block is missing.

        Also None for a request that was not looked up.
        """
        member, size = self.member(level), self.size.block_tokens
        num_tokens = session.num_prompt + len(session.emitted)
        if not member.holds(session.request_id) or not member.missing(session.request_id, num_tokens):
            return None

        def tokens_of(index: int) -> Tokens:
            start, end = index * size, (index + 1) * size
            within = end <= session.num_prompt
            return session.prompt[start:end] if within else tuple(session.tail(start)[:size])

        before = member.num_evicted
        entered = member.enter(session.request_id, tokens_of, num_tokens)
        num_new = len(entered.blocks) - entered.num_shared
        self._count(level, PrefixCounts(0, 0, num_new, member.num_evicted - before))
        return entered

    def release(self, request_id: str) -> None:
        """Give up the references of a request in the caches of all members."""
        for member in self._members.values():
            member.release(request_id)

    def take_counts(self, level: int) -> PrefixCounts:
        """A member's counts since the last call."""
        return self._counts.pop(level, NO_COUNTS)

    def _count(self, level: int, more: PrefixCounts) -> None:
        known = self._counts.get(level, NO_COUNTS)
        self._counts[level] = PrefixCounts(*[one + other for one, other in zip(known, more, strict=True)])

    def _is_due(self, level: int, session: Session) -> bool:
        return not session.cached[level] and not self.member(level).holds(session.request_id)


def _committed(session: Session) -> Tokens:
    return session.prompt + tuple(session.emitted)

"""Memory of one member whose evicted blocks go to host memory, and come back from there."""

from ....decoding.prefixes.prefix_tree import PrefixTree, Run
from ..limits import KvLimits
from .host_tier import HostTier
from .member_kv import Keys, MemberKv


class OffloadingKv(MemberKv):
    """As `MemberKv`, but a hit goes on in host memory where device memory has no more of a text.

    `open` takes blocks for what host memory has, which evicts others as `reserve` does, and puts them into the prefix
    cache. `hits` are those of device memory alone, and so is what routers see (`hit_tokens`).

    Args:
        limits: of the member.
        host: takes what is evicted.
        member: its number there.
    """

    __slots__ = ("_host", "_member")

    def __init__(self, limits: KvLimits, host: HostTier, member: int) -> None:
        super().__init__(limits)
        self._host = host
        self._member = member
        self._tree = PrefixTree(self._evicted)

    def usable_tokens(self, keys: Keys, text_tokens: int) -> int:
        """See `MemberKv`."""
        return self._whole_hit(keys, text_tokens)[1] * self._block_tokens

    def hit_tokens(self, keys: Keys, text_tokens: int) -> int:
        """Of device memory; see `MemberKv`."""
        return super()._hit(keys, text_tokens)[0] * self._block_tokens

    def open(
        self, owner: int, keys: Keys, text_tokens: int, *, resumes: bool = False, hit_tokens: int | None = None
    ) -> int:
        """See `MemberKv`; there must be room for all of the hit, as `fits` says of the tokens of the text."""
        on_device, whole, _ = self._whole_hit(keys, text_tokens)
        if on_device < whole:  # what goes to the host while room is made must not push out what is read
            self._host.load(self._member, keys[:whole], on_device)
        super().open(owner, keys, text_tokens, resumes=resumes, hit_tokens=on_device * self._block_tokens)
        num_tokens = whole * self._block_tokens
        enough = self.reserve(owner, num_tokens)
        assert enough, "`fits` was not asked"
        self.commit(owner, num_tokens, keys)
        return num_tokens

    def _hit(self, keys: Keys, text_tokens: int) -> tuple[int, int]:
        on_device, _, num_referenced = self._whole_hit(keys, text_tokens)
        return on_device, num_referenced

    def _whole_hit(self, keys: Keys, text_tokens: int) -> tuple[int, int, int]:
        """Leading blocks of a hit on the device, of all of it, and of those on the device that somebody uses."""
        if not self.limits.prefix_cache:
            return 0, 0, 0
        within = keys[: (text_tokens - 1) // self._block_tokens]
        found = self._tree.match(within)
        whole = found.num_blocks + self._host.num_found(self._member, within, found.num_blocks)
        whole = max(0, whole - self.limits.drop_units)
        return min(found.num_blocks, whole), whole, min(found.num_referenced, whole)

    def _evicted(self, path: Run, num_blocks: int) -> None:
        self._host.put(self._member, path, len(path) - num_blocks)

"""The KV memory of one replica: every member's blocks, held by the requests of the batch."""

from collections.abc import Container, Sequence

from ...base.errors import ArgumentError, counted
from ...decoding.pool import Pool
from ...traces.workloads.arrival import Arrival
from .limits import Admission, EngineLimits, Preemption
from .memory import BlockKeys, HostMemory, MemberKv
from .requests import ServedRequest


class ReplicaMemory:
    """Counts blocks; cached tokens of a text are in `session.cached`. Letter: L levels.

    A block of computed and committed text enters the prefix cache at once. With retraction, tokens written since a
    request's admission enter when it ends, as in SGLang: a retracted request finds its prompt again, and its answer
    only as far as it was prefilled before.

    The target holds blocks for committed and pending tokens, for a requested draft, and one token more. A member below
    it holds only its prefix hit until it first runs, so that requests which do not draft take none of its blocks.

    Args:
        limits: of the replica.
        unit_tokens: of the workload's blocks.
        runs: names of members that run; None: all.

    Attributes:
        members: `[L]` of each member; None for one that keeps no keys and values, or never runs and has no limits.
            Code that takes or releases blocks outside this object reads their figures there.
        host: takes evicted blocks; None: no offloading.
        has_caches: whether any member has a prefix cache.
        windowed: levels of members that have layers with a window.

    Raises:
        ArgumentError: a model that runs without limits, blocks that do not fit the units of the workload.
    """

    def __init__(
        self, pool: Pool, limits: EngineLimits, unit_tokens: int, *, runs: Container[str] | None = None
    ) -> None:
        known = {*limits.kv, *limits.copies}
        for name in (member.name for member in pool.members if not member.model_free):
            if name not in known and (runs is None or name in runs):
                raise ArgumentError(f"`kv` must hold limits of every model that runs, {name} has none")
        for name, kv in limits.kv.items():
            if unit_tokens and kv.prefix_cache and unit_tokens % kv.block_tokens and kv.block_tokens % unit_tokens:
                raise ArgumentError(
                    f"block_tokens of {name} must divide the {unit_tokens} tokens of the workload's blocks, or be a "
                    f"multiple of them, got {kv.block_tokens}"
                )
        self.host = None if limits.offload is None else HostMemory(limits.offload)
        host = self.host
        kvs = {name: MemberKv(own) if host is None else host.member(name, own) for name, own in limits.kv.items()}
        self.members = tuple(None if member.model_free else kvs.get(member.name) for member in pool.members)
        self._names = pool.names
        self._models = [(level, kv) for level, kv in enumerate(self.members) if kv is not None]
        self._target = pool.target_level
        self._limits = limits
        self._unit_tokens = unit_tokens
        self._keys: dict[int, list[BlockKeys]] = {}
        # One member of each group with the same keys of blocks.
        kinds = {(kv.limits.prefix_cache, kv.limits.block_tokens): kv for _, kv in self._models}
        self._kinds = list(kinds.values())
        self._kind_of = [list(kinds).index((kv.limits.prefix_cache, kv.limits.block_tokens)) for _, kv in self._models]
        self._caching = [(index, level, kv) for index, (level, kv) in enumerate(self._models) if kv.limits.prefix_cache]
        self.has_caches = bool(self._caching)
        self.windowed = [level for level, kv in self._models if kv.limits.window is not None]
        self._used_blocks: list[int] = []
        self._counted_share = 1.0
        self._has_changed = True
        self._retracts = limits.preemption == Preemption.fewest_tokens
        self._whole_text = limits.admission == Admission.whole_prompt
        self._prefilled: dict[int, int] = {}  # with retraction: length of text of the latest prefill

    @property
    def used_blocks(self) -> list[int]:
        """`[L]`, 0 for a member without memory; not to be changed."""
        if self._has_changed:
            self._count()
        return self._used_blocks

    @property
    def free_share(self) -> float:
        """Share of the blocks that are free or can be taken, of the member with the least."""
        if self._has_changed:
            self._count()
        return self._counted_share

    def _count(self) -> None:
        self._used_blocks = used = [0] * len(self.members)
        least = 1.0
        for level, kv in self._models:
            used[level] = kv.used_blocks
            share = (kv.limits.num_blocks - used[level]) / kv.limits.num_blocks
            if share < least:
                least = share
        self._counted_share, self._has_changed = least, False

    def refuses(self, arrival: Arrival, *, answer_tokens: int | None = None) -> str:
        """Why a request can never run, in words without its id; "" if it can. `answer_tokens` here; None: all."""
        tokens = arrival.prompt_tokens + arrival.output_tokens
        for name, most in self._limits.max_model_len.items():
            if tokens > most:
                return f"longer than the {counted(most, 'token')} of max_model_len of {name}"
        if answer_tokens is not None:
            tokens = arrival.prompt_tokens + answer_tokens
        for level, kv in self._models:
            if tokens > (held := kv.limits.longest_text):
                return f"longer than the {counted(int(held), 'token')} that KV memory of {self._names[level]} holds"
        return ""

    @property
    def target(self) -> MemberKv:
        """Blocks of the target."""
        return self._models[-1][1]

    def cached_tokens(self, arrival: Arrival, kv: MemberKv) -> int:
        """Leading tokens of a prompt in a prefix cache; changes nothing."""
        # Without the private keys after them: those of serial 0 are another request's.
        return kv.hit_tokens(self.block_keys(arrival, 0, kv).of_prompt(), arrival.prompt_tokens)

    def block_keys(self, arrival: Arrival, serial: int, kv: MemberKv) -> BlockKeys:
        """Of the blocks of a request's text in a member's memory."""
        blocks, answer = (arrival.blocks, arrival.answer) if kv.limits.prefix_cache else ((), ())
        return BlockKeys(blocks, self._unit_tokens, kv.limits.block_tokens, arrival.prompt_tokens, serial, answer)

    def admit(self, session: ServedRequest, budget: int) -> int:
        """Take prefix hits, and blocks for the target's first chunk; sets the session's cached tokens.

        A member below the target must also have room for the text, though it takes no blocks yet: else the request
        would be preempted at its first draft. With `Admission.whole_prompt` the target must have room for all of the
        text, though blocks are taken for the chunk alone: as in `allocate_slots` of vLLM, without the next token.

        Returns:
            Tokens of the chunk, at most `budget`; 0: memory is short, and nothing has changed.
        """
        text = session.num_text
        keys = self._keys_of(session)
        target_keys, target = keys[-1], self._models[-1][1]
        hit = target.usable_tokens(target_keys, text)
        chunk = min(text - hit, budget)
        upto = hit + chunk
        if self._whole_text and not target.fits(target_keys, text, text):
            return 0
        wanted = [text + 1] * (len(keys) - 1) + [upto + (upto == text)]
        return chunk if self._opened(session, keys, wanted, resumes=session.scheduled) else 0

    def has_room(self, session: ServedRequest, num_tokens: int) -> bool:
        """Whether the target could hold `num_tokens` for a waiting request; changes nothing."""
        return self._models[-1][1].fits(self._keys_of(session)[-1], session.num_text, num_tokens)

    def receive(self, session: ServedRequest) -> int | None:
        """Take prefix hits, and blocks for a text that was read elsewhere; sets the session's cached tokens.

        These are all except its newest token in the target's, as after a prefill here, and hits in the others'.

        Returns:
            Tokens that the target's prefix cache does not hold, >= 0; None: memory is short, and nothing has changed.
        """
        text, level = session.num_text, self._target
        keys = self._keys_of(session)
        if not self._opened(session, keys, [text + 1] * len(keys), resumes=False):
            return None
        found, session.cached[level] = session.cached[level], text - 1
        self.slide(session)
        return text - 1 - found

    def _keys_of(self, session: ServedRequest) -> list[BlockKeys]:
        keys = self._keys.get(session.serial)
        if keys is None:
            kinds = [self.block_keys(session.arrival, session.serial, kv) for kv in self._kinds]
            keys = self._keys[session.serial] = [kinds[kind] for kind in self._kind_of]
        return keys

    def _opened(
        self, session: ServedRequest, keys: Sequence[BlockKeys], wanted: Sequence[int], *, resumes: bool
    ) -> bool:
        """Take hits of all models if each then has room for its `wanted` tokens; holds the target's blocks."""
        text, serial = session.num_text, session.serial
        members = [(own_keys, level, kv) for own_keys, (level, kv) in zip(keys, self._models, strict=True)]
        if not all(kv.fits(own, text, tokens) for (own, _, kv), tokens in zip(members, wanted, strict=True)):
            return False
        for own_keys, level, kv in reversed(members):  # the target first: its hit was looked up
            held = kv.open(serial, own_keys, text, resumes=resumes)
            session.cached[level] = session.room_held[level] = session.full_at[level] = held
        self._has_changed = True
        self.reserve(session, self._target, wanted[-1])
        if self._retracts:
            self._prefilled[serial] = text
        return True

    def reserve(self, session: ServedRequest, level: int, num_tokens: int) -> bool:
        """Hold blocks of a member for `num_tokens` of a request in total, never more than its text will have.

        False, and nothing has changed, if memory is short.
        """
        kv = self.members[level]
        if kv is None:
            return True
        wanted = min(num_tokens, session.most_tokens)
        if wanted <= session.room_held[level]:
            return True
        if not kv.reserve(session.serial, wanted):
            return False
        size = kv.limits.block_tokens
        session.room_held[level] = -(-wanted // size) * size
        self._has_changed = True
        return True

    def grow(self, session: ServedRequest, level: int, num_units: int) -> int:
        """Hold a member's blocks for `num_units` more of a request's text.

        There must be enough. Returns how many more these are.
        """
        kv = self.members[level]
        assert kv is not None
        blocks = kv.grow(session.serial, num_units)
        assert blocks is not None, "the caller counted the blocks"
        session.room_held[level] += num_units * kv.limits.block_tokens
        self._has_changed = True
        return blocks

    def slide(self, session: ServedRequest) -> None:
        """Free the blocks before the windows of a request, of which members have read more of its text."""
        for level in self.windowed:  # a member that has not drafted yet will read all of the text
            if session.room_held[level]:
                self.give_up(session, level, min(session.cached[level], session.num_text - 1))

    def give_up(self, session: ServedRequest, level: int, read_tokens: int) -> int:
        """Free a member's blocks before the window of what follows `read_tokens` of a text; returns how many."""
        kv = self.members[level]
        assert kv is not None
        blocks = kv.slide(session.serial, read_tokens)
        if blocks:
            self._has_changed = True
        return blocks

    def commit(self, session: ServedRequest, num_text: int = 0) -> None:
        """Put full blocks of computed and committed tokens into the prefix caches; `num_text` 0: of all its text."""
        for index, level, kv in self._caching:
            text = self._prefilled[session.serial] if self._retracts else num_text or session.num_text
            tokens = min(session.cached[level], text)
            if tokens >= session.full_at[level]:
                serial, size = session.serial, kv.limits.block_tokens
                kv.commit(serial, tokens, self._keys[serial][index])
                session.full_at[level] = (tokens // size + 1) * size
                self._has_changed = True

    def close(self, session: ServedRequest) -> None:
        """Release the blocks of a request that has ended."""
        if self._retracts:
            self._prefilled[session.serial] = session.num_text
            self.commit(session)
        self.release(session.serial)

    def release(self, serial: int) -> None:
        """Release the blocks of a request by serial, without committing any."""
        self._prefilled.pop(serial, None)
        self.preempt(serial)
        del self._keys[serial]

    def leave(self, session: ServedRequest, *, runs: bool) -> None:
        """Forget a request that leaves before its end; `runs`: it runs, so it holds blocks."""
        self._prefilled.pop(session.serial, None)
        if runs:
            self.preempt(session.serial)
        self._keys.pop(session.serial, None)

    def preempt(self, serial: int) -> None:
        """Release the blocks of a request by serial; it finds full ones again while they are cached."""
        self._has_changed = True
        for _, kv in reversed(self._models):
            kv.close(serial)

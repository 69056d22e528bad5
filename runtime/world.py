"""The world of real models: operations of the loop are batched forwards of transformers models."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Self, TypeVar

from ..base.errors import ArgumentError
from ..decoding.prefix_cache import PrefixCounts
from ..decoding.prefix_caches import PoolPrefixes
from ..decoding.results import DraftResults, Failed, Forward, OverlapResults, Row, Rows, VerifyResults
from ..decoding.rules import Signal
from ..decoding.session import Session
from ..decoding.steps import Draft, Overlap, Step
from ..decoding.world import DraftItem, OverlapItem, TreeItem, VerifyItem
from ..traces.meta import Sampling
from .ahead import AheadPace, Lanes, Pace, why_no_threads
from .caches import MemberKV
from .clock import Clock, SharedClock
from .coupled_noise import RequestNoise, noise_of
from .draft import DraftProcessor, FeatureReader, ForeignDrafter
from .executor import Executor, Phases, RollbackProcessor
from .forward import ModelForward
from .forward_kinds import AheadKind, ForwardKind
from .pools.members import LoadedMembers
from .rejection_sampling import Chance, SeededChance
from .sampler import Sampler, make_sampler
from .state import CacheDesyncError, PrefixSharing, RequestState, StateManager, check_shareable
from .threads import Memory
from .trees import TreeProcessor
from .verify import Chunk, VerifyProcessor

Item = TypeVar("Item", DraftItem, VerifyItem, OverlapItem, TreeItem)


class TorchWorld:
    """Runs operations with the models of a pool, all requests of an operation in one forward.

    In a `with` statement it frees requests' memory at the end, also if an error ends it and is kept with all its
    frames. Nothing that a world holds refers back to it, so reference counts free the rest.

    Args:
        pool: a member's index is its level.
        sampling: greedy, coupled or rejection.
        memory: of keys and values.
        forward: how models run, see `forward_choice.choose_forward`.
        share_weights: whether fused weights may replace the modules' own (the pool's models may be rearranged).
        debug: before each step compare every cache with what its session says; a request that differs fails alone.
        make_chance: of rejection sampling, called with a request's id; None takes the stream of seed and id.
        make_noise: of coupled sampling, called in the same way; None takes the noise of seed and id.
        sampler: chooses tokens; None takes that of `sampling`.
        watch: wraps each member's forward with one that notes its calls; None: not wrapped.
        overlap: how members work at the same time where a policy lets them: in `threads`, in `turns`, or `auto`, by the
            first operations of the run (`ahead.pace`). The results are the same.

    Attributes:
        clock: measures, with all work of the models' devices done.
        forward_names: by member, how it runs (`fused`, `modules` or `compiled`).
    """

    def __init__(
        self,
        *,
        pool: LoadedMembers,
        sampling: Sampling,
        memory: Memory | None = None,
        forward: ForwardKind = "auto",
        share_weights: bool = True,
        debug: bool = False,
        make_chance: Callable[[str], Chance] | None = None,
        make_noise: Callable[[str], RequestNoise | None] | None = None,
        sampler: Sampler | None = None,
        watch: Callable[[ModelForward], ModelForward] | None = None,
        overlap: AheadKind = "auto",
    ) -> None:
        devices = {member.model.device for member in pool.members if member.model is not None}
        self.clock = Clock(devices) if pool.ranks is None else SharedClock(devices, pool.ranks)
        self.pool, self.sampling = pool, sampling
        self._make_chance, self._make_noise, self._debug, self._num_opened = make_chance, make_noise, debug, 0
        self.memory = memory or Memory()
        if forward == "compiled" and self.memory.cache != "slots":
            raise ArgumentError(f"`cache` must be slots with `forward` compiled, got {self.memory.cache!r}")
        self._forwards = {
            level: pool.forward(level, forward, share_weights=share_weights)
            for level, member in enumerate(pool.members)
            if member.model is not None
        }
        if watch is not None:
            self._forwards = {level: watch(inner) for level, inner in self._forwards.items()}
        self.forward_names = {pool.members[level].name: forward.name for level, forward in self._forwards.items()}
        names = [member.name for member in pool.members]
        self._limits = self.memory.limits(forward.kv_shape.device for forward in self._forwards.values())
        if (size := self.memory.prefixes) is not None:
            check_shareable(pool, self._forwards, size, self._limits)
        prefixes = None if size is None else PoolPrefixes(size)
        self.manager = StateManager(
            names,
            partial(_make_cache, self.memory, self._forwards),
            limits=self._limits,
            shared=pool.ranks is not None,
            prefixes=prefixes,
        )
        # No policy sees seconds of forwards: of several processes each measures its own.
        own_clock = self.clock if pool.ranks is None else Clock(devices)
        sharing = PrefixSharing(self.manager, prefixes)
        how, reader = sampler or make_sampler(sampling), pool.reader(forward, share_weights=share_weights)
        said = {level: tokens for level, member in enumerate(pool.members) if (tokens := member.said) is not None}
        self._executor = Executor(self._forwards, self.manager, how, own_clock, sharing, reader, said)
        foreign = self._foreign_drafters()
        self._foreign = frozenset(foreign)
        rollback = RollbackProcessor(self.manager, foreign=self._foreign, reader=pool.feature_level)
        readers = {} if reader is None else {reader[0]: FeatureReader(reader[0], self._executor)}
        self._draft = DraftProcessor(pool.members, self._executor, rollback, foreign=foreign, readers=readers)
        self._verify = VerifyProcessor(pool.members, self._executor, rollback, readers=readers)
        self._trees = TreeProcessor(self._executor, rollback, names)
        compiled, whole = "compiled" in self.forward_names.values(), pool.ranks is None
        why_not = why_no_threads(sampling.mode, whole=whole, limited=bool(self._limits), compiled=compiled)
        self._ahead = Lanes(pool.members, self._executor, foreign, self.clock, Pace(overlap, why_not))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.manager.drop_all()

    @property
    def phases(self) -> Phases:
        """Seconds of operations so far by kind of work; those of members that run at the same time are all added."""
        return self._executor.phases + self._ahead.phases()

    @property
    def ahead(self) -> AheadPace:
        """How members worked at the same time so far."""
        return self._ahead.pace.told()

    def open(self, session: Session) -> None:
        """Add a request; its prompt is read by each member's first forward."""
        session.place = 0
        self._num_opened += 1
        noise, chance = None, None
        if self.sampling.mode == "rejection":
            seed, name = self.sampling.seed, session.request_id
            assert seed is not None
            chance = self._make_chance(name) if self._make_chance else SeededChance(seed=seed, request_id=name)
        elif self._make_noise is not None:
            noise = self._make_noise(session.request_id)
        else:
            noise = noise_of(self.sampling, session.request_id, self.pool.vocab_size)
        self.manager.open(RequestState(session, self._num_opened, noise=noise, chance=chance))

    def close(self, session: Session) -> None:
        """Free what the request held."""
        self.manager.close(session.request_id)

    def preempt(self, session: Session) -> None:
        """Free the request's caches; it is still open, and later forwards read it again."""
        self.manager.give_up(session.request_id)

    def signal(self, session: Session, index: int) -> Signal:
        """The drafter's signal of the pending token at `index`."""
        return self.manager.states[session.request_id].views[session.places[index]].signal()

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        """Let a member draft; requests whose logits or caches are broken fail alone."""
        start_s, sound, failed = self._begin(level, items)
        rows = self._draft.run(level, sound) if sound or not failed else []
        return DraftResults(_with_failed(items, rows, failed), *self._since(level, start_s))

    def verify(self, level: int, items: Sequence[VerifyItem], chunks: Sequence[Chunk] = ()) -> VerifyResults:
        """Let a member judge; requests whose logits or caches are broken fail alone.

        It reads `chunks`, of other requests than `items`, in the same forward, as the next tokens of its caches. The
        caller updates the sessions' `cached` afterwards.

        Raises:
            MemoryError: a chunk has no room.
        """
        start_s, sound, failed = self._begin(level, items)
        rows = self._verify.run(level, sound, chunks) if sound or not failed else []
        return VerifyResults(_with_failed(items, rows, failed), *self._since(level, start_s))

    def check_ahead(self) -> None:
        """Members may always work ahead here, in threads or in turns."""

    def overlap(self, levels: tuple[int, ...], items: Sequence[OverlapItem]) -> OverlapResults:
        """Let several members work for the same requests; those whose logits or caches are broken fail alone."""
        start_s, sound, failed = self._begin(levels[0], items)
        rows = self._ahead.run(levels, sound) if sound or not failed else []
        return OverlapResults(
            _with_failed(items, rows, failed), self._ahead.parts, self.clock.now_s() - start_s, self.manager.free_share
        )

    def check_tree(self, level: int) -> None:
        """Raises ValueError under rejection sampling: branches would have to be drawn without replacement."""
        if self.sampling.mode == "rejection":
            raise ValueError("token trees are drafted under greedy and coupled sampling, got rejection")

    def draft_trees(self, level: int, items: Sequence[TreeItem]) -> DraftResults:
        """Let a member draft trees; requests whose logits or caches are broken fail alone."""
        start_s, sound, failed = self._begin(level, items)
        rows = self._trees.draft(level, sound) if sound or not failed else []
        return DraftResults(_with_failed(items, rows, failed), *self._since(level, start_s))

    def verify_trees(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Let a member judge trees; requests whose logits or caches are broken fail alone."""
        start_s, sound, failed = self._begin(level, items)
        rows = self._trees.verify(level, sound) if sound or not failed else []
        return VerifyResults(_with_failed(items, rows, failed), *self._since(level, start_s))

    def _begin(self, level: int, items: Sequence[Item]) -> tuple[float, list[Item], dict[str, Failed]]:
        """(start of an operation, seconds; items that run; requests with wrong caches, as failures by id).

        Caches are compared with the sessions only in debug mode.
        """
        if self.pool.ranks is not None:
            self.pool.ranks.check_alike((level, [_asked(session, step) for session, step in items]))
        start_s = self.clock.now_s()
        self._executor.begin()
        failed: dict[str, Failed] = {}
        for session, _ in items:
            self.manager.states[session.request_id].forget_all_but(session.places)
            if self._debug:
                try:
                    self.manager.check(session, foreign=self._foreign)
                except CacheDesyncError as error:
                    failed[session.request_id] = Failed(error)
        return start_s, [item for item in items if item[0].request_id not in failed], failed

    def _since(self, level: int, start_s: float) -> tuple[list[Forward], float, float, PrefixCounts]:
        """Of the operation that ran: (forwards, seconds, share of free memory, prefix counts)."""
        counts = self._executor.sharing.take_counts(level)
        return list(self._executor.forwards_run()), self.clock.now_s() - start_s, self.manager.free_share, counts

    def _foreign_drafters(self) -> dict[int, ForeignDrafter]:
        drafters = {}
        for level, member in enumerate(self.pool.members):
            if member.tokenizer is not None and member.model is not None:
                drafters[level] = ForeignDrafter(
                    level,
                    self.manager,
                    self.pool.alignment(member.name),
                    eos=frozenset(member.eos_token_ids),
                    context_tokens=self.pool.context_tokens,
                )
        return drafters


def _with_failed(items: Sequence[Item], rows: Rows[Row], failed: Mapping[str, Failed]) -> Rows[Row]:
    """The rows of the items that ran, with earlier failures in their places."""
    ran = iter(rows)
    return [failed.get(session.request_id) or next(ran) for session, _ in items]


def _make_cache(memory: Memory, forwards: Mapping[int, ModelForward], level: int) -> MemberKV:
    return memory.make_cache(forwards[level])


def _asked(session: Session, step: Step) -> tuple[object, ...]:
    """Everything that determines what a step feeds to models, in plain values."""
    parts = step.steps if isinstance(step, Overlap) else (step,)
    asked = [(type(part).__name__, getattr(part, "model", ""), _length(part)) for part in parts]
    return session.request_id, asked, len(session.emitted), session.emitted[-1:], session.tokens


def _length(step: object) -> object:
    """The number of tokens that a step drafts, or its tree's shape; 0 for a Verify, which judges all pending tokens."""
    return step.tokens if isinstance(step, Draft) else getattr(step, "shape", 0)

"""Limits of one replica: of a step, and of each member's blocks of keys and values."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from math import inf

from ...base.errors import check_least

# Least tokens and rows for which vLLM reads a common prefix once (`use_cascade_attention`).
COMMON_TOKENS, COMMON_ROWS = 256, 8


class Preemption(StrEnum):
    """Which request is preempted where blocks are short, and where it waits then; docs/kv-memory.md."""

    latest = "latest"  # vLLM: the latest that was admitted, before all others
    fewest_tokens = "fewest-tokens"  # SGLang: the one with the shortest answer so far, after all others


class Admission(StrEnum):
    """When a waiting request is admitted to the batch; docs/kv-memory.md."""

    first_chunk = "first-chunk"  # vLLM before 0.19: when there are blocks for the first chunk of its text
    whole_prompt = "whole-prompt"  # vLLM since 0.19, `scheduler_reserve_full_isl`: when there are for all of its text
    estimate = "estimate"  # SGLang: when its answer and an estimate of the others' answers also fit


@dataclass(frozen=True, slots=True, kw_only=True)
class KvWindow:
    """How a member with windows fills blocks, as in vLLM's hybrid memory: its layers are groups of equal size.

    A block belongs to one group. Those with a window give up blocks before it as a request's text grows.
    """

    tokens: int  # of the window, >= 1
    whole: int  # groups that keep all of a text, >= 0
    near: int  # groups that keep its window, >= 1
    most_new: int  # tokens that a forward adds to a text at most, >= 1: a chunk of a prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLimits:
    """Memory of one member's keys and values.

    Raises:
        ArgumentError: a number out of range.
    """

    num_blocks: int  # of the member, >= 1
    block_tokens: int = 16  # tokens that a block holds, >= 1
    prefix_cache: bool = True  # whether full blocks are kept for later requests with the same text
    # last blocks of a prefix hit that are not used, >= 0: older vLLM dropped one of a request whose drafter reads one
    # token ahead (EAGLE, MTP), and all members computed it again
    drop_units: int = 0
    window: KvWindow | None = None  # of layers with a window; None: all layers keep all tokens, in one block

    def __post_init__(self) -> None:
        check_least("`num_blocks`", self.num_blocks, 1)
        check_least("`block_tokens`", self.block_tokens, 1)
        check_least("`drop_units`", self.drop_units, 0)

    @property
    def told(self) -> dict[str, object]:
        """All of it for a file, a window only where there is one."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def groups(self) -> int:
        """Blocks that hold `block_tokens` tokens in all layers."""
        return 1 if self.window is None else self.window.whole + self.window.near

    @property
    def num_tokens(self) -> int:
        """Tokens that all blocks hold in all layers."""
        return self.num_blocks // self.groups * self.block_tokens

    @property
    def most_near(self) -> int:
        """Blocks of a text that a group with a window holds at most: of the window, and of a forward's new tokens."""
        window = self.window
        return 0 if window is None else (window.tokens + window.most_new - 2) // self.block_tokens + 2

    @property
    def longest_text(self) -> float:
        """Tokens of the longest text for which there is room, infinite where windows are all that is held."""
        window, fills = self.window, self.num_blocks // self.groups
        if window is None or fills < self.most_near:
            return fills * self.block_tokens
        if not window.whole:
            return inf
        return (self.num_blocks - window.near * self.most_near) // window.whole * self.block_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """When a shared prefix is read once for all rows."""

    least_tokens: int = COMMON_TOKENS  # of such a text, >= 0; default as in vLLM
    # of a forward, with `groups` of those that share a text, >= 2; default as in vLLM
    least_rows: int = COMMON_ROWS
    # whether any text that some rows of a forward share is read once for these, as multi-level cascades do (FlashInfer;
    # Hydragen, arXiv:2402.05099); else only a prefix of all running requests, as in vLLM
    groups: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadedMember:
    """One member's part in offloading."""

    block_bytes: int  # of a block, >= 1
    block_ps: int  # picoseconds to load a block from host memory, >= 0
    device: str  # of the member; members of a device share its link


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Host memory for blocks that prefix caches evict."""

    host_bytes: int  # of host memory for all members together, >= 1
    members: Mapping[str, OffloadedMember]  # at least one, by name; others are not offloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Limits of an engine.

    Raises:
        ArgumentError: a number out of range, or no member.
    """

    max_num_seqs: int  # most requests in the batch, >= 1
    token_budget: int  # most tokens fed in a step of the target, >= 1: prefill chunks, decoding and verification
    kv: Mapping[str, KvLimits]  # of each member with keys and values, by name; prompt lookup has none
    preemption: Preemption = Preemption.latest  # which request is preempted where blocks are short
    admission: Admission = Admission.first_chunk  # when a waiting request is admitted
    # most tokens of prompt and answer together for a member, >= 1, by name; a longer request is rejected. For members
    # that are not named only memory is the limit.
    max_model_len: Mapping[str, int] = field(default_factory=dict)
    # when the target's forward reads a shared prefix once; None: never
    shared_prefix: SharedPrefix | None = None
    offload: Offload | None = None  # host memory for blocks that prefix caches evict; None: none
    copies: tuple[str, ...] = ()  # recorded members that copy text, as a log's "ngram": they have no keys and values

    def __post_init__(self) -> None:
        check_least("`max_num_seqs`", self.max_num_seqs, 1)
        check_least("`token_budget`", self.token_budget, 1)
        check_least("`kv` members", len(self.kv), 1)
        for name, most in self.max_model_len.items():
            check_least(f"`max_model_len` of {name}", most, 1)

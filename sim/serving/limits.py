"""What bounds one replica: how much a step may take, and how many blocks of keys and values each member has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ...base.errors import check_least

# From how many tokens on, and for how many rows, vLLM reads a common prefix once (`use_cascade_attention`).
COMMON_TOKENS, COMMON_ROWS = 256, 8


class Preemption(StrEnum):
    """Who is put back where blocks are short, and where it waits then; docs/kv-memory.md."""

    latest = "latest"  # vLLM: the latest that was admitted, before all others
    fewest_tokens = "fewest-tokens"  # SGLang: the one with the shortest answer so far, after all others


class Admission(StrEnum):
    """When a request that waits gets into the batch; docs/kv-memory.md."""

    first_chunk = "first-chunk"  # vLLM before 0.19: when there are blocks for the first chunk of its text
    whole_prompt = "whole-prompt"  # vLLM since 0.19, `scheduler_reserve_full_isl`: when there are for all of its text
    estimate = "estimate"  # SGLang: when its answer, and what others are guessed to write, fits as well


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLimits:
    """Memory of one member's keys and values.

    Raises:
        ArgumentError: a number out of range.
    """

    num_blocks: int  # that the member has, >= 1
    block_tokens: int = 16  # tokens that a block holds, >= 1
    prefix_cache: bool = True  # whether full blocks are kept for later requests with the same text
    # last blocks of a prefix hit that are not taken, >= 0: older vLLM took one from a request whose drafter reads one
    # token ahead (EAGLE, MTP), and all members computed it again
    drop_units: int = 0

    def __post_init__(self) -> None:
        check_least("`num_blocks`", self.num_blocks, 1)
        check_least("`block_tokens`", self.block_tokens, 1)
        check_least("`drop_units`", self.drop_units, 0)

    @property
    def num_tokens(self) -> int:
        """That all blocks hold."""
        return self.num_blocks * self.block_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """When a text that requests begin with is read once for all of their rows.

    Raises:
        ArgumentError: a number out of range.
    """

    least_tokens: int = COMMON_TOKENS  # of such a text, >= 0. By default as vLLM has it.
    # of a forward, and with `groups` of those that share a text, >= 2. By default as vLLM has it.
    least_rows: int = COMMON_ROWS
    # whether any text that some rows of a forward share is read once for these, as multi-level cascades do (FlashInfer;
    # Hydragen, arXiv:2402.05099); else only one that every running request begins with, as in vLLM
    groups: bool = False

    def __post_init__(self) -> None:
        check_least("`least_tokens`", self.least_tokens, 0)
        check_least("`least_rows`", self.least_rows, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadedMember:
    """One member's part in offloading.

    Raises:
        ArgumentError: a number out of range.
    """

    block_bytes: int  # of a block, >= 1
    block_ps: int  # picoseconds that a block takes from host memory, >= 0
    device: str  # that it lies on; members of a device share its link

    def __post_init__(self) -> None:
        check_least("`block_bytes`", self.block_bytes, 1)
        check_least("`block_ps`", self.block_ps, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Where blocks go that prefix caches evict.

    Raises:
        ArgumentError: a number out of range, or no member.
    """

    host_bytes: int  # of host memory for all members together, >= 1
    members: Mapping[str, OffloadedMember]  # by name; others are not offloaded

    def __post_init__(self) -> None:
        check_least("`host_bytes`", self.host_bytes, 1)
        check_least("`offload` members", len(self.members), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What an engine may do at once.

    Raises:
        ArgumentError: a number out of range, or no member.
    """

    max_num_seqs: int  # requests in the batch at most, >= 1
    token_budget: int  # tokens that a step of the target feeds at most, >= 1: prefill chunks, decoding and verification
    kv: Mapping[str, KvLimits]  # of each member that keeps keys and values, by name; prompt lookup keeps none
    preemption: Preemption = Preemption.latest  # who is put back where blocks are short
    admission: Admission = Admission.first_chunk  # when a request that waits gets into the batch
    # tokens of prompt and answer together that a member takes at most, >= 1, by name; a longer request is rejected. Of
    # members that are not named, memory alone is the limit.
    max_model_len: Mapping[str, int] = field(default_factory=dict)
    # when a text that all rows begin with is read once by a forward of the target; None: never
    shared_prefix: SharedPrefix | None = None
    offload: Offload | None = None  # where blocks go that prefix caches evict, and come back from; None: nowhere

    def __post_init__(self) -> None:
        check_least("`max_num_seqs`", self.max_num_seqs, 1)
        check_least("`token_budget`", self.token_budget, 1)
        check_least("`kv` members", len(self.kv), 1)
        for name, most in self.max_model_len.items():
            check_least(f"`max_model_len` of {name}", most, 1)

"""What a check of a pool reports of its members, its devices and itself; needs no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberCheck:
    """One member. None: unknown, or does not apply to prompt lookup.

    Name, dtype and device are as in the pool file; a submodel has those of its model, `none` is prompt lookup's.
    """

    name: str
    kind: str  # `model`, `submodel` or `ngram`
    dtype: str
    device: str  # `split` where each process has its own
    tokenizer: str  # `the pool's`, or the place of its own
    architecture: str | None = None  # class of the model
    vocab_size: int | None = None  # rows of its embedding
    head_tokens: int | None = None  # number of them that it can write, if only a part
    eos_token_ids: tuple[int, ...] | None = None  # tokens that end a text
    num_parameters: int | None = None  # tied ones once
    # that it adds to the pool; of a submodel its own, which only `low_rank` gives it
    weight_bytes: int | None = None
    kv_bytes_per_token: int | None = None  # keys and values of one token of context
    # only loading shows whether it obeys its masks; of a submodel, whether it equals its model without the layers
    masks_tried_at_load: bool = False
    problems: tuple[str, ...] = ()  # why it cannot be used, a line each


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNeed:
    """Memory on one device."""

    device: str  # by name
    weight_bytes: int  # of all members on it
    copy_bytes: int  # most bytes of copies of weights, where forwards are fused and other layouts are faster
    choice_bytes: int  # most bytes for choosing forwards, beside the weights and their copies
    kv_bytes: int  # of one request that fills the pool's context
    total_bytes: int  # that it has


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCheck:
    """What is known of a pool without its weights."""

    name: str
    context_tokens: int  # longest context
    num_tokens: int | None  # of the pool's tokenizer; None where it cannot be read
    members: tuple[MemberCheck, ...]  # smallest first, the target last
    devices: tuple[DeviceNeed, ...]  # what each has to hold
    problems: tuple[str, ...]  # of the pool as a whole, a line each

    @property
    def works(self) -> bool:
        """Whether the pool has no problem."""
        return not self.problems and not any(member.problems for member in self.members)

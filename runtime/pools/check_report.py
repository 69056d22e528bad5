"""What a check of a pool reports of its members, its devices and itself; needs no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberCheck:
    """One member. What could not be found out is None; of prompt lookup nothing is to be.

    Attributes:
        name, dtype, device: as in the pool file; a submodel has those of its model, `none` is prompt lookup's. A
            device is `split` where each process has its own.
        kind: `model`, `submodel` or `ngram`.
        architecture: class of the model.
        tokenizer: `the pool's`, or where its own lies.
        vocab_size: rows of its embedding.
        head_tokens: of them, those that it can say where it says a part only.
        eos_token_ids: tokens that end a text.
        num_parameters: tied ones once.
        weight_bytes: that it adds to the pool; of a submodel those of its own, which only `low_rank` gives it.
        kv_bytes_per_token: keys and values of one token of context.
        masks_tried_at_load: whether only loading it tells that it looks where its attention masks say; of a submodel,
            that it says what its model says without the layers left out.
        problems: why it cannot be used, a line each.
    """

    name: str
    kind: str
    dtype: str
    device: str
    tokenizer: str
    architecture: str | None = None
    vocab_size: int | None = None
    head_tokens: int | None = None
    eos_token_ids: tuple[int, ...] | None = None
    num_parameters: int | None = None
    weight_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    masks_tried_at_load: bool = False
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNeed:
    """Memory on one device.

    Attributes:
        device: by name.
        weight_bytes: of all members on it.
        copy_bytes: that copies of weights take at most, where forwards are fused and other layouts are quicker.
        choice_bytes: that choosing forwards takes at most beside the weights and their copies.
        kv_bytes: of one request that fills the pool's context.
        total_bytes: that it has.
    """

    device: str
    weight_bytes: int
    copy_bytes: int
    choice_bytes: int
    kv_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCheck:
    """A pool as far as it is known without weights.

    Attributes:
        name: of the pool.
        context_tokens: longest context.
        num_tokens: of the pool's tokenizer; None where it cannot be read.
        members: smallest first, the target last.
        devices: what each has to hold.
        problems: of the pool as a whole, a line each.
    """

    name: str
    context_tokens: int
    num_tokens: int | None
    members: tuple[MemberCheck, ...]
    devices: tuple[DeviceNeed, ...]
    problems: tuple[str, ...]

    @property
    def works(self) -> bool:
        """Whether nothing speaks against the pool."""
        return not self.problems and not any(member.problems for member in self.members)

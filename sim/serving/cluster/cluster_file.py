"""The cluster file: which replicas there are, on what devices, within what limits, and who routes. As TOML."""

from pathlib import Path
from typing import Annotated, Any, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ....strict_toml import TomlFileError, checked_toml, read_toml
from ....traces.meta import MOST, NAME_PATTERN
from ....traces.quantised import WIDTHS, Arithmetic
from ....traces.workloads.exact_seconds import MOST_PS, PS_PER_S
from ..limits import COMMON_ROWS, COMMON_TOKENS, Admission, Preemption
from ..roles import Role

# What is assumed for activations, CUDA graphs and the engine itself, where a file does not say; docs/cluster.md.
ACTIVATION_RESERVE_BYTES = 2_000_000_000
# Of vLLM v0.30.0, `vllm/config/cache.py`: `gpu_memory_utilization`, `DEFAULT_BLOCK_SIZE`, `enable_prefix_caching`.
MEMORY_SHARE = 0.92
BLOCK_TOKENS = 16
PREFIX_CACHE = True
MOST_REPLICAS = 10_000
LEAST_STALE_S = 1e-6  # below a picosecond it would be 0 on the clock, and a run would do little but look

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=MOST)]
MOST_NAME, MOST_TEXT = 200, 4096  # characters: of what tables show, and of a path or a policy
Name = Annotated[str, Field(min_length=1, max_length=MOST_NAME)]
Text = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]


class ClusterFileError(TomlFileError):
    """One thing that is wrong with a cluster file, or with what it asks of a recording."""


class Table(BaseModel):
    """Base of the tables of a cluster file: unknown keys and values of another kind are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DeviceTable(Table):
    """Figures of a device that the sheet does not have; attributes as of `Device`.

    Attributes:
        like: device of the sheet that has what is not given here; without it the first three are needed.
        flops_per_s: dense peak by dtype, and of fp8, fp4 and int8 units.
        bytes_per_s: memory bandwidth.
        memory_bytes: of device memory.
        link_bytes_per_s: to others of its kind, one direction.
        link_latency_s: seconds an all-reduce adds to its bytes.
        layer_launch_s: seconds a layer adds.
    """

    like: Text | None = None
    flops_per_s: dict[str, Positive] | None = None
    bytes_per_s: Positive | None = None
    memory_bytes: Positive | None = None
    link_bytes_per_s: Positive | None = None
    link_latency_s: NotNegative | None = None
    layer_launch_s: NotNegative | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        missing = [key for key in ("flops_per_s", "bytes_per_s", "memory_bytes") if getattr(self, key) is None]
        if self.like is None and missing:
            raise ValueError(f"must have {missing[0]}, or be like a device of the sheet")
        known = (*WIDTHS, *get_args(Arithmetic))
        unknown = [dtype for dtype in self.flops_per_s or {} if dtype not in known]
        if unknown:
            raise ValueError(f"flops_per_s must be of {', '.join(known)}, got {unknown[0]!r}")
        return self

    @property
    def figures(self) -> dict[str, Any]:
        """Those that are given."""
        return self.model_dump(exclude={"like"}, exclude_none=True)


class MemberTable(Table):
    """What one member of the pool has of its own in a replica; what is not given is the replica's.

    Attributes:
        device: that it lies on.
        block_tokens: tokens of a block of its keys and values.
        kv_blocks: of its memory; None: computed.
        prefix_cache: whether full blocks are kept for later requests.
        max_model_len: tokens of prompt and answer together at most; None: as many as memory holds.
    """

    device: Text | None = None
    block_tokens: Count | None = None
    kv_blocks: Count | None = None
    prefix_cache: bool | None = None
    max_model_len: Count | None = None


class SharedPrefixTable(Table):
    """When a text that requests begin with is read once for all of their rows; attributes as of `SharedPrefix`.

    Attributes:
        least_tokens: of such a text.
        least_rows: of a forward, or of a group.
        groups: whether texts that some rows share are read once, too.
    """

    least_tokens: Annotated[int, Field(ge=0, le=MOST)] = COMMON_TOKENS
    least_rows: Annotated[int, Field(ge=2, le=MOST)] = COMMON_ROWS
    groups: bool = False


class OffloadTable(Table):
    """Host memory for blocks that prefix caches evict.

    Attributes:
        host_bytes: of each replica, for all members together.
        bytes_per_s: of the link of each device.
    """

    host_bytes: Annotated[float, Field(ge=1, le=1e18)]
    bytes_per_s: Annotated[float, Field(ge=1, le=1e18)]


class ReplicaTable(Table):
    """Replicas that are alike.

    Attributes:
        name: unique in the file; None: the device's, or the place in the file where that does not do.
        count: of them.
        device: that members lie on which name none.
        tensor_parallel: devices of a kind that each of them is split over.
        role: what they do of a request: all, its prefill, or what comes after.
        policy: of these replicas; None: the run's.
        cost: what forwards take, as `--cost`; None: the rooflines of the devices.
        max_num_seqs: requests in a batch at most; None: as vLLM for the target's device.
        token_budget: tokens of a step at most; None: as vLLM for the target's device.
        max_model_len: tokens of prompt and answer together that the target takes at most; None: what memory holds.
        block_tokens: tokens of a block of keys and values.
        kv_blocks: of each member; None: computed from memory.
        memory_share: of a device's memory that the engine uses.
        activation_reserve_bytes: of each device, that is neither weights nor keys and values.
        prefix_cache: whether full blocks are kept for later requests.
        drop_units: last blocks of a request's prefix hit that none of its members takes.
        preemption: who is put back where blocks are short, and where it waits then.
        shared_prefix: when a text that all rows begin with is read once by a forward of the target; None: never.
        admission: when a request that waits gets into the batch.
        offload: where blocks go that prefix caches evict; None: nowhere.
        members: by name, what they have of their own.
    """

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=MOST_NAME)] | None = None
    count: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    device: Text | None = None
    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] = 1
    role: Annotated[Role, Field(strict=False)] = Role.both
    policy: Text | None = None
    cost: Text | None = None
    max_num_seqs: Count | None = None
    token_budget: Count | None = None
    max_model_len: Count | None = None
    block_tokens: Count = BLOCK_TOKENS
    kv_blocks: Count | None = None
    memory_share: Annotated[float, Field(gt=0, le=1)] = MEMORY_SHARE
    activation_reserve_bytes: Annotated[float, Field(ge=0, le=1e15)] = float(ACTIVATION_RESERVE_BYTES)
    prefix_cache: bool = PREFIX_CACHE
    drop_units: Annotated[int, Field(ge=0, le=MOST)] = 0
    preemption: Annotated[Preemption, Field(strict=False)] = Preemption.latest
    admission: Annotated[Admission, Field(strict=False)] = Admission.first_chunk
    shared_prefix: SharedPrefixTable | None = None
    offload: OffloadTable | None = None
    members: dict[Name, MemberTable] = Field(default_factory=dict)

    def member(self, name: str) -> MemberTable:
        """What a member has, with the replica's values where it has none of its own; `kv_blocks` may stay None."""
        own = self.members.get(name, MemberTable())
        return MemberTable(
            device=own.device or self.device,
            block_tokens=own.block_tokens or self.block_tokens,
            kv_blocks=own.kv_blocks or self.kv_blocks,
            prefix_cache=self.prefix_cache if own.prefix_cache is None else own.prefix_cache,
            max_model_len=own.max_model_len,
        )

    def max_model_len_of(self, name: str, *, target: str) -> int | None:
        """Tokens that a member takes at most; the replica's own number is the target's."""
        own = self.member(name).max_model_len
        return self.max_model_len if own is None and name == target else own


class RouterTable(Table):
    """Who picks the replica of a request.

    Attributes:
        name: of the router with its options, as in `prefix-affinity,least_share=0.3`.
        stale_s: seconds between two looks at the replicas, a microsecond at least; 0: it sees them as they are.
    """

    name: Text = "round-robin"
    stale_s: Annotated[float, Field(ge=0, le=1e6)] = 0.0

    @field_validator("stale_s")
    @classmethod
    def _apart(cls, stale_s: float) -> float:
        if 0 < stale_s < LEAST_STALE_S:
            raise ValueError(f"must be 0 or >= {LEAST_STALE_S}")
        return stale_s


class TransferTable(Table):
    """The link from replicas that prefill to those that decode.

    Attributes:
        bytes_per_s: of the link.
        latency_s: after the last byte of a transfer has left.
        kv_bytes_per_token: keys and values of a token of the target; None: as its shape says.
    """

    bytes_per_s: Annotated[float, Field(ge=1, le=1e18)]
    latency_s: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    kv_bytes_per_token: Annotated[int, Field(ge=0, le=MOST)] | None = None

    @field_validator("kv_bytes_per_token", mode="before")
    @classmethod
    def _whole(cls, given: object) -> object:
        """Bytes may be written `7e4`, as everywhere in the file."""
        return int(given) if isinstance(given, float) and given.is_integer() else given


class ClusterContent(Table):
    """What a cluster file holds.

    Attributes:
        name: shown in tables; None: the file's.
        horizon_s: simulated seconds after which a run ends, whatever is unfinished; None: it runs to its end.
        devices: by name, those that the sheet does not have.
        router: who picks replicas.
        transfer: between replicas that prefill and those that decode; None: every one does both.
        replicas: at least one table of them.
    """

    name: Name | None = None
    horizon_s: Annotated[float, Field(gt=0, le=MOST_PS // PS_PER_S)] | None = None
    devices: dict[Name, DeviceTable] = Field(default_factory=dict)
    router: RouterTable = RouterTable()
    transfer: TransferTable | None = None
    replicas: Annotated[tuple[ReplicaTable, ...], Field(strict=False, min_length=1)]


def read_cluster_file(path: Path) -> ClusterContent:
    """What a file holds; what it says of a recording's members is not looked at.

    Raises:
        ClusterFileError: the file is missing, is no TOML, or breaks a rule.
    """
    if not path.is_file():
        raise ClusterFileError(path, "cluster file", "must exist", str(path))
    content = checked_toml(path, read_toml(path, "cluster file", ClusterFileError), ClusterContent, ClusterFileError)
    total = sum(table.count for table in content.replicas)
    if total > MOST_REPLICAS:
        raise ClusterFileError(path, "replicas", f"must be {MOST_REPLICAS:,} at most in all", total)
    return content

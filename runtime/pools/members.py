"""Loaded members in level order, from a pool file or from a program's models.

`LoadedMembers.forward` gives the forward of each. Members are placed on devices of this machine (`on_devices`), or
taken from a program's models (`live_pool`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from ...base.errors import ArgumentError
from ...decoding.pool import Member, Pool
from ...decoding.prompt_lookup import LookupRule
from ...traces.meta import NAME_PATTERN
from ..features import FeatureForward
from ..forward import ModelForward, attention_of, check_masks, kv_shape_of
from ..forward_choice import choose_forward, only_product
from ..forward_kinds import ForwardKind
from ..fused import TokenRows
from ..products import ProductChooser, timing_bytes
from ..ranks import Ranks
from ..tokenizers import Alignment, num_token_ids
from .configs import check_supported, end_tokens
from .heads import SubsetHead
from .pool_file import MemberEntry, PoolFile, PoolFileError
from .submodels import make_submodel


def usable_device(name: str) -> torch.device | None:
    """The device of that name; None for unknown ones, absent ones, and for `meta`, which holds no values."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError):
        return None
    return device


def a_device() -> str:
    """The rule for a device, with the names of existing ones, for a message."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return f"a device of this machine ({', '.join(['cpu', *gpus])})"


def device_of(file: Path, field: str, entry: MemberEntry) -> torch.device:
    """The device of the member that is `field` of a pool file; raises PoolFileError if it cannot be used."""
    device = usable_device(entry.device)
    if device is None:
        raise PoolFileError(file, f"{field}.device", f"must be {a_device()}", entry.device)
    return device


def on_devices(content: PoolFile, devices: Mapping[str, str]) -> PoolFile:
    """The same pool with some members elsewhere, by name; a submodel, which shares layers, goes where its model goes.

    Raises:
        ArgumentError: no such member, one without weights of its own, or no such device.
    """
    own = [entry.name for entry in content.members if entry.kind == "model"]
    for name, device in devices.items():
        if name not in own:
            raise ArgumentError(
                f"`devices` must name members with weights of their own ({', '.join(own)}), as a submodel is where its "
                f"model is, got {name!r}"
            )
        if usable_device(device) is None:
            raise ArgumentError(f"`devices` of {name} must be {a_device()}, got {device!r}")
    members = tuple(
        entry.model_copy(update={"device": devices[entry.name]}) if entry.name in devices else entry
        for entry in content.members
    )
    return content.model_copy(update={"members": members})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedMember:
    """One member of a pool. Numbers of `ngram`, which is model-free lookup, are 0."""

    name: str  # in the pool file
    # a model of its own, some layers of another member, or model-free lookup
    kind: Literal["model", "submodel", "ngram"]
    model: PreTrainedModel | None  # None for `ngram`
    lookup: LookupRule | None  # how it finds what to copy; None unless `ngram`
    # tied ones once; for a submodel those it uses, for a drafter with its own head those over another member's
    # embeddings too
    num_parameters: int
    num_layers: int  # decoder layers
    hidden_size: int  # width of the residual stream
    kv_bytes_per_token: int  # of keys and values of one context token; of a split model, in each process
    dtype: str  # number format in memory; `none` for `ngram`
    kv_heads: int | None = None  # of keys and values, as `kv_bytes_per_token`; None for `ngram`
    tokenizer: Tokenizer | None = None  # of a *foreign* member, which drafts in tokens of its own; None: the pool's
    from_features: bool = False  # drafts from the target's last hidden states (`runtime/features.py`)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text (`end_tokens`); none for `ngram`."""
        return () if self.model is None else end_tokens(self.model)

    @property
    def said(self) -> torch.Tensor | None:
        """`[K]` the only tokens that it may write, ascending; None: it may write all."""
        head = None if self.model is None else self.model.get_output_embeddings()
        return head.tokens if isinstance(head, SubsetHead) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedMembers:
    """Members that decode together."""

    members: tuple[LoadedMember, ...]  # smallest first, the target last
    tokenizer: Tokenizer | None  # shared by all members but foreign ones; None where no text is needed
    eos_token_ids: tuple[int, ...]  # tokens that end a text, the target's; empty without any
    context_tokens: int  # longest context they are used with
    # processes over which some member is split, this one among them; None if there is one process
    ranks: Ranks | None = None
    copy_weights: bool = False  # to faster layouts, while the models' own weights are not changed
    _forwards: dict[tuple[int, ForwardKind, bool], ModelForward] = dataclass_field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _products: dict[str | None, ProductChooser] = dataclass_field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def target(self) -> LoadedMember:
        """The last and largest member."""
        return self.members[-1]

    @property
    def vocab_size(self) -> int:
        """Rows of the table that the target's token ids are looked up in."""
        return table_rows(self.target)

    @property
    def feature_level(self) -> int | None:
        """Level of the member that drafts from the target's states; None if there is none."""
        return next((level for level, member in enumerate(self.members) if member.from_features), None)

    def member(self, name: str) -> LoadedMember:
        """The member called `name`; raises ValueError if there is none."""
        for member in self.members:
            if member.name == name:
                return member
        known = ", ".join(member.name for member in self.members)
        raise ValueError(f"member must be one of {known}, got {name!r}")

    def forward(self, level: int, kind: ForwardKind, *, share_weights: bool) -> ModelForward:
        """How the member at `level` runs (`forward_choice.choose_forward`), made and checked once.

        In several processes all models run by their own modules: the faster forward and product are measured, and
        processes with different choices would round differently.

        Raises:
            ValueError: a model-free member, or one that cannot be run this way.
        """
        if self.ranks is not None and kind == "auto":
            kind = "modules"
        elif self.ranks is not None and kind != "modules":
            raise ArgumentError(f"`forward` must be auto or modules in several processes, got {kind!r}")
        made = self._forwards.get((level, kind, share_weights))
        if made is None:
            if share_weights:
                for owner in self._sharing_with(level):
                    self.forward(owner, kind, share_weights=True)
            made = self._forwards[level, kind, share_weights] = self._made(level, kind, share_weights=share_weights)
        return made

    def _sharing_with(self, level: int) -> list[int]:
        """Larger members that share its weights: laid out again after it, they would leave it the old weights."""
        model = self.members[level].model
        own = set() if model is None else set(model.parameters())
        return [
            other
            for other in range(level + 1, len(self.members))
            if (larger := self.members[other].model) is not None and not own.isdisjoint(larger.parameters())
        ]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all members' parameters, shared ones counted once."""
        models = [member.model for member in self.members if member.model is not None]
        return sum(weight.nbytes for weight in {weight for model in models for weight in model.parameters()})

    def for_texts(self, *, eos_token_ids: tuple[int, ...], lookup: LoadedMember | None) -> "LoadedMembers":
        """The same models, with the forwards made here, for other end tokens, and with prompt lookup or without.

        `lookup` becomes the smallest member; None adds none.
        """
        added = () if lookup is None else (lookup,)
        other = replace(self, members=(*added, *self.members), eos_token_ids=eos_token_ids)
        other._products.update(self._products)
        other._forwards.update(
            {(level + len(added), kind, share): made for (level, kind, share), made in self._forwards.items()}
        )
        return other

    def reader(self, kind: ForwardKind, *, share_weights: bool) -> tuple[int, FeatureForward] | None:
        """Level of the member that drafts from the target's states, and how it runs; None if there is none.

        Raises:
            ValueError: as `forward`.
        """
        level = self.feature_level
        if level is None:
            return None
        made = self.forward(level, kind, share_weights=share_weights)
        assert isinstance(made, FeatureForward)
        return level, made

    def _made(self, level: int, kind: ForwardKind, *, share_weights: bool) -> ModelForward:
        member, at = self.members[level], self.feature_level
        reader = None if at is None else self.members[at].name
        if member.model is None:
            raise ValueError(f"{member.name} has no model to run")
        if reader is not None and kind == "compiled":
            rule = f"must not be compiled where {reader} reads the target's states, which compiled forwards do not give"
            raise ArgumentError(f"`forward` {rule}")
        made = choose_forward(
            member.model,
            kind=kind,
            share_weights=share_weights,
            context_tokens=self.context_tokens,
            products=self._product_chooser(only_product(kind)),
            rows=self.rows(level),
        )
        return FeatureForward(member.model, made) if member.from_features else made

    def rows(self, level: int) -> TokenRows | None:
        """How the tokens of the member at `level` map to the target's; None where they are the same.

        None for a member with a tokenizer of its own: texts are converted to its vocabulary.
        """
        member = self.members[level]
        if member.model is None or member is self.target or member.tokenizer is not None:
            return None
        own, width = table_rows(member), self.vocab_size
        said = min(own, width, width if self.tokenizer is None else num_token_ids(self.tokenizer))
        return None if own == width == said else TokenRows(own=own, said=said, width=width)

    def forward_names(self, kind: ForwardKind) -> dict[str, str]:
        """Which forward each model runs by, `fused` or `modules`; raises as `forward`."""
        return {
            member.name: self.forward(level, kind, share_weights=True).name
            for level, member in enumerate(self.members)
            if member.model is not None
        }

    def product_lines(self, kind: ForwardKind) -> list[str]:
        """Lines on the product of each weight and number of tokens, for the forwards that were made."""
        return self._product_chooser(only_product(kind)).lines()

    def _product_chooser(self, only: str | None) -> ProductChooser:
        """One chooser for all members: those that share weights share copies of them."""
        if only not in self._products:
            room = timing_bytes(self.weight_bytes)
            self._products[only] = ProductChooser(only=only, copy_all=self.copy_weights, room_bytes=room)
        return self._products[only]

    def alignment(self, name: str) -> Alignment:
        """Converts contexts for the foreign member called `name`, and its drafts back.

        Raises:
            ValueError: no such member, one that shares the target's tokenizer, one that cannot be aligned, or a target
                without tokenizer or end-of-sequence token.
        """
        member = self.member(name)
        if member.tokenizer is None:
            raise ValueError(f"member must have a tokenizer of its own, got {name!r}")
        if self.tokenizer is None or not self.eos_token_ids:
            missing = "a tokenizer" if self.tokenizer is None else "an end-of-sequence token"
            raise ValueError(f"the target must have {missing} where {name} has a tokenizer of its own, got None")
        # Any of the target's end tokens will do: a draft that ends in another than the target's choice is rejected
        # there.
        return Alignment(self.tokenizer, member.tokenizer, self.eos_token_ids[0], frozenset(member.eos_token_ids))


def table_rows(member: LoadedMember) -> int:
    """Rows of the table that a model's token ids are looked up in."""
    model: Any = member.model
    return int(model.config.vocab_size)


def describe_lookup(name: str, rule: LookupRule) -> LoadedMember:
    """The model-free member that copies by a rule."""
    sizes: dict[str, Any] = dict.fromkeys(("num_parameters", "num_layers", "hidden_size", "kv_bytes_per_token"), 0)
    return LoadedMember(name=name, kind="ngram", model=None, lookup=rule, dtype="none", **sizes)


def describe_model(
    name: str,
    kind: Literal["model", "submodel"],
    model: PreTrainedModel,
    tokenizer: Tokenizer | None,
    *,
    from_features: bool = False,
) -> LoadedMember:
    """The member for a model."""
    kv = kv_shape_of(model)
    return LoadedMember(
        name=name,
        kind=kind,
        model=model,
        lookup=None,
        num_parameters=num_parameters_of(model),
        num_layers=int(model.config.num_hidden_layers),
        hidden_size=int(model.config.hidden_size),
        kv_bytes_per_token=kv.bytes_per_slot,
        dtype=str(model.dtype).removeprefix("torch."),
        kv_heads=kv.num_heads,
        tokenizer=tokenizer,
        from_features=from_features,
    )


def describe_entry(
    entry: MemberEntry, model: PreTrainedModel | None, tokenizer: Tokenizer | None = None
) -> LoadedMember:
    """The member for an entry of a pool file; raises BrokenRuleError as `kv_shape_of`."""
    if entry.ngram is not None:
        return describe_lookup(entry.name, entry.ngram.rule)
    assert model is not None  # every other entry has one
    kind: Literal["model", "submodel"] = "model" if entry.submodel_of is None else "submodel"
    return describe_model(entry.name, kind, model, tokenizer, from_features=entry.features_of is not None)


def num_parameters_of(model: PreTrainedModel) -> int:
    """Tied parameters once, packed ones as many as they stand for.

    Without another member's embeddings, even if its own head reads rows of them.
    """
    count: int = sum(parameter.numel() for parameter in model.parameters()) + sum(map(_packed, model.modules()))
    head = model.get_output_embeddings()
    if isinstance(head, SubsetHead) and head.is_of_another:
        table: torch.Tensor = model.get_input_embeddings().weight
        count -= table.numel()
    return count


def table_of_its_own(model: PreTrainedModel) -> torch.nn.Parameter | None:
    """The embedding, if the output does not share it: a forward reads rows of it alone."""
    table: torch.nn.Parameter = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    return None if head is None or head.weight is table else table


def _packed(module: torch.nn.Module) -> int:
    """Weights of a linear module beyond the elements of its parameters: 4-bit ones share an element, or are buffers."""
    own = sum(weight.numel() for name, weight in module.named_parameters(recurse=False) if name != "bias")
    features: list[Any] = [getattr(module, f"{side}_features", None) for side in ("in", "out")]
    if not (own or [*module.buffers(recurse=False)]) or not all(isinstance(size, int) for size in features):
        return 0
    return max(0, int(prod(features)) - own)


def loaded_pool(pool: LoadedMembers) -> Pool:
    """The pool as policies see it: members in level order, names, and their limits."""
    return Pool(
        tuple(
            Member(
                name=member.name,
                model_free=member.model is None,
                drafts_only=member.tokenizer is not None,
                from_features=member.from_features,
            )
            for member in pool.members
        )
    )


TARGET, NGRAM = "target", "ngram"


def live_pool(
    target: PreTrainedModel,
    assistants: Sequence[PreTrainedModel] | Mapping[str, PreTrainedModel] = (),
    *,
    context_tokens: int,
    eos_token_ids: tuple[int, ...],
    lookup: LookupRule | None = None,
    slims: Mapping[str, tuple[int, ...]] | None = None,
    names: Sequence[str] | None = None,
    target_tokenizer: object = None,
    assistant_tokenizers: Sequence[object] | None = None,
    copy_weights: bool = False,
) -> LoadedMembers:
    """A pool of these models, which are not changed.

    Args:
        target: writes the text; named `target`.
        assistants: smaller models in any order, or by name; may be none.
        context_tokens: longest context, >= 1.
        eos_token_ids: tokens that end a text; may be none.
        lookup: of a member `ngram` that copies from the text; None: there is none.
        slims: submodels of the target by name, each with the layers that it leaves out.
        names: of the assistants, in their order; default `assistant0`, `assistant1` ... from the smallest.
        target_tokenizer: needed where an assistant has its own.
        assistant_tokenizers: of the assistants, in their order; None for those that share the target's.
        copy_weights: whether copies of weights may be made, where those make products faster.

    Raises:
        ValueError: a model that cannot be in a pool with this target, names that are wrong, or tokenizers that cannot
            be aligned.
    """
    if isinstance(assistants, Mapping):
        if names is not None:
            raise ValueError(f"assistant_names must be left out where assistants have names, got {_counted(names)}")
        names, assistants = list(assistants), list(assistants.values())
    if not isinstance(assistants, Sequence):
        raise ValueError(f"assistant_models must be a list of models, got {_counted(assistants)}")
    rows = _rows(assistants, names, assistant_tokenizers)
    models = [_member(name, model, tokenizer, context_tokens) for name, model, tokenizer in rows]
    largest = _member(TARGET, target, None, context_tokens)
    shared = _own_copy("target_tokenizer", target_tokenizer)
    for member in models:
        _check_beside(member, largest, shared)
    models += [_slim(name, target, skipped) for name, skipped in (slims or {}).items()]
    models.sort(key=lambda member: member.num_parameters)
    members = (*(() if lookup is None else (describe_lookup(NGRAM, lookup),)), *models, largest)
    pool = LoadedMembers(
        members=members,
        tokenizer=shared,
        eos_token_ids=eos_token_ids,
        context_tokens=context_tokens,
        copy_weights=copy_weights,
    )
    for member in members:
        if member.tokenizer is not None:
            _check_tokens("assistant_tokenizers", member.tokenizer, member)
            _check_tokens("target_tokenizer", pool.tokenizer, pool.target)
            pool.alignment(member.name)
    return pool


def _slim(name: str, target: PreTrainedModel, skipped: tuple[int, ...]) -> LoadedMember:
    try:
        return describe_model(name, "submodel", make_submodel(target, skipped), None)
    except ValueError as error:
        raise ValueError(f"skip_layers of {name}: {error}") from error


def _rows(
    assistants: Sequence[PreTrainedModel], names: Sequence[str] | None, tokenizers: Sequence[object] | None
) -> list[tuple[str, PreTrainedModel, Tokenizer | None]]:
    for field, given in (("assistant_names", names), ("assistant_tokenizers", tokenizers)):
        if given is None:
            continue
        if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != len(assistants):
            rule = f"must be a list of {len(assistants)}, one per assistant model"
            raise ValueError(f"{field} {rule}, got {_counted(given)}")
    for model in assistants:
        if not isinstance(model, PreTrainedModel):
            raise ValueError(f"assistant_models must be models of transformers, got {type(model).__name__}")
    order = sorted(range(len(assistants)), key=lambda index: num_parameters_of(assistants[index]))
    return [
        (
            f"assistant{place}" if names is None else checked_name("assistant_names", names[index]),
            assistants[index],
            None if tokenizers is None else _own_copy("assistant_tokenizers", tokenizers[index]),
        )
        for place, index in enumerate(order)
    ]


def _counted(given: object) -> str:
    """A list in a few words: items such as tokenizers fill many lines."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        return f"a list of {len(given)}"
    return type(given).__name__


def checked_name(field: str, name: object) -> str:
    """A name that a member may have; raises ValueError for another."""
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name) or name == TARGET:
        raise ValueError(f"{field} must be letters, digits and . _ + -, and not {TARGET!r}, got {name!r}")
    return name


def _own_copy(field: str, tokenizer: object) -> Tokenizer | None:
    """The tokenizer inside one of transformers; a copy, since padding and truncation are switched off."""
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(backend, Tokenizer):
        raise ValueError(f"{field} must be fast tokenizers, got {type(tokenizer).__name__}")
    copy: Tokenizer = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _member(name: str, model: PreTrainedModel, tokenizer: Tokenizer | None, context_tokens: int) -> LoadedMember:
    config: Any = model.config
    try:
        check_supported(config, type(model), context_tokens=context_tokens)
    except ValueError as error:
        raise ValueError(f"{name} cannot be used: {error}") from error
    if config._attn_implementation != attention_of(config):
        wanted = f"attn_implementation={attention_of(config)!r}"
        raise ValueError(f"{name} must be loaded with {wanted}, got {config._attn_implementation!r}")
    if model.tp_size is not None and model.tp_size > 1:
        raise ValueError(
            f"{name} must be whole, got one split over {model.tp_size} processes; a pool file can split it"
        )
    if model.training:
        raise ValueError(f"{name} must be in evaluation mode (call its eval()), got training mode")
    try:
        check_masks(model)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error
    most = getattr(config, "max_position_embeddings", None)
    if most is not None and context_tokens > most:
        raise ValueError(f"prompt and answer must fit into the {most} positions of {name}, got {context_tokens} tokens")
    return describe_model(name, "model", model, tokenizer)


def _check_tokens(field: str, tokenizer: Tokenizer | None, member: LoadedMember) -> None:
    """The model must have a row for every token, or looking it up fails in the middle of a text."""
    config: Any = None if member.model is None else member.model.config
    num_tokens = 0 if tokenizer is None else num_token_ids(tokenizer)
    if num_tokens > config.vocab_size:
        raise ValueError(
            f"{field} must not have more tokens than {member.name} ({config.vocab_size}), got {num_tokens}"
        )


def _check_beside(member: LoadedMember, target: LoadedMember, tokenizer: Tokenizer | None) -> None:
    rows, of_target = table_rows(member), table_rows(target)
    if member.tokenizer is None and rows != of_target:
        if tokenizer is None:
            raise ValueError(
                f"{member.name} must have the target's vocabulary size ({of_target}), or target_tokenizer must say how "
                "many tokens both share, or the assistant needs a tokenizer of its own in assistant_tokenizers, "
                f"got {rows}"
            )
        if rows < num_token_ids(tokenizer):
            raise ValueError(
                f"{member.name} must have a row for each of the {num_token_ids(tokenizer)} tokens of target_tokenizer, "
                f"or a tokenizer of its own in assistant_tokenizers, got {rows}"
            )
    if member.num_parameters > target.num_parameters:
        raise ValueError(
            f"{member.name} must not have more parameters than the target ({target.num_parameters:,}), "
            f"got {member.num_parameters:,}"
        )

"""What runs: loaded members in level order, whether a pool file or a program put them together."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from ...arguments import ArgumentError
from ...decoding.pool import Member, Pool
from ...decoding.prompt_lookup import LookupRule
from ..features.feature_forward import FeatureForward
from ..forward.forward_choice import ForwardKind, choose_forward, only_product
from ..forward.fused_forward import FusedForward
from ..forward.model_forward import ModelForward
from ..forward.module_forward import ModuleForward, kv_shape_of
from ..forward.multiplying.product_choice import ProductChooser, timing_bytes
from ..forward.token_rows import PaddedForward, TokenRows
from ..heads.subset_head import SubsetHead
from ..ranks.ranks import Ranks
from ..tokenizers.alignment import Alignment
from ..tokenizers.pieces import num_token_ids
from .configs.end_tokens import end_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedMember:
    """One member of a pool.

    Attributes:
        name: name in the pool file.
        kind: a model of its own, some layers of another member, or model-free lookup.
        model: the network; None for `ngram`.
        lookup: how it finds what to copy; None unless `ngram`.
        num_parameters: parameters, tied ones once; a submodel counts what it uses, and so does a drafter with a head of
            its own over the embeddings of another member, of which it reads rows. 0 for `ngram`.
        num_layers: decoder layers; 0 for `ngram`.
        hidden_size: width of the residual stream; 0 for `ngram`.
        kv_bytes_per_token: bytes of keys and values that one context token takes; of a split model, in each process.
        dtype: number format in memory; `none` for `ngram`.
        tokenizer: of a *foreign* member, which drafts in tokens of its own; None: the pool's.
        from_features: whether it drafts from the target's last hidden states (`features.feature_forward`).
    """

    name: str
    kind: Literal["model", "submodel", "ngram"]
    model: PreTrainedModel | None
    lookup: LookupRule | None
    num_parameters: int
    num_layers: int
    hidden_size: int
    kv_bytes_per_token: int
    dtype: str
    tokenizer: Tokenizer | None = None
    from_features: bool = False

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text (`end_tokens`); none for `ngram`."""
        return () if self.model is None else end_tokens(self.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedMembers:
    """Members that decode together.

    Attributes:
        members: smallest first, the target last.
        tokenizer: shared by all members but foreign ones; None where nothing asks for text.
        eos_token_ids: tokens that end a text, the target's; none if nothing does.
        context_tokens: longest context they are used with.
        ranks: processes over which some member is split, this one among them; None if there is one process.
        copy_weights: whether weights may be copied to quicker layouts where the models' own stay as they are.
    """

    members: tuple[LoadedMember, ...]
    tokenizer: Tokenizer | None
    eos_token_ids: tuple[int, ...]
    context_tokens: int
    ranks: Ranks | None = None
    copy_weights: bool = False
    _forwards: dict[tuple[int, ForwardKind, bool], ModelForward] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _products: dict[str | None, ProductChooser] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def target(self) -> LoadedMember:
        """The last and largest member."""
        return self.members[-1]

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
        """How the member at `level` runs (`forward.choose_forward`), made and checked once.

        In several processes all models run by their own modules: which forward and which product is quicker is
        measured, and processes that find differently would round differently.

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
        """Larger members that it shares weights with: laid out anew after it, they would leave it the old ones."""
        model = self.members[level].model
        own = set() if model is None else set(model.parameters())
        return [
            other
            for other in range(level + 1, len(self.members))
            if (larger := self.members[other].model) is not None and not own.isdisjoint(larger.parameters())
        ]

    @property
    def weight_bytes(self) -> int:
        """Of all members' parameters, those that several share once."""
        models = [member.model for member in self.members if member.model is not None]
        return sum(weight.nbytes for weight in {weight for model in models for weight in model.parameters()})

    def for_texts(self, *, eos_token_ids: tuple[int, ...], lookup: LoadedMember | None) -> "LoadedMembers":
        """The same models, run by what was made here, for texts that end elsewhere, and with prompt lookup or without.

        Args:
            eos_token_ids: tokens that end a text.
            lookup: becomes the smallest member; None adds none.
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
        if reader is not None and kind == "graphs":
            rule = f"must not be graphs where {reader} reads the target's states, which captured forwards do not give"
            raise ArgumentError(f"`forward` {rule}")
        made = choose_forward(
            member.model,
            kind=kind,
            share_weights=share_weights,
            context_tokens=self.context_tokens,
            products=self._product_chooser(only_product(kind)),
            may_capture=reader is None or not (member is self.target or member.from_features),
            rows=self.rows(level),
        )
        if not member.from_features:
            return made
        assert isinstance(made, FusedForward | ModuleForward | PaddedForward)  # graphs are left out
        return FeatureForward(member.model, made)

    def rows(self, level: int) -> TokenRows | None:
        """How the tokens of the member at `level` are the target's; None where they are the same.

        Those of a member with a tokenizer of its own are another vocabulary, which texts are carried to.
        """
        member = self.members[level]
        if member.model is None or member is self.target or member.tokenizer is not None:
            return None
        own, width = table_rows(member), table_rows(self.target)
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
        """Which product multiplies which weight with how many tokens, of the forwards that were made."""
        return self._product_chooser(only_product(kind)).lines()

    def _product_chooser(self, only: str | None) -> ProductChooser:
        """One for all members, which may share weights and then share copies of them."""
        if only not in self._products:
            room = timing_bytes(self.weight_bytes)
            self._products[only] = ProductChooser(only=only, copy_all=self.copy_weights, room_bytes=room)
        return self._products[only]

    def alignment(self, name: str) -> Alignment:
        """Carries contexts to the foreign member called `name` and its drafts back.

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
        # Any of the target's ends would do: a draft that ends in another than the target's own choice is refused there.
        return Alignment(self.tokenizer, member.tokenizer, self.eos_token_ids[0], frozenset(member.eos_token_ids))


def table_rows(member: LoadedMember) -> int:
    """Rows of the table that a model's token ids are looked up in."""
    model: Any = member.model
    return int(model.config.vocab_size)


def describe_lookup(name: str, rule: LookupRule) -> LoadedMember:
    """The model-free member that copies by a rule."""
    return LoadedMember(
        name=name,
        kind="ngram",
        model=None,
        lookup=rule,
        num_parameters=0,
        num_layers=0,
        hidden_size=0,
        kv_bytes_per_token=0,
        dtype="none",
    )


def describe_model(
    name: str,
    kind: Literal["model", "submodel"],
    model: PreTrainedModel,
    tokenizer: Tokenizer | None,
    *,
    from_features: bool = False,
) -> LoadedMember:
    """The member that a network is."""
    return LoadedMember(
        name=name,
        kind=kind,
        model=model,
        lookup=None,
        num_parameters=num_parameters_of(model),
        num_layers=int(model.config.num_hidden_layers),
        hidden_size=int(model.config.hidden_size),
        kv_bytes_per_token=kv_shape_of(model).bytes_per_slot,
        dtype=str(model.dtype).removeprefix("torch."),
        tokenizer=tokenizer,
        from_features=from_features,
    )


def num_parameters_of(model: PreTrainedModel) -> int:
    """Tied ones once; without the embeddings of another member, of which a head of its own over them reads rows."""
    count: int = sum(parameter.numel() for parameter in model.parameters())
    head = model.get_output_embeddings()
    if isinstance(head, SubsetHead) and head.is_of_another:
        table: torch.Tensor = model.get_input_embeddings().weight
        count -= table.numel()
    return count


def loaded_pool(pool: LoadedMembers) -> Pool:
    """The pool as policies see it: members in level order, names, and what they cannot do."""
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

"""What a pool is and what it needs, and everything that speaks against it, before any weights are read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from ..forward.layer_masks import attention_of
from ..forward.mask_check import masks_known
from ..kv.device_memory import total_bytes
from ..tokenizers import Alignment
from .check_report import DeviceNeed, MemberCheck, PoolCheck
from .configs.member_config import MemberConfig, read_member_config
from .configs.pool_rules import check_configs, check_order, end_tokens_of_target
from .loaded_members import describe_model
from .model_loading import usable_device
from .pool_file import MemberEntry, PoolFile, PoolFileError, read_pool_file
from .submodel import make_submodel
from .tokenizer_loading import load_tokenizer

Answer = TypeVar("Answer")


def check_pool(path: Path) -> PoolCheck:
    """Check the pool at `path`, a pool file or its folder.

    Raises:
        PoolFileError: the pool file itself cannot be read.
    """
    file, content = read_pool_file(path)
    return _Checking(file, content).checked()


class _Checking:
    """One check of a pool; gathers what is known and what is wrong."""

    def __init__(self, file: Path, content: PoolFile) -> None:
        self._file = file
        self._content = content
        self._configs: dict[str, MemberConfig] = {}
        self._models: dict[str, PreTrainedModel] = {}
        self._problems: list[str] = []

    def checked(self) -> PoolCheck:
        tokenizer = self._tried(
            self._problems, lambda: load_tokenizer(self._file, "tokenizer", self._content.tokenizer)
        )
        rows = [self._with_path(row, entry) for row, entry in enumerate(self._content.members)]
        members = [self._submodel(row, entry, rows) for row, entry in enumerate(self._content.members)]
        pool_tokenizer = None if tokenizer is None else tokenizer[0]
        members = [self._tokenized(row, member, pool_tokenizer) for row, member in enumerate(members)]
        self._rules(pool_tokenizer, members)
        devices = self._devices(members)
        return PoolCheck(
            name=self._content.name,
            context_tokens=self._content.context_tokens,
            num_tokens=None if pool_tokenizer is None else pool_tokenizer.get_vocab_size(),
            members=tuple(members),
            devices=devices,
            problems=tuple(self._problems),
        )

    def _tried(self, problems: list[str], ask: Callable[[], Answer]) -> Answer | None:
        """What `ask` answers; None where it raises, which is noted."""
        try:
            return ask()
        except ValueError as error:
            problems.append(" ".join(str(error).split()))
            return None

    def _with_path(self, row: int, entry: MemberEntry) -> MemberCheck:
        """A model of its own; others as far as the pool file says."""
        kind = "model" if entry.path is not None else "ngram" if entry.ngram is not None else "submodel"
        is_model = kind == "model"
        check = MemberCheck(
            name=entry.name,
            kind=kind,
            dtype=entry.dtype if is_model else "none",
            device=entry.device if is_model else "none",
            tokenizer=entry.tokenizer or "the pool's",
        )
        location = entry.path
        if location is None:
            return check
        problems: list[str] = []
        self._tried(problems, lambda: usable_device(self._file, f"members[{row}].device", entry.device))
        field, most = f"members[{row}].path", self._content.context_tokens
        found = self._tried(problems, lambda: read_member_config(self._file, field, location, context_tokens=most))
        if found is not None:
            self._configs[entry.name] = found
            model = self._tried(problems, lambda: _without_weights(found, entry.dtype))
            if model is not None:
                self._models[entry.name] = model
                check = _described(check, model, found.eos_token_ids, shared=False)
                check = replace(check, masks_tried_at_load=not masks_known(found.config))
        return replace(check, problems=tuple(problems))

    def _submodel(self, row: int, entry: MemberEntry, rows: list[MemberCheck]) -> MemberCheck:
        check = rows[row]
        owner = next((other for other in rows if other.name == entry.submodel_of), None)
        if owner is None:
            return check
        check = replace(check, dtype=owner.dtype, device=owner.device, tokenizer=owner.tokenizer)
        if owner.name not in self._models:
            return replace(check, problems=(f"{self._file}: members[{row}].submodel_of {owner.name} cannot be used",))
        try:
            model = make_submodel(self._models[owner.name], entry.skip_layers)
        except ValueError as error:
            rule = str(error).partition(", got ")[0]
            problem = PoolFileError(self._file, f"members[{row}].skip_layers", rule, entry.skip_layers)
            return replace(check, problems=(str(problem),))
        return _described(check, model, self._configs[owner.name].eos_token_ids, shared=True)

    def _tokenized(self, row: int, member: MemberCheck, pool_tokenizer: Tokenizer | None) -> MemberCheck:
        """A tokenizer of a member's own must be aligned with the pool's."""
        location = self._content.members[row].tokenizer
        if location is None:
            return member
        problems = list(member.problems)
        field = f"members[{row}].tokenizer"
        own = self._tried(problems, lambda: load_tokenizer(self._file, field, location)[0])
        target = self._configs.get(self._content.members[-1].name)
        if own is not None and member.vocab_size is not None and own.get_vocab_size() > member.vocab_size:
            rule = f"must not have more tokens than {member.name} ({member.vocab_size})"
            problems.append(str(PoolFileError(self._file, field, rule, own.get_vocab_size())))
        elif own is not None and pool_tokenizer is not None and target is not None and target.eos_token_ids:
            first, ends = target.eos_token_ids[0], frozenset(member.eos_token_ids or ())
            try:
                Alignment(pool_tokenizer, own, first, ends)
            except ValueError as error:
                problems.append(str(PoolFileError(self._file, field, f"cannot be aligned ({error})", location)))
        return replace(member, problems=tuple(problems))

    def _rules(self, tokenizer: Tokenizer | None, members: list[MemberCheck]) -> None:
        """Those between members, where enough of them are known."""
        if self._content.members[-1].name in self._configs:
            self._tried(self._problems, lambda: check_configs(self._file, self._content, self._configs, tokenizer))
            self._tried(self._problems, lambda: end_tokens_of_target(self._content, self._configs))
        counts = [0 if member.kind == "ngram" else member.num_parameters for member in members]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts):
            names = [member.name for member in members]
            self._tried(self._problems, lambda: check_order(self._file, names, known))

    def _devices(self, members: list[MemberCheck]) -> tuple[DeviceNeed, ...]:
        """Needs by device; weights that cannot fit are a problem."""
        needs = []
        for name in dict.fromkeys(member.device for member in members if member.weight_bytes is not None):
            here = [member for member in members if member.device == name]
            try:
                total = total_bytes(usable_device(self._file, "device", name))
            except PoolFileError:
                continue  # said of the member
            weights = sum(member.weight_bytes or 0 for member in here)
            kv = self._content.context_tokens * sum(member.kv_bytes_per_token or 0 for member in here)
            needs.append(DeviceNeed(device=name, weight_bytes=weights, kv_bytes=kv, total_bytes=total))
            if weights + kv > total:
                rule = f"must have {weights + kv:,} bytes for the weights and one request of full length"
                self._problems.append(str(PoolFileError(self._file, f"device {name}", rule, total)))
        return tuple(needs)


def _without_weights(found: MemberConfig, dtype: str) -> PreTrainedModel:
    """The model with shapes and no values; raises ValueError where its class refuses the config."""
    found.config._attn_implementation = attention_of(found.config)
    try:
        with torch.device("meta"):
            model: PreTrainedModel = found.model_class(found.config)
    # What building a model runs into, each class in its own way.
    except Exception as error:
        raise ValueError(f"{found.location}: the model cannot be built ({error})") from error
    return model.to(getattr(torch, dtype)).eval()


def _described(check: MemberCheck, model: PreTrainedModel, ends: tuple[int, ...], *, shared: bool) -> MemberCheck:
    described = describe_model(check.name, "submodel" if shared else "model", model, None)
    return replace(
        check,
        architecture=type(model).__name__,
        vocab_size=int(model.config.vocab_size),
        eos_token_ids=ends,
        num_parameters=described.num_parameters,
        weight_bytes=0 if shared else described.num_parameters * model.dtype.itemsize,
        kv_bytes_per_token=described.kv_bytes_per_token,
    )

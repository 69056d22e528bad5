"""Checks a pool before any weights are read: what it is, what it needs, and all its problems."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from ..caches import total_bytes
from ..features import give_input
from ..forward import attention_of, kv_shape_of, masks_known
from ..fused import multiplied_weights
from ..products import LIBRARY_BYTES, timing_bytes
from ..ranks import check_split
from ..refusals import in_one_line
from .check_report import DeviceNeed, MemberCheck, PoolCheck
from .configs import (
    MemberConfig,
    check_configs,
    check_order,
    check_own_tokenizer,
    end_tokens_of_target,
    give_head,
    left_off_of_target,
    named_in,
    read_member_config,
    submodel_of,
)
from .heads import SubsetHead
from .members import device_of, num_parameters_of, usable_device
from .pool_file import MemberEntry, PoolFile, PoolFileError, read_pool_file
from .tokenizer_files import load_tokenizer

Answer = TypeVar("Answer")


def check_pool(path: Path) -> PoolCheck:
    """Check the pool at `path`, a pool file or its folder.

    Raises:
        PoolFileError: the pool file itself cannot be read.
    """
    file, content = read_pool_file(path)
    return _Checking(file, content).checked()


class _Checking:
    """Gathers facts about a pool, and problems by the name of the member, "" for the pool."""

    def __init__(self, file: Path, content: PoolFile) -> None:
        self._file = file
        self._content = content
        self._target = content.members[-1].name
        self._configs: dict[str, MemberConfig] = {}
        self._models: dict[str, PreTrainedModel] = {}
        self._kv_bytes: dict[str, int] = {}
        self._problems: dict[str, list[str]] = {name: [] for name in ("", *(entry.name for entry in content.members))}

    def checked(self) -> PoolCheck:
        loaded = self._tried("", lambda: load_tokenizer(self._file, "tokenizer", self._content.tokenizer))
        tokenizer = None if loaded is None else loaded[0]
        entries = list(enumerate(self._content.members))
        for check in (self._check_model, self._check_head, self._check_submodel):
            for row, entry in entries:
                check(row, entry)
        for row, entry in entries:
            self._check_cache(row, entry)
        for row, entry in entries:
            self._check_tokenizer(row, entry, tokenizer)
        members = [self._described(entry) for entry in self._content.members]
        self._check_rules(tokenizer, members)
        devices = self._devices(members)
        return PoolCheck(
            name=self._content.name,
            context_tokens=self._content.context_tokens,
            num_tokens=None if tokenizer is None else tokenizer.get_vocab_size(),
            members=tuple(members),
            devices=devices,
            problems=tuple(self._problems[""]),
        )

    def _tried(self, member: str, ask: Callable[[], Answer]) -> Answer | None:
        """The result of `ask`; None if it raises, which is noted as a problem of the member."""
        try:
            return ask()
        except ValueError as error:
            self._problems[member].append(in_one_line(error))
            return None

    def _check_model(self, row: int, entry: MemberEntry) -> None:
        location = entry.path
        if location is None:
            return
        self._tried(entry.name, lambda: device_of(self._file, f"members[{row}]", entry))
        field, most = f"members[{row}].path", self._content.context_tokens
        found = self._tried(entry.name, lambda: read_member_config(self._file, field, location, context_tokens=most))
        if found is None:
            return
        self._configs[entry.name] = found
        if entry.tp_plan is not None:
            self._tried(entry.name, lambda: check_split(self._file, f"members[{row}]", found, 1))
        model = self._tried(entry.name, lambda: _without_weights(found, entry.dtype))
        if model is not None:
            self._models[entry.name] = model

    def _check_head(self, row: int, entry: MemberEntry) -> None:
        model, owner = self._models.get(entry.name), self._owner(entry)
        if model is not None and (owner is not None or entry.shares is None):
            if entry.features_of is not None:
                give_input(model)
            self._tried(entry.name, lambda: give_head(self._file, row, entry, model, owner))

    def _owner(self, entry: MemberEntry) -> PreTrainedModel | None:
        """The model whose embeddings a member uses, if it is known; None where it has its own."""
        return None if entry.shares is None else self._models.get(entry.shares[1])

    def _check_submodel(self, row: int, entry: MemberEntry) -> None:
        if entry.submodel_of is None:
            return
        owner = self._models.get(entry.submodel_of)
        if owner is None:
            problem = f"{self._file}: members[{row}].submodel_of {entry.submodel_of} cannot be used"
            self._problems[entry.name].append(problem)
            return
        model = self._tried(entry.name, lambda: submodel_of(self._file, row, entry, owner))
        if model is not None:
            self._models[entry.name] = model

    def _check_cache(self, row: int, entry: MemberEntry) -> None:
        """Check what a token takes in its cache; some models show that only with weights."""
        model = self._models.get(entry.name)
        if model is None:
            return
        try:
            with named_in(self._file, f"members[{row}]", entry.path or entry.name):
                self._kv_bytes[entry.name] = kv_shape_of(model).bytes_per_slot
        except PoolFileError as error:
            self._problems[entry.name].append(str(error))
        except RuntimeError:
            return

    def _check_tokenizer(self, row: int, entry: MemberEntry, tokenizer: Tokenizer | None) -> None:
        location = entry.tokenizer
        if location is None:
            return
        own = self._tried(entry.name, lambda: load_tokenizer(self._file, f"members[{row}].tokenizer", location)[0])
        if own is not None and entry.name in self._configs:
            self._tried(
                entry.name,
                lambda: check_own_tokenizer(
                    self._file, row, entry, own, self._configs, target=self._target, tokenizer=tokenizer
                ),
            )

    def _described(self, entry: MemberEntry) -> MemberCheck:
        owner = next((other for other in self._content.members if other.name == entry.submodel_of), entry)
        model = self._models.get(entry.name)
        check = MemberCheck(
            name=entry.name,
            kind=entry.kind,
            dtype="none" if owner.path is None else owner.dtype,
            device="none" if owner.path is None else f"{owner.device}, split" if owner.tp_plan else owner.device,
            tokenizer=owner.tokenizer or "the pool's",
            problems=tuple(self._problems[entry.name]),
        )
        if model is None:
            return check
        config = self._configs[owner.name]
        head = model.get_output_embeddings()
        return replace(
            check,
            architecture=type(model).__name__,
            vocab_size=int(model.config.vocab_size),
            head_tokens=head.out_features if isinstance(head, SubsetHead) else None,
            eos_token_ids=config.eos_token_ids,
            num_parameters=num_parameters_of(model),
            weight_bytes=self._own_parameters(entry, model) * model.dtype.itemsize,
            kv_bytes_per_token=self._kv_bytes.get(entry.name),
            masks_tried_at_load=not masks_known(config.config),
        )

    def _own_parameters(self, entry: MemberEntry, model: PreTrainedModel) -> int:
        """Parameters without those of the member whose embeddings or layers it uses."""
        owner = self._owner(entry) if entry.submodel_of is None else self._models.get(entry.submodel_of)
        others = set() if owner is None else set(owner.parameters())
        return sum(weight.numel() for weight in model.parameters() if weight not in others)

    def _check_rules(self, tokenizer: Tokenizer | None, members: Sequence[MemberCheck]) -> None:
        """Check rules between members, where enough of them are known."""
        if self._target in self._configs:
            self._tried("", lambda: check_configs(self._file, self._content, self._configs, tokenizer))
            self._tried("", lambda: end_tokens_of_target(self._content, self._configs))
            self._tried("", lambda: left_off_of_target(self._file, self._content, self._configs))
        counts = [0 if member.kind == "ngram" else member.num_parameters for member in members]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts):
            names = [member.name for member in members]
            self._tried("", lambda: check_order(self._file, names, known))

    def _devices(self, members: Sequence[MemberCheck]) -> tuple[DeviceNeed, ...]:
        """Needs by device; notes weights that cannot fit as a problem."""
        needs = []
        for name in dict.fromkeys(member.device for member in members if member.weight_bytes is not None):
            here = [member for member in members if member.device == name]
            device = usable_device(name)
            if device is None:
                continue  # noted at the member; or split over as many processes as torchrun starts
            total = total_bytes(device)
            weights = sum(member.weight_bytes or 0 for member in here)
            kv = self._content.context_tokens * sum(member.kv_bytes_per_token or 0 for member in here)
            copies, choice = self._beside_weights(device, [member.name for member in here], weights)
            needs.append(
                DeviceNeed(
                    device=name,
                    weight_bytes=weights,
                    copy_bytes=copies,
                    choice_bytes=choice,
                    kv_bytes=kv,
                    total_bytes=total,
                )
            )
            if weights + kv > total:
                rule = f"must have {weights + kv:,} bytes for the weights and one request of full length"
                self._problems[""].append(str(PoolFileError(self._file, f"device {name}", rule, total)))
        return tuple(needs)

    def _beside_weights(self, device: torch.device, names: Sequence[str], weight_bytes: int) -> tuple[int, int]:
        """(most bytes of copies of weights, most bytes needed meanwhile to choose forwards by `--forward auto`)."""
        if any(entry.tp_plan is not None for entry in self._content.members):
            return 0, 0  # run by their modules
        models = [self._models[name] for name in names if name in self._models]
        multiplied = {weight for model in models for weight in multiplied_weights(model)}
        if not multiplied:
            return 0, 0
        largest = max(weight.nbytes for weight in multiplied)
        if device.type != "cpu":  # only one product there
            return 0, largest
        choice = max(largest, timing_bytes(weight_bytes)) + LIBRARY_BYTES
        return sum(weight.nbytes for weight in multiplied), choice


def _without_weights(found: MemberConfig, dtype: str) -> PreTrainedModel:
    """The model with shapes and no values; raises ValueError where its class rejects the config."""
    found.config._attn_implementation = attention_of(found.config)
    try:
        with torch.device("meta"):
            model: PreTrainedModel = found.model_class(found.config)
    # Building a model may raise anything.
    except Exception as error:
        raise ValueError(f"{found.location}: the model cannot be built ({error})") from error
    return model.to(getattr(torch, dtype)).eval()

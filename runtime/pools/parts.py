"""Parts of models that pools are made of, from their files: submodels, small heads, tokenizers, chat templates.

A submodel is made of some layers of another model and shares its parameters. It may have a product of two small
matrices beside kept weights, W + B A in the form of LoRA (Hu et al. 2021, arXiv:2106.09685), added up at loading. Where
a config tells layers apart by number other than in a list with an entry for each, a layer with another number is
another layer, and the model has no submodels. A drafter may read and say tokens by the embeddings of another model, as
EAGLE's do by their target's, or have a head over some tokens alone (FR-Spec, Zhao et al. 2025, arXiv:2502.14856;
EAGLE-3, Li et al. 2025, arXiv:2503.01840), which gives all others a probability of exactly 0.

Letters: N contexts, H width of the residual stream, K tokens of the head, V vocabulary, R rank, I and O inputs and
outputs of a linear weight.
"""

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from jinja2 import TemplateError
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging
from transformers.utils.chat_template_utils import render_jinja_template
from transformers.utils.hub import cached_file

from ...base.files import kind_of_json, read_json
from ..forward import UNFIT, apart_by_more_than_rounding, masks_known
from ..rules import BrokenRuleError
from .pool_file import HUB_ID, PoolFile, PoolFileError
from .published import TOKENIZER, fetched

# A head of one token would have nothing to choose, and no second-best token for the gap that policies look at.
FEWEST = 2


def read_head_tokens(path: Path, vocab_size: int) -> list[int]:
    """The ids in a file, in its order, each below `vocab_size`.

    Raises:
        ValueError: the rule that the file breaks, with the value; it names no file.
        OSError: it cannot be read.
    """
    found = read_json(path)
    if not isinstance(found, list):
        raise ValueError(f"must be a list of token ids, got {kind_of_json(found)}")
    last = -1
    for place, token in enumerate(found):
        if type(token) is not int or not last < token < vocab_size:
            rule = f"must be token ids below {vocab_size} in ascending order, each once"
            raise ValueError(f"{rule}, got {token!r} at place {place}")
        last = token
    if not FEWEST <= len(found) < vocab_size:
        raise ValueError(f"must hold {FEWEST} to {vocab_size - 1} of {vocab_size} tokens, got {len(found)}")
    return found


def embedding_names(model: PreTrainedModel) -> set[str]:
    """Names of the weights of the token embeddings and of the output head."""
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    names = {module: name for name, module in model.named_modules()}
    return {f"{names[module]}.{weight}" for module in modules for weight, _ in module.named_parameters()}


def own_embeddings(model: PreTrainedModel) -> set[str]:
    """Those of `embedding_names` that weights of the model's own would hold: a tied head is no weight of its own."""
    names = embedding_names(model)
    if not model.config.tie_word_embeddings:
        return names
    table = model.get_input_embeddings().weight
    return {name for name in names if model.get_parameter(name) is table}


def share_embeddings(model: PreTrainedModel, owner: PreTrainedModel) -> None:
    """Let `model` use the token embeddings and the output head of `owner`, the very same modules, of as many tokens.

    Raises:
        BrokenRuleError: they are of another width, format or device.
    """
    table = owner.get_input_embeddings().weight
    for what, own, other in (
        ("hidden size", int(model.config.hidden_size), table.shape[1]),
        ("dtype", str(model.dtype).removeprefix("torch."), str(table.dtype).removeprefix("torch.")),
        ("device", str(model.device), str(table.device)),
    ):
        if own != other:
            raise BrokenRuleError(f"must be a member of the same {what} ({own})", str(other))
    model.set_input_embeddings(owner.get_input_embeddings())
    model.set_output_embeddings(owner.get_output_embeddings())
    model.config.vocab_size = owner.config.vocab_size


class SubsetHead(nn.Linear):
    """The rows of a head that belong to some tokens.

    `head` is `[V, H]`, whose rows are copied; `tokens` int64 `[K]`, different ones below V, on its device.
    `is_of_another`: `head` and the embeddings belong to another model.
    """

    def __init__(self, head: nn.Linear, tokens: Tensor, *, is_of_another: bool) -> None:
        super().__init__(head.in_features, len(tokens), bias=head.bias is not None, device="meta")
        self.vocab_size = head.out_features
        self.is_of_another = is_of_another
        self.weight = nn.Parameter(head.weight.detach()[tokens], requires_grad=False)
        if head.bias is not None:
            self.bias = nn.Parameter(head.bias.detach()[tokens], requires_grad=False)
        self.tokens: Tensor
        self.register_buffer("tokens", tokens, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """`[..., V]` logits of `[..., H]`."""
        return self.spread(functional.linear(hidden, self.weight, self.bias))

    def spread(self, logits: Tensor) -> Tensor:
        """`[..., V]` of the `[..., K]` logits of the head's tokens; -inf for the others."""
        whole = logits.new_full((*logits.shape[:-1], self.vocab_size), -torch.inf)
        return whole.index_copy_(-1, self.tokens, logits)


TEMPLATE, TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Puts a question into words that a dialogue is written in, up to where the answer begins."""

    place: Path  # where it stands, for messages
    text: str  # Jinja, as transformers renders it
    special: tuple[tuple[str, str], ...]  # texts of special tokens that it may name

    def asked(self, question: str) -> str:
        """The dialogue that a user begins with a question; raises PoolFileError for a template that cannot be used."""
        dialogue = [[{"role": "user", "content": question}]]
        try:
            (rendered,), _ = render_jinja_template(
                dialogue, chat_template=self.text, add_generation_prompt=True, **dict(self.special)
            )
        except (TemplateError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise PoolFileError(self.place, "chat template", "must make a dialogue of one question", reason) from error
        return str(rendered)


def read_chat_template(file: Path, location: str) -> ChatTemplate:
    """The chat template of a pool's tokenizer, at `location`: file relative to the pool file, or a hub id.

    Raises:
        PoolFileError: there is none beside the tokenizer, or it cannot be read.
    """
    try:
        template, config = (_file_of(file, location, name) for name in (TEMPLATE, TOKENIZER_CONFIG))
        values = {} if config is None else _object(config)
        text = values.get("chat_template") if template is None else template.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise PoolFileError(
            file, "tokenizer", f"must have a chat template that can be read ({reason})", location
        ) from error
    place = template or config
    if place is None or not isinstance(text, str):
        rule = f"must have a chat template ({TEMPLATE}, or {TOKENIZER_CONFIG}) beside it for a chat"
        raise PoolFileError(file, "tokenizer", rule, location)
    named = {name: _text_of(values.get(name)) for name in _SPECIAL}
    return ChatTemplate(place, text, tuple((name, said) for name, said in named.items() if said is not None))


def _file_of(file: Path, location: str, name: str) -> Path | None:
    local = file.parent / location
    folder = local.parent if local.is_file() else fetched(location)
    if folder is not None:
        return folder / name if (folder / name).is_file() else None
    found = cached_file(location, name, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)


def _object(path: Path) -> dict[str, Any]:
    values = read_json(path, constants=True)
    if not isinstance(values, dict):
        raise ValueError(f"{path.name} must be an object")
    return values


def _text_of(token: object) -> str | None:
    """A special token is a text, or an object with one."""
    said = token.get("content") if isinstance(token, dict) else token
    return said if isinstance(said, str) else None


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Keep transformers from drawing a bar or a report of its own; what fails to load is said in one line."""
    was_enabled, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if was_enabled:
            logging.enable_progress_bar()


def load_tokenizer(file: Path, field: str, location: str) -> tuple[Tokenizer, str]:
    """The tokenizer at `location` and its hash: of the file, or for a hub id of the serialised tokenizer.

    `location` is a file relative to the pool file, or a hub id, of which one that was fetched has a file; `field` of
    the pool file names it.

    Raises:
        PoolFileError: there is no such tokenizer, or it cannot be read.
    """
    local = file.parent / location
    if not local.is_file() and (location.endswith(".json") or not HUB_ID.fullmatch(location)):
        raise PoolFileError(file, field, "must be an existing file or a hub id (owner/name)", location)
    if not local.is_file() and (here := fetched(location)):
        local = here / TOKENIZER
    tokenizer: Tokenizer
    try:
        if local.is_file():
            tokenizer, hashed = Tokenizer.from_file(str(local)), local.read_bytes()
        else:
            tokenizer = AutoTokenizer.from_pretrained(location, trust_remote_code=False).backend_tokenizer
            hashed = tokenizer.to_str().encode()
    # The tokenizers package raises bare Exception for a file it cannot read.
    except Exception as error:
        raise PoolFileError(file, field, f"cannot be loaded ({error})", location) from error
    # A file may ask for texts to be cut to a length or filled up to it.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, hashlib.sha256(hashed).hexdigest()


def load_member_tokenizers(file: Path, content: PoolFile) -> dict[str, Tokenizer]:
    """Tokenizers of foreign members and of their submodels, by the member's name.

    Raises:
        PoolFileError: as `load_tokenizer`.
    """
    tokenizers = {
        entry.name: load_tokenizer(file, f"members[{row}].tokenizer", entry.tokenizer)[0]
        for row, entry in enumerate(content.members)
        if entry.tokenizer is not None
    }
    for entry in content.members:
        if entry.submodel_of in tokenizers:
            tokenizers[entry.name] = tokenizers[entry.submodel_of]
    return tokenizers


# Tokens that a submodel is tried on, and how far apart they stand: encodings of positions show where that is far.
NUM_TOKENS, POSITION_STEP = 12, 16
LAYERS = "model.layers"
MODES = ("training", "gradient_checkpointing")  # how a module is used, not what it is
# What of a module's attributes is compared; modules, tensors and configs are compared by what they do.
_PLAIN = (bool, int, float, str, tuple, list, type(None))


def check_skipped(model: PreTrainedModel, submodel: PreTrainedModel, kept: Sequence[int]) -> None:
    """Raises BrokenRuleError where a submodel is not `model` with the other layers skipped.

    First the settings of modules are compared, which also tells of windows longer than any text tried, and of models
    without values. Then, where there are values, the logits of a few tokens, of families whose masks `masks_known` does
    not know. `kept` are the numbers in `model`, ascending, of the layers that `submodel` has, numbered anew there.
    """
    _check_settings(model, submodel, kept)
    if len(kept) == model.config.num_hidden_layers or masks_known(model.config) or model.device.type == "meta":
        return
    config: Any = model.config
    ids = torch.arange(NUM_TOKENS, device=model.device)[None] * 7 % int(config.vocab_size)
    positions = getattr(config, "max_position_embeddings", None) or NUM_TOKENS * POSITION_STEP  # None: no bound
    step = max(1, min(POSITION_STEP, positions // NUM_TOKENS))
    name = type(model).__name__
    with torch.no_grad():
        try:
            expected = _logits(_skipping(model, kept), ids, step)
            found = _logits(submodel, ids, step)
        except UNFIT as error:
            reason = " ".join(str(error).split())
            raise BrokenRuleError(
                f"a submodel needs layers that can be skipped, those of {name} cannot ({reason})"
            ) from error
    # Both round alike, whatever the dtype, so that float32's tolerance holds for all.
    if apart_by_more_than_rounding(found, expected, torch.float32) is not None:
        rule = f"a submodel needs layers that do the same under another number, those of {name} do not"
        raise BrokenRuleError(rule, "other logits than with layers skipped")


def _check_settings(model: PreTrainedModel, submodel: PreTrainedModel, kept: Sequence[int]) -> None:
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, module in submodel.named_modules(remove_duplicate=False):
        number = _number_of(name)
        own = None if number is None else (kept[number], number)
        old = name if own is None else name.replace(f"{LAYERS}.{own[1]}", f"{LAYERS}.{own[0]}", 1)
        if old not in modules:
            continue  # what wraps or splits weights; these are compared by their names
        for field, before, after in _differences(modules[old], module):
            if own is None and type(before) is not float:
                continue  # vocabularies, lists of the layers: nothing that scales
            if type(before) is type(after) is int and (before, after) == own:
                continue  # the number itself, which caches go by
            place = f"{old} of {type(model).__name__}"
            rule = f"a submodel needs layers that are the same under another number, {place} is not"
            raise BrokenRuleError(rule, f"{field} {after!r} instead of {before!r}")


def _number_of(name: str) -> int | None:
    layer = name.removeprefix(f"{LAYERS}.").partition(".")[0]
    return int(layer) if name.startswith(f"{LAYERS}.") and layer.isdecimal() else None


def _differences(before: nn.Module, after: nn.Module) -> Iterator[tuple[str, object, object]]:
    if type(before) is not type(after):
        yield "class", type(before).__name__, type(after).__name__
    theirs = vars(before)
    for field, value in vars(after).items():
        if field.startswith("_") or field in MODES or field not in theirs:
            continue
        if isinstance(value, _PLAIN) and isinstance(theirs[field], _PLAIN) and value != theirs[field]:
            yield field, theirs[field], value


def _logits(model: nn.Module, ids: Tensor, step: int) -> Tensor:
    positions = torch.arange(NUM_TOKENS, device=ids.device)[None] * step
    # Without a mask, transformers takes gaps between positions for ends of texts.
    asked = {"position_ids": positions, "attention_mask": torch.ones_like(ids), "use_cache": False}
    logits: Tensor = model(input_ids=ids, **asked).logits
    return logits.float()


def _skipping(model: PreTrainedModel, kept: Sequence[int]) -> nn.Module:
    """`model` with layers that hand on what they are given, made of its own modules and without changing them."""
    whole, inner = _shallow(model), _shallow(model.model)
    layers = enumerate(model.model.layers)
    inner.layers = nn.ModuleList([layer if number in kept else _idle(layer) for number, layer in layers])
    whole.model = inner
    return whole


def _shallow(module: nn.Module) -> nn.Module:
    """The same parameters and parts, but parts can be exchanged."""
    clone = copy.copy(module)
    clone._modules = dict(module._modules)
    return clone


def _idle(layer: nn.Module) -> nn.Module:
    """The layer with all that a model asks of it, but a forward that does nothing."""
    clone = _shallow(layer)
    clone.forward = _handed_on
    return clone


def _handed_on(*given: Tensor, **named: Tensor) -> Tensor:
    hidden: Tensor = given[0] if given else named["hidden_states"]
    return hidden


LAYERS_PREFIX = f"{LAYERS}."
Tensors = TypeVar("Tensors", bound=torch.Tensor)


def make_submodel(model: PreTrainedModel, skip_layers: tuple[int, ...]) -> PreTrainedModel:
    """Leave layers out of `model`; the result has its own KV cache layout with layers 0 to n-1.

    The model must be a decoder with its layers under `model.layers`, as Llama, Qwen and Mistral have them. The result
    is of the same class, and its parameters are the very tensors of `model`.

    Raises:
        BrokenRuleError: the layers lie elsewhere, are out of range, repeated, or none is left, the weights are not
            the model's stock ones, or layers are others under another number (`check_skipped`).
    """
    # Buffers that belong to the weights among them, as what corrects the choice of experts.
    weights: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
    if not any(name.startswith(LAYERS_PREFIX) for name in weights):
        raise BrokenRuleError(f"a submodel needs layers under {LAYERS_PREFIX}, {type(model).__name__} has none")
    num_layers = len(model.model.layers)
    if len(set(skip_layers)) < len(skip_layers) or any(not 0 <= layer < num_layers for layer in skip_layers):
        raise BrokenRuleError(f"must be different layers of 0..{num_layers - 1}", str(skip_layers))
    kept = [layer for layer in range(num_layers) if layer not in skip_layers]
    if not kept:
        raise BrokenRuleError(f"must leave at least one of {num_layers} layers")
    submodel = _built(model, kept)
    if model.tp_size:  # split over processes; so is the submodel, by the same plan on the same mesh
        type(model).maybe_distribute_model(submodel, model.config.distributed_config, model._mesh_manager)
    shared = _renamed(weights, kept)
    _set_gradients(submodel, shared)
    try:
        submodel.load_state_dict(shared, strict=True, assign=True)
    except RuntimeError as error:
        raise BrokenRuleError(*_why_not(model, weights)) from error
    _share_buffers(model, submodel, kept)
    submodel.eval()
    check_skipped(model, submodel, kept)
    submodel.generation_config = copy.deepcopy(model.generation_config)
    return submodel


def _built(model: PreTrainedModel, kept: list[int]) -> PreTrainedModel:
    """Without values; layers of a hybrid, or those that share keys and values, may not stand in any number."""
    try:
        with torch.device("meta"):
            return type(model)(_config_of(model, kept))
    except UNFIT as error:
        reason = " ".join(str(error).split())
        raise BrokenRuleError(f"a submodel cannot be made of {type(model).__name__} ({reason})") from error


def _why_not(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> tuple[str, str]:
    """Rule and what was got where weights do not fit: they are not the model's own, or its layers need them so."""
    name = type(model).__name__
    with torch.device("meta"):
        stock = type(model)(copy.deepcopy(model.config)).state_dict()
    split = bool(model.tp_size)  # shapes are those of a part
    if stock.keys() != weights.keys() or (
        not split and any(stock[key].shape != weight.shape for key, weight in weights.items())
    ):  # quantised, or with adapters
        return f"a submodel needs the stock weights of {name}", "others"
    return f"a submodel needs layers with the same weights under another number, those of {name} have others", ""


def _share_buffers(model: PreTrainedModel, submodel: PreTrainedModel, kept: list[int]) -> None:
    """Frequencies and scales are outside the state dict, so that the submodel's are still without values."""
    values = _renamed(dict(model.named_buffers()), kept)
    for name, buffer in list(submodel.named_buffers()):
        if buffer.is_meta:
            parent, _, own = name.rpartition(".")
            submodel.get_submodule(parent).register_buffer(own, values[name], persistent=False)


def _config_of(model: PreTrainedModel, kept: list[int]) -> PreTrainedConfig:
    config: Any = copy.deepcopy(model.config)
    num_layers, config.num_hidden_layers = config.num_hidden_layers, len(kept)
    for field, value in vars(model.config).items():
        if "layer" not in field or not isinstance(value, (list, tuple)):
            continue
        if _numbers_layers(value, num_layers):  # as mlp_only_layers
            setattr(config, field, [kept.index(layer) for layer in value if layer in kept])
        elif len(value) == num_layers:  # as layer_types, mlp_layer_types, no_rope_layers
            setattr(config, field, [value[layer] for layer in kept])
    found: PreTrainedConfig = config
    return found


def _numbers_layers(value: Sequence[object], num_layers: int) -> bool:
    """Whether a list has the numbers of some layers, ascending, and not an entry for each layer, as 0 and 1 may be."""
    numbers = [entry for entry in value if type(entry) is int and 0 <= entry < num_layers]
    ascending = len(numbers) == len(value) and sorted(set(numbers)) == numbers
    return ascending and (len(value) != num_layers or num_layers > 2)


def _set_gradients(submodel: PreTrainedModel, shared: Mapping[str, torch.Tensor]) -> None:
    """Assigning hands the submodel's own setting to the shared tensors, so it has to be theirs already."""
    for name, parameter in submodel.named_parameters(remove_duplicate=False):
        if name in shared:
            parameter.requires_grad_(shared[name].requires_grad)


def _renamed(weights: Mapping[str, Tensors], kept: list[int]) -> dict[str, Tensors]:
    """The kept layers under their new numbers, and everything outside the layers."""
    renamed = {}
    for name, parameter in weights.items():
        if not name.startswith(LAYERS_PREFIX):
            renamed[name] = parameter
            continue
        layer, _, rest = name.removeprefix(LAYERS_PREFIX).partition(".")
        if int(layer) in kept:
            renamed[f"{LAYERS_PREFIX}{kept.index(int(layer))}.{rest}"] = parameter
    return renamed


DOWN, UP, WHOLE = ".A", ".B", ".weight"


def read_low_rank(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; raises BrokenRuleError where it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())
        raise BrokenRuleError(f"must be a safetensors file that can be read ({reason})") from error


def restore(submodel: PreTrainedModel, skip_layers: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
    """Give a submodel weights of its own where there are tensors for them; all others stay those of its model.

    Args:
        submodel: changed; its weights may be without values, and are then made without any.
        skip_layers: layers that it leaves out.
        tensors: by the name of a module in the whole model, as `model.layers.3.mlp.up_proj`: `.A` `[R, I]` and `.B`
            `[O, R]` of a linear one, or the `.weight` `[H]` of a norm in its place.

    Raises:
        BrokenRuleError: no tensors, of layers or modules that there are not, or of shapes that do not fit.
    """
    if not tensors:
        raise BrokenRuleError("must hold at least one tensor")
    modules = {name: module for name, module in submodel.named_modules() if name}
    for name in sorted(tensors):
        module, _, _ = name.rpartition(".")
        kept = modules.get(kept_name(module, skip_layers))
        if kept is None:
            raise BrokenRuleError(f"must hold tensors of layers that are kept ({name} is of none)")
        if not tensors[name].is_floating_point():
            raise BrokenRuleError(f"must hold floating-point tensors ({name} is {_dtype(tensors[name])})")
        if name.endswith(WHOLE):
            _replace(name, kept, tensors[name])
        elif name.endswith(DOWN):
            _merge(module, kept, tensors)
        elif not name.endswith(UP) or module + DOWN not in tensors:
            rule = f"must hold A and B of linear modules and weights of norms ({name} is none of a pair)"
            raise BrokenRuleError(rule)


def kept_name(module: str, skip_layers: Sequence[int]) -> str:
    """What a module of the whole model is called in a submodel; empty if it is left out."""
    layer, _, rest = module.removeprefix(LAYERS_PREFIX).partition(".")
    if not module.startswith(LAYERS_PREFIX) or not layer.isdecimal():
        return module
    if int(layer) in skip_layers:
        return ""
    return f"{LAYERS_PREFIX}{int(layer) - sum(skipped < int(layer) for skipped in skip_layers)}.{rest}"


def _replace(name: str, module: nn.Module, tensor: Tensor) -> None:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, nn.Parameter) or weight.dim() != 1:
        raise BrokenRuleError(f"must hold whole weights of norms only ({name} is of {type(module).__name__})")
    if tensor.shape != weight.shape:
        raise BrokenRuleError(f"must hold shapes that fit ({name} is {_shape(tensor)}, not {_shape(weight)})")
    _give(module, tensor.to(weight.device, weight.dtype, copy=True))


def _merge(name: str, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """W + B A for a linear module, added up in float32."""
    if type(module) is not nn.Linear or not name.startswith(LAYERS_PREFIX):
        found = f"{name}{DOWN} is of {type(module).__name__}"
        raise BrokenRuleError(f"must hold A and B of linear modules of layers only ({found})")
    if name + UP not in tensors:
        raise BrokenRuleError(f"must hold A and B of linear modules ({name}{UP} is missing)")
    down, up, weight = tensors[name + DOWN], tensors[name + UP], module.weight
    rank = down.shape[0] if down.dim() == 2 else 0
    for tensor, suffix, fits in (
        (down, DOWN, (rank, module.in_features)),
        (up, UP, (module.out_features, rank)),
    ):
        if rank == 0 or tuple(tensor.shape) != fits:
            wanted = " x ".join(map(str, fits)) if rank else f"R x {module.in_features}"
            raise BrokenRuleError(f"must hold shapes that fit ({name}{suffix} is {_shape(tensor)}, not {wanted})")
    added = torch.matmul(up.to(weight.device, torch.float32), down.to(weight.device, torch.float32))
    _give(module, (weight.detach().float() + added).to(weight.dtype))


def _give(module: nn.Module, weight: Tensor) -> None:
    module.register_parameter("weight", nn.Parameter(weight, requires_grad=False))


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")

"""A model's shape from its Hugging Face `config.json`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...strict_json import decode_json, kind_of_json
from ..errors import TraceFormatError
from ..meta import MOST, ModelInfo
from .decoder import WIDTHS, Decoder, Mixture
from .heads import eagle3, head_of

CONFIG = "config.json"


class _Family(NamedTuple):
    """Decoders with gated feed-forward parts, as transformers makes them of a config.

    Attributes:
        norms, head_norms: in a layer, of the hidden size and of a head.
        bias: whether queries, keys and values have one where the config does not say.
        bias_key: that says so; "" where a config has no say.
        output_bias: whether the same key gives attention's output one.
        mlp_bias_key: that gives feed-forward parts biases; "" for none.
    """

    norms: int = 2
    head_norms: int = 0
    bias: bool = False
    bias_key: str = "attention_bias"
    output_bias: bool = True
    mlp_bias_key: str = ""


_TYPES: dict[str, _Family] = {
    "llama": _Family(mlp_bias_key="mlp_bias"),
    "mistral": _Family(bias_key=""),
    "qwen2": _Family(bias=True, bias_key="", output_bias=False),
    "qwen3": _Family(head_norms=2),
    "gemma": _Family(),
    "gemma2": _Family(norms=4),
    "gemma3_text": _Family(norms=4, head_norms=2),
    "mixtral": _Family(bias_key=""),
    "qwen2_moe": _Family(bias=True, bias_key="qkv_bias", output_bias=False),
    "qwen3_moe": _Family(head_norms=2),
}
_MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")
_TIED = {"gemma", "gemma2", "gemma3_text"}  # unless their config says otherwise
MOST_PARAMETERS = 2**57  # so that counts of heads, and bytes, stay within 64 bits
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def read_hub_config(path: Path, name: str) -> ModelInfo:
    """The shape that a config gives a member of this name; nothing but the file is read.

    Args:
        path: of a `config.json`, or of the folder that holds it.
        name: of the member.

    Raises:
        TraceFormatError: a file that is no config, or one of a model whose shape does not follow from it.
    """
    return _config(path).shape(name)


def read_hub_decoder(path: Path) -> Decoder | None:
    """What the model of a config is made of; None of a head's. Arguments and errors are those of `read_hub_config`."""
    config = _config(path)
    return None if config.is_head else config.decoder()


def _config(path: Path) -> "_Config":
    file = path / CONFIG if path.is_dir() else path
    try:
        content = decode_json(file.read_bytes())
    except OSError as error:
        raise TraceFormatError(file, "file", "must be a readable file", error.strerror) from None
    except ValueError as error:
        raise TraceFormatError(file, "content", "must be JSON", str(error)) from None
    if not isinstance(content, dict):
        raise TraceFormatError(file, "content", "must be an object", kind_of_json(content))
    return _Config(file, content)


class _Config:
    """The keys of a config, checked as they are read."""

    def __init__(self, path: Path, content: Mapping[str, Any]) -> None:
        text = content.get("text_config")
        self._path = path
        self._whole = content
        self._keys: Mapping[str, Any] = text if isinstance(text, dict) else content

    def shape(self, name: str) -> ModelInfo:
        """See `read_hub_config`."""
        if self._get("quantization_config") is not None:
            raise self._error("quantization_config", "must be absent, a quantised model reads other bytes", "one")
        kind = self._keys.get("model_type")
        for key in () if kind in _MIXTURES else _EXPERTS:
            if self._get(key) is not None:
                rule = f"must be absent, mixtures of experts are {', '.join(_MIXTURES)}; give others in FILE.json"
                raise self._error(key, rule, self._get(key))
        decoder, called = self.decoder(), self._called()
        if "eagle" in called and decoder.mixture is not None:
            raise self._error("model_type", "must be that of a dense decoder, of an EAGLE head", kind)
        if "eagle3" in called:
            drafted = self._count("draft_vocab_size") if "draft_vocab_size" in self._keys else decoder.vocabulary
            return eagle3(decoder, name, vocabulary=drafted)
        head = head_of("eagle", decoder, name) if "eagle" in called else None
        return head or decoder.info(name)

    @property
    def is_head(self) -> bool:
        """Whether it is one of an EAGLE head."""
        return "eagle" in self._called()

    def _called(self) -> str:
        return " ".join(str(each).lower() for each in self._list(self._whole, "architectures"))

    def decoder(self) -> Decoder:
        """What the model is made of, of a head the decoder that its layer is like."""
        kind = self._keys.get("model_type")
        if not isinstance(kind, str) or kind not in _TYPES:
            rule = f"must be one of {', '.join(_TYPES)}; of another give the shape itself in FILE.json"
            raise self._error("model_type", rule, kind)
        if self._get("per_layer_config"):
            raise self._error("per_layer_config", "must be absent, layers that differ have no shape in common", "one")
        family = _TYPES[kind]
        bias = self._flag(family.bias_key, otherwise=family.bias) if family.bias_key else family.bias
        hidden, heads = self._count("hidden_size"), self._count("num_attention_heads")
        if self._keys.get("head_dim") is None and hidden % heads:
            raise self._error("hidden_size", f"must be a multiple of num_attention_heads, {heads}", hidden)
        decoder = Decoder(
            hidden=hidden,
            layers=self._count("num_hidden_layers"),
            heads=heads,
            kv_heads=self._count("num_key_value_heads", otherwise=heads),
            head_size=self._count("head_dim", otherwise=hidden // heads),
            intermediate=self._count("intermediate_size"),
            vocabulary=self._count("vocab_size"),
            tied=self._flag("tie_word_embeddings", otherwise=kind in _TIED),
            bias=bias,
            output_bias=bias and family.output_bias,
            feed_forward_bias=bool(family.mlp_bias_key) and self._flag(family.mlp_bias_key, otherwise=False),
            norms=family.norms,
            head_norms=family.head_norms,
            dtype=self._dtype(),
            mixture=self._mixture(kind) if kind in _MIXTURES else None,
        )
        if decoder.parameters > MOST_PARAMETERS:
            raise self._error("config", f"must be of at most {MOST_PARAMETERS} parameters", decoder.parameters)
        return decoder

    def _mixture(self, kind: str) -> Mixture | None:
        """None where every layer is dense."""
        # Published configs of Qwen say num_experts, those that transformers 5 saves num_local_experts.
        held = [key for key in ("num_experts", "num_local_experts") if self._keys.get(key) is not None]
        usual = "num_local_experts" if kind == "mixtral" else "num_experts"
        experts = self._count(held[0] if held else usual)
        if len(held) > 1 and self._count(held[1]) != experts:
            raise self._error(held[1], f"must be {held[0]}, {experts}", self._keys[held[1]])
        per_token, layers = self._count("num_experts_per_tok"), self._count("num_hidden_layers")
        if not per_token <= experts > 1:
            raise self._error(
                "num_experts_per_tok", f"must be at most the experts, two at least ({experts})", per_token
            )
        if kind == "mixtral":
            return Mixture(experts=experts, per_token=per_token, intermediate=self._count("intermediate_size"))
        step = self._count("decoder_sparse_step", otherwise=1)
        listed = self._list(self._keys, "mlp_only_layers")
        if not all(type(layer) is int for layer in listed):
            raise self._error("mlp_only_layers", "must hold numbers of layers", listed)
        mixed = layers // step - sum((layer + 1) % step == 0 for layer in set(listed) if 0 <= layer < layers)
        if mixed == 0:
            return None
        return Mixture(
            experts=experts,
            per_token=per_token,
            intermediate=self._count("moe_intermediate_size"),
            shared=self._count("shared_expert_intermediate_size") if kind == "qwen2_moe" else 0,
            dense_layers=layers - mixed,
        )

    def _dtype(self) -> str:
        key = "dtype" if self._get("dtype") is not None else "torch_dtype"
        found = self._get(key)
        if not isinstance(found, str) or found not in WIDTHS:
            raise self._error(key, f"must be one of {', '.join(WIDTHS)}", found)
        return found

    def _get(self, key: str) -> object:
        """From the text part, else from the whole config."""
        return self._keys.get(key, self._whole.get(key))

    def _count(self, key: str, *, otherwise: int | None = None) -> int:
        found = self._keys.get(key)
        found = otherwise if found is None else found
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= MOST:
            raise self._error(key, f"must be a whole number in [1, {MOST}]", found)
        return found

    def _flag(self, key: str, *, otherwise: bool) -> bool:
        found = self._get(key)
        if found is None:
            return otherwise
        if not isinstance(found, bool):
            raise self._error(key, "must be true or false", found)
        return found

    def _list(self, keys: Mapping[str, Any], key: str) -> list[Any]:
        found = keys.get(key) or []
        if not isinstance(found, list):
            raise self._error(key, "must be a list", found)
        return found

    def _error(self, key: str, rule: str, found: object) -> TraceFormatError:
        return TraceFormatError(self._path, key, rule, "nothing" if found is None else found)

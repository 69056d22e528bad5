"""Shapes of models that a user gives: a list of them in a file, a preset, or a Hugging Face `config.json`."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from ..base.errors import ArgumentError, known_are, repeated
from ..base.files import checked_config, checked_json
from .errors import TraceFormatError
from .meta import MOST, WIDTHS, DraftBlock, ModelInfo, Windowed
from .quantisation import CONFIG, quantised_decoder, quantised_weights
from .shapes import (
    EAGLE3_FEATURES,
    FORMATS,
    KV_WIDTHS,
    SHAPES_PAGE,
    DecoderShape,
    Derived,
    Latent,
    Mixture,
    derived_submodels,
    dflash,
    eagle,
    eagle3,
    head_called,
    head_of,
    medusa,
    model_called,
    preset_names,
    presets,
)


class _Family(NamedTuple):
    """Decoders with gated feed-forward parts, as transformers builds them from a config."""

    names: tuple[str, ...]  # in `architectures`: of the model itself, or of one whose text part it is
    norms: int = 2  # in a layer, of the hidden size
    head_norms: int | None = 0  # and of a head's size; None: of all heads of queries, and of keys
    head_norms_key: str = ""  # of the config for whether it has them; "" for none
    bias: bool = False  # whether queries, keys and values have one by default
    bias_key: str = "attention_bias"  # of the config for that; "" for none
    output_bias: bool = True  # whether the same key is for attention's output too
    mlp_bias_key: str = ""  # of the config for biases of feed-forward parts; "" for none
    head_size: int | None = None  # by default; None: hidden size over heads
    tied: bool = False  # whether output and embedding share weights by default
    mixture: str = ""  # of experts, the key of the config for how many; "" for none
    sinks: bool = False  # see `DecoderShape`
    latent: bool = False  # whether keys and values are compressed
    # Layers with a window, if the config says how long: all, those of `use_sliding_window`, or all except each n-th
    windows: Literal["", "all", "asked"] | int = ""
    window: int | None = None  # by default
    sizes: Mapping[str, int] = {}  # that configs leave out where they are these, by their keys


_LLAMA = ("LlamaForCausalLM", "LlavaForConditionalGeneration")
_MISTRAL = ("MistralForCausalLM", "Mistral3ForConditionalGeneration")
_GEMMA3 = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
_GEMMA3_SIZES = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208}  # those of 4b
_QWEN2_MOE = ("Qwen2MoeForCausalLM",)
_MINISTRAL3 = ("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration")
_DEEPSEEK_V3 = _Family(("DeepseekV3ForCausalLM",), bias_key="", mixture="n_routed_experts", latent=True)
_TYPES: dict[str, _Family] = {
    "llama": _Family(_LLAMA, mlp_bias_key="mlp_bias"),
    "mistral": _Family(_MISTRAL, bias_key="", windows="all", window=4096),
    "qwen2": _Family(("Qwen2ForCausalLM",), bias=True, bias_key="", output_bias=False, windows="asked", window=4096),
    "qwen3": _Family(("Qwen3ForCausalLM",), head_norms=2, head_size=128, windows="asked", window=4096),
    "gemma": _Family(("GemmaForCausalLM",), head_size=256, tied=True),
    "gemma2": _Family(("Gemma2ForCausalLM",), norms=4, head_size=256, tied=True, windows=2, window=4096),
    "gemma3_text": _Family(
        _GEMMA3, norms=4, head_norms=2, head_size=256, tied=True, sizes=_GEMMA3_SIZES, windows=6, window=4096
    ),
    "phi3": _Family(("Phi3ForCausalLM",), bias_key="", windows="all"),
    "glm4": _Family(("Glm4ForCausalLM",), norms=4, bias=True, output_bias=False, head_size=128),
    "granite": _Family(("GraniteForCausalLM",), mlp_bias_key="mlp_bias"),
    "smollm3": _Family(("SmolLM3ForCausalLM",), mlp_bias_key="mlp_bias", tied=True, windows="asked"),
    "ministral3": _Family(_MINISTRAL3, bias_key="", head_size=128, windows="all"),
    "exaone4": _Family(("Exaone4ForCausalLM",), head_norms=2, bias_key="", windows=4, window=4096),
    "olmo2": _Family(("Olmo2ForCausalLM",), head_norms=None),
    "olmo3": _Family(("Olmo3ForCausalLM",), head_norms=None, windows=4, window=4096),
    "mixtral": _Family(("MixtralForCausalLM",), bias_key="", mixture="num_local_experts", windows="all"),
    "qwen2_moe": _Family(
        _QWEN2_MOE, bias=True, bias_key="qkv_bias", output_bias=False, mixture="num_experts", windows="asked",
        window=4096,
    ),
    "qwen3_moe": _Family(
        ("Qwen3MoeForCausalLM",), head_norms=2, mixture="num_experts", windows="asked", window=4096
    ),
    "glm4_moe": _Family(
        ("Glm4MoeForCausalLM",), head_norms=2, head_norms_key="use_qk_norm", output_bias=False,
        mixture="n_routed_experts",
    ),
    "minimax_m2": _Family(
        ("MiniMaxM2ForCausalLM",), head_norms=None, bias_key="", head_size=128, mixture="num_local_experts"
    ),
    "gpt_oss": _Family(
        ("GptOssForCausalLM",), bias=True, head_size=64, mixture="num_local_experts", sinks=True, windows=2, window=128
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
}  # fmt: skip
_MIXTURES = tuple(kind for kind, family in _TYPES.items() if family.mixture)
# Drafters, for any `model_type`, which is that of their layers.
_DRAFTERS: dict[str, str] = {
    "EagleLlamaForCausalLM": "eagle",
    "LlamaForCausalLMEagle": "eagle",
    "Qwen2ForCausalLMEagle": "eagle",
    "Eagle3LlamaForCausalLM": "eagle3",
    "LlamaForCausalLMEagle3": "eagle3",
    "Eagle3Speculator": "eagle3",
    "DFlashDraftModel": "dflash",
    "MedusaModel": "medusa",
}
# Of models that draft in parallel, PARD and P-EAGLE: the mask token for those to be drafted.
_PARALLEL = ("pard_token", "pard_token_id", "ptd_token_id", "parallel_drafting")
# Keys of drafters for a target; with one of them, `architectures` must name the drafter.
_OF_DRAFTERS = ("dflash_config", "eagle_config", "draft_vocab_size", "medusa_num_heads", "speculators_model_type")
_LEAST_TARGET = 1024  # hidden size: heads are published for models of at least this one
# Keys that a config may leave out. One that is nearly so called is refused: it may be meant.
_OPTIONAL = (
    *("num_key_value_heads", "head_dim", "tie_word_embeddings", "attention_bias", "mlp_bias", "qkv_bias"),
    *("draft_vocab_size", "target_hidden_size", "num_attention_heads", "vocab_size"),
    *("use_qk_norm", "num_nextn_predict_layers"),
)
# Of layers that are unlike each other, or unlike those of all known decoders: compressed or linear attention.
_OTHER_LAYERS = ("per_layer_config", "block_configs", "hybrid_override_pattern", "kv_lora_rank", "linear_attn_config")
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")
_FEATURES = "eagle_aux_hidden_state_layer_ids"  # within eagle_config, or beside it
_NO_DFLASH = ("projector_type", "markov_rank", "selector_rank", "conv_kernel_size")  # DSpark, Domino and DFlash 2
_CLOSE = 0.85  # by difflib: a letter or two of such a key
_OTHER_KV_HEADS = re.compile(r"n_head_kv|n(um)?_kv_heads|num_query_groups|multi_query_group_num")
MOST_PARAMETERS = 2**57  # so that counts of heads, and bytes, fit 64 bits
_KNOWN = (*(name for family in _TYPES.values() for name in family.names), *_DRAFTERS)
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


class _Config:
    """The config in a file, or in a folder, checked as its keys are read; raises TraceFormatError."""

    def __init__(self, path: Path) -> None:
        path = path / CONFIG if path.is_dir() else path
        content = checked_config(path, TraceFormatError)
        parts = (content.get("text_config"), content.get("transformer_layer_config"))
        self._path = path
        self._whole = content
        self._keys: Mapping[str, Any] = next((part for part in parts if isinstance(part, dict)), content)
        self.kind = self._kind()

    def shape(self, name: str) -> ModelInfo:
        if self.kind == "medusa":
            return self._medusa(name)
        if self.kind == "":
            return self.whole().info(name)
        decoder = self.decoder()
        if quantised_decoder(decoder, self._path, self._whole) != decoder:
            raise self._error("quantization_config", "must be absent of drafters; give theirs in FILE.json", "one")
        if decoder.mixture is not None or decoder.latent is not None:
            kind = self._keys.get("model_type")
            raise self._error("model_type", "must be that of a dense decoder with keys and values of heads", kind)
        if self.kind != "eagle3" and self._count("target_hidden_size", otherwise=decoder.hidden) != decoder.hidden:
            rule = f"must be hidden_size, {decoder.hidden}: it uses the target's embedding and output"
            raise self._error("target_hidden_size", rule, self._count("target_hidden_size"))
        return self._dflash(decoder, name) if self.kind == "dflash" else self._eagle(decoder, name)

    def check_reads(self, target: ModelInfo) -> None:
        """Raise TraceFormatError where it is a drafter that reads states of another width than `target` has."""
        key = "target_hidden_size" if self._get("target_hidden_size") is not None else "hidden_size"
        if self.kind and self._count(key) != target.hidden_size:
            rule = f"must be the {target.hidden_size} of {target.name}: a head reads the target's states, no other's"
            raise self._error(key, rule, self._count(key))

    def whole(self, *, in_parallel: bool = False) -> DecoderShape:
        """A model that is not a drafter for a target; with `in_parallel` it may have keys of parallel drafting."""
        if not in_parallel:
            self._refuse_parallel("it drafts in parallel, how many tokens you have to say: NAME=CONFIG@block=TOKENS")
        decoder = quantised_decoder(self.decoder(), self._path, self._whole)
        if decoder.layers == 1 and decoder.hidden >= _LEAST_TARGET:
            rule = "must be 2 or more: of one layer are EAGLE heads, say NAME=eagle-PRESET, or give it in FILE.json"
            raise self._error("num_hidden_layers", rule, 1)
        return decoder

    def _kind(self) -> str:
        """The drafter by `architectures`, a value of `_DRAFTERS`; "" for a decoder."""
        called = self._list(self._whole, "architectures")
        made_for = next((key for key in _OF_DRAFTERS if self._get(key) is not None), None)
        if not called and made_for is None:
            kind = self._keys.get("model_type")
            if isinstance(kind, str) and kind in _TYPES:  # `decoder` raises for others
                add = " or ".join(f'["{name}"]' for name in _TYPES[kind].names)
                rule = f"must be there, or it is not known whether this is a drafter; of a whole model add {add}"
                raise self._error("architectures", rule, None)
            return ""
        name = called[0] if len(called) == 1 else None
        if not isinstance(name, str) or name not in _KNOWN:
            raise self._error("architectures", _unknown(name, _KNOWN), name or called or None)
        model_type = self._keys.get("model_type")
        known = _TYPES[model_type].names if isinstance(model_type, str) and model_type in _TYPES else (name,)
        if name not in _DRAFTERS and name not in known:
            raise self._error("architectures", f"must be {' or '.join(known)}, of model_type {model_type}", name)
        if name not in _DRAFTERS and made_for is not None:
            raise self._error(made_for, f"must be absent, of {name}", self._get(made_for))
        return _DRAFTERS.get(name, "")

    def _refuse_parallel(self, why: str) -> None:
        for key in _PARALLEL:
            if self._get(key) not in (None, False):
                raise self._error(key, f"must be absent: {why}", self._get(key))

    def _eagle(self, decoder: DecoderShape, name: str) -> ModelInfo:
        """Its layers, and the projection that joins them to its target."""
        self._refuse_parallel("heads that draft in parallel are not known, give theirs in FILE.json")
        if self.kind == "eagle":
            return eagle(decoder, name, layers=decoder.layers)
        drafted = decoder.vocabulary if self._get("draft_vocab_size") is None else self._count("draft_vocab_size")
        width = self._states() * self._count("target_hidden_size", otherwise=decoder.hidden)
        return eagle3(decoder, name, vocabulary=drafted, joined=width, layers=decoder.layers)

    def _states(self) -> int:
        """How many of the target's states an EAGLE-3 head joins; 0 where it reads the last one as it is."""
        said = self._get("eagle_config")
        keys: dict[str, Any] = said if isinstance(said, dict) else {}
        listed, beside = self._list(keys, _FEATURES), self._list(self._own, _FEATURES)
        given = {*keys, *self._own}
        for near in () if _FEATURES in given else get_close_matches(_FEATURES, given, n=1, cutoff=_CLOSE):
            where = f"eagle_config.{near}" if near in keys else near
            raise self._error(where, f"must be {_FEATURES}, which is left out", keys.get(near, self._get(near)))
        if listed and beside and listed != beside:
            raise self._error(_FEATURES, f"must be that of eagle_config, {listed}", beside)
        if keys.get("parallel_draft_step") not in (None, 1):
            rule = "must be 1: heads that draft in parallel are not known, give theirs in FILE.json"
            raise self._error("eagle_config.parallel_draft_step", rule, keys["parallel_draft_step"])
        found = len(listed or beside)
        counted = self._count("num_aux_hidden_states", otherwise=found or EAGLE3_FEATURES)
        if found not in (0, counted):
            raise self._error("num_aux_hidden_states", f"must be {found}, the states of {_FEATURES}", counted)
        used = keys.get("use_aux_hidden_state")
        if not isinstance(used, bool | None):
            raise self._error("eagle_config.use_aux_hidden_state", "must be true or false", used)
        return 0 if used is False else counted

    def _dflash(self, decoder: DecoderShape, name: str) -> ModelInfo:
        said = self._get("dflash_config")
        keys: dict[str, Any] = said if isinstance(said, dict) else {}
        features = self._list(keys, "target_layer_ids")
        if not features:
            raise self._error("dflash_config.target_layer_ids", "must be a list of the target's layers", None)
        for key in _NO_DFLASH:
            if keys.get(key, self._get(key)) not in (None, 0, "dflash"):
                why = "must be absent: a DFlash drafter with more parts is not known, give it in FILE.json"
                raise self._error(key, why, keys.get(key, self._get(key)))
        block = self._count("block_size")
        if keys.get("block_size") not in (None, block):
            raise self._error("dflash_config.block_size", f"must be block_size, {block}", keys["block_size"])
        if block < 2:
            raise self._error("block_size", "must be 2 or more, the last token and those drafted after it", block)
        if self._get("draft_vocab_size") not in (None, decoder.vocabulary):
            raise self._error("draft_vocab_size", "must be absent, of DFlash", self._get("draft_vocab_size"))
        return dflash(decoder, name, features=len(features), tokens=block - 1)

    def _medusa(self, name: str) -> ModelInfo:
        """Parallel heads; of the target the config has only sizes."""
        heads = self._count("num_heads" if self._get("medusa_num_heads") is None else "medusa_num_heads")
        layers = self._count("num_hidden_layers" if self._get("medusa_num_layers") is None else "medusa_num_layers")
        vocabulary = self._count("vocab_size")
        for key, known in (("truncated_vocab_size", (None, vocabulary)), ("original_lm_head", (None, False))):
            if self._get(key) not in known:
                raise self._error(key, "must be absent, heads that share an output are not known", self._get(key))
        hidden = self._count("hidden_size")
        if heads * (layers * hidden + vocabulary) * hidden > MOST_PARAMETERS:
            raise self._error("config", f"must be of at most {MOST_PARAMETERS} parameters", heads)
        return medusa(name, hidden=hidden, vocabulary=vocabulary, dtype=self._dtype(), heads=heads, layers=layers)

    def decoder(self) -> DecoderShape:
        """The model's decoder; of a head the decoder with such a layer."""
        kind = self._keys.get("model_type")
        for key in () if kind in _MIXTURES else _EXPERTS:
            if self._get(key) is not None:
                rule = f"must be absent, mixtures of experts are {', '.join(_MIXTURES)}; give others in FILE.json"
                raise self._error(key, rule, self._get(key))
        if not isinstance(kind, str) or kind not in _TYPES:
            raise self._error("model_type", _unknown(kind, _TYPES), kind)
        family = _TYPES[kind]
        for key in (key for key in _OTHER_LAYERS if self._get(key) and not (family.latent and key == "kv_lora_rank")):
            raise self._error(key, "must be absent, layers that differ have no shape in common", "one")
        layers, kinds = self._count("num_hidden_layers"), self._list(self._keys, "layer_types")
        for one in kinds:
            if one not in _ATTENTION:
                raise self._error("layer_types", f"must hold {', '.join(_ATTENTION)} alone, of model_type {kind}", one)
        if kinds and len(kinds) != layers:
            raise self._error("layer_types", f"must hold one for each layer, {layers}", len(kinds))
        self._refuse_near({"head_dim"} if family.latent else set())
        bias = self._flag(family.bias_key, otherwise=family.bias) if family.bias_key else family.bias
        hidden, sizes = self._count("hidden_size"), family.sizes
        heads = self._count("num_attention_heads", otherwise=sizes.get("num_attention_heads"))
        kv_heads, head_norms = self._kv_heads(kind, heads, sizes.get("num_key_value_heads")), family.head_norms
        if family.head_norms_key and not self._flag(family.head_norms_key, otherwise=False):
            head_norms = 0
        decoder = DecoderShape(
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_size=1 if family.latent else self._head_size(family, hidden, heads),
            intermediate=self._count("intermediate_size"),
            vocabulary=self._count("vocab_size", otherwise=sizes.get("vocab_size")),
            tied=self._flag("tie_word_embeddings", otherwise=family.tied),
            bias=bias,
            output_bias=bias and family.output_bias,
            feed_forward_bias=bool(family.mlp_bias_key) and self._flag(family.mlp_bias_key, otherwise=False),
            norms=family.norms,
            head_norms=heads + kv_heads if head_norms is None else head_norms,
            dtype=self._dtype(),
            mixture=self._mixture(kind, family.mixture) if family.mixture else None,
            windowed=self._windowed(family, layers, kinds),
            sinks=family.sinks,
            latent=self._latent() if family.latent else None,
        )
        if decoder.parameters > MOST_PARAMETERS:
            raise self._error("config", f"must be of at most {MOST_PARAMETERS} parameters", decoder.parameters)
        return decoder

    def _windowed(self, family: _Family, layers: int, kinds: Sequence[str]) -> Windowed | None:
        """Layers that attend to a window alone, where the config names them, or by its family."""
        rule = family.windows
        if rule == "asked" and not self._flag("use_sliding_window", otherwise=False):
            return None
        if not rule or self._keys.get("sliding_window", family.window) in (None, 0):
            return None
        tokens = self._count("sliding_window", otherwise=family.window)
        if kinds:
            number = sum(one == "sliding_attention" for one in kinds)
        elif rule == "asked":
            raise self._error("layer_types", "must be there, with use_sliding_window", None)
        elif rule == "all":
            number = layers
        else:
            number = layers - layers // self._count("sliding_window_pattern", otherwise=rule)
        return Windowed(layers=number, tokens=tokens) if number else None

    def _refuse_near(self, unread: Collection[str]) -> None:
        """Raise for a key that may stand for one that is left out, unless it is not read."""
        given = [name for name, found in self._own.items() if found is not None]
        for key in (key for key in _OPTIONAL if self._get(key) is None and key not in unread):
            other = [name for name in given if key == "num_key_value_heads" and _OTHER_KV_HEADS.fullmatch(name)]
            for name in [*get_close_matches(key, given, n=1, cutoff=_CLOSE), *other]:
                raise self._error(name, f"must be {key}, which is left out", self._own[name])

    def _kv_heads(self, kind: str, heads: int, usual: int | None) -> int:
        """Of keys and values: as many as of queries where the config says null, or where Llama's says nothing."""
        left_out = "num_key_value_heads" not in self._own
        if left_out and kind != "llama" and usual is None:
            raise self._error("num_key_value_heads", f"must be there, of model_type {kind}", None)
        found = self._count("num_key_value_heads", otherwise=(usual if left_out else None) or heads)
        if heads % found:
            raise self._error("num_key_value_heads", f"must divide num_attention_heads, {heads}", found)
        return found

    def _head_size(self, family: _Family, hidden: int, heads: int) -> int:
        if "head_dim" not in self._own and family.head_size is not None:
            return family.head_size
        if self._own.get("head_dim") is None and hidden % heads:
            raise self._error("hidden_size", f"must be a multiple of num_attention_heads, {heads}", hidden)
        return self._count("head_dim", otherwise=hidden // heads)

    def _latent(self) -> Latent:
        if self._flag("attention_bias", otherwise=False):
            raise self._error("attention_bias", "must be false, of compressed keys and values", "true")
        return Latent(
            queries=0 if self._keys.get("q_lora_rank") is None else self._count("q_lora_rank"),
            state=self._count("kv_lora_rank"),
            plain=self._count("qk_nope_head_dim"),
            turned=self._count("qk_rope_head_dim"),
            values=self._count("v_head_dim"),
        )

    def _mixture(self, kind: str, usual: str) -> Mixture | None:
        """None where every layer is dense."""
        # Published configs have the usual key, those saved by transformers 5 num_local_experts.
        held = [key for key in _EXPERTS if self._keys.get(key) is not None]
        experts = self._count(held[0] if held else usual)
        if len(held) > 1 and self._count(held[1]) != experts:
            raise self._error(held[1], f"must be {held[0]}, {experts}", self._keys[held[1]])
        per_token, layers = self._count("num_experts_per_tok"), self._count("num_hidden_layers")
        if not per_token <= experts > 1:
            raise self._error(
                "num_experts_per_tok", f"must be at most the experts, two at least ({experts})", per_token
            )
        if usual == "num_local_experts":  # in every layer
            if self._keys.get("shared_intermediate_size"):
                raise self._error("shared_intermediate_size", "must be 0", self._keys["shared_intermediate_size"])
            wide = self._count("intermediate_size")
            return Mixture(experts=experts, per_token=per_token, intermediate=wide, bias=kind == "gpt_oss")
        if usual == "n_routed_experts":
            return self._mixture_after_dense(experts, per_token, layers)
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
            shared_gate=kind == "qwen2_moe",
            dense_layers=layers - mixed,
        )

    def _mixture_after_dense(self, experts: int, per_token: int, layers: int) -> Mixture | None:
        """Of DeepSeek and GLM: the first layers are dense, and some experts are shared."""
        if self._keys.get("moe_layer_freq") not in (None, 1):
            raise self._error("moe_layer_freq", "must be 1", self._keys["moe_layer_freq"])
        first, shared, predicting = (
            0 if self._keys.get(key) in (None, 0) else self._count(key)
            for key in ("first_k_dense_replace", "n_shared_experts", "num_nextn_predict_layers")
        )
        if first >= layers:
            return None
        wide = self._count("moe_intermediate_size")
        return Mixture(
            experts=experts,
            per_token=per_token,
            intermediate=wide,
            shared=shared * wide,
            dense_layers=first,
            predicts=predicting > 0,
        )

    def _dtype(self) -> str:
        key = "dtype" if self._get("dtype") is not None else "torch_dtype"
        found = self._get(key)
        dtype = _without_torch(found)
        if not isinstance(dtype, str) or dtype not in WIDTHS:
            raise self._error(key, f"must be one of {', '.join(WIDTHS)}", found)
        older = (self._keys if key in self._keys else self._whole).get("torch_dtype")
        if _without_torch(older) not in (None, dtype):
            raise self._error("torch_dtype", f"must be {key}, {dtype}", older)
        return dtype

    @property
    def _own(self) -> Mapping[str, Any]:
        """The keys of its layers; drafters' may stand beside them."""
        return {**self._whole, **self._keys} if self.kind else self._keys

    def _get(self, key: str) -> object:
        return self._keys.get(key, self._whole.get(key))

    def _count(self, key: str, *, otherwise: int | None = None) -> int:
        found = self._own.get(key)
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
        found = keys.get(key)
        if not isinstance(found, list | None):
            raise self._error(key, "must be a list", found)
        return found or []

    def _error(self, key: str, rule: str, found: object) -> TraceFormatError:
        return TraceFormatError(self._path, key, rule, "nothing" if found is None else found)


def _without_torch(dtype: object) -> object:
    """`bfloat16` of `torch.bfloat16`, as some configs have it."""
    return dtype.removeprefix("torch.") if isinstance(dtype, str) else dtype


def _unknown(name: object, known: Iterable[str]) -> str:
    known_names = known_are(name, known, where=SHAPES_PAGE)
    return f"must be a known one ({known_names}); of another give the shape itself in FILE.json"


_Shapes = Annotated[list[ModelInfo], Field(min_length=1)]


def given_shapes(texts: Sequence[str], target: str) -> tuple[ModelInfo, ...]:
    """Shapes by member, from the texts of `models`; `target` is the member that verifies.

    Each text is `FILE.json`, a list of shapes; `NAME=PRESET`; `NAME=PATH` of a config.json or of the folder that holds
    it; or a preset alone, for the target. A head without a model's name is for the target. After `@`, how it is served:
    `fp8`, `kv=fp8`, `block=15`, with commas between them.

    Raises:
        TraceFormatError: a file that breaks its format.
        ValueError: a text of another form, an unknown preset, or a member named twice; one line.
    """
    return _shapes_of(_given_by(texts, target), target)


def _shapes_of(given: "Sequence[ModelInfo | _Given]", target: str, served: str = "") -> tuple[ModelInfo, ...]:
    """Those of files first; `served` is the target's preset by the log, if it says. Raises as `given_shapes`."""
    texts, names = [each for each in given if isinstance(each, _Given)], [each.name for each in given]
    for name in repeated(names):
        raise ArgumentError(f"`models` must give each member one shape, got {name!r} twice")
    base = next((each.decoder() for each in texts if each.name == target), None)
    if base is None and target not in names:
        base = presets().get(model_called(target) or served)
    files_first = sorted(given, key=lambda each: isinstance(each, _Given) and each.config is None)
    shapes = tuple(each if isinstance(each, ModelInfo) else each.shape(base) for each in files_first)
    whole = next((shape for shape in shapes if shape.name == target), None if base is None else base.info(target))
    for each in texts:
        if whole is not None and each.config is not None:
            each.config.check_reads(whole)
    if any(shape.name == target and shape.draft_block is not None for shape in shapes):
        raise ArgumentError(f"`models` must give {target} no block: it is the target, and drafts nothing")
    return shapes


def asked_shapes(
    texts: Sequence[str], target: str, members: Sequence[str], recorded: Sequence[ModelInfo], served: str = ""
) -> tuple[tuple[ModelInfo, ...], tuple[Derived, ...], tuple[DecoderShape, ...]]:
    """(given shapes of members, derived ones of submodels, decoders of whole models).

    `recorded` are the shapes in the recording; without the target's, `served` is its preset by the log, if that says.

    Raises as `given_shapes` and `derived_submodels`, and ArgumentError for an unknown member.
    """
    given = _given_by(texts, target)
    shapes = _shapes_of(given, target, "" if any(model.name == target for model in recorded) else served)
    unknown = [shape.name for shape in shapes if shape.name not in members]
    if unknown:
        raise ArgumentError(f"`models` must name members of the recording ({', '.join(members)}), got {unknown[0]!r}")
    known = {each.name: each.decoder() for each in given if isinstance(each, _Given)}
    decoders = {name: decoder for name, decoder in known.items() if decoder is not None}
    return shapes, derived_submodels(recorded, shapes, decoders), tuple(decoders.values())


def _given_by(texts: Sequence[str], target: str) -> "list[ModelInfo | _Given]":
    given: list[ModelInfo | _Given] = []
    for text in texts:
        if "=" not in text and _is_file(text):
            given += _shapes(text)
            continue
        is_named = "=" in text.partition("@")[0]  # else it is a shape, perhaps with options after @
        name, _, source = text.partition("=") if is_named else (target, "", text)
        if not name or not source:
            raise ArgumentError(f"`models` must be FILE.json, NAME=PRESET or NAME=CONFIG, got {text!r}")
        given.append(_given(text, name, source))
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    name: str
    source: str  # preset, head or path
    config: _Config | None  # of the path
    weights: str = ""  # format of its weights, of `FORMATS`; "" is the source's own
    kv_dtype: str = ""  # of its keys and values, of `KV_WIDTHS`; "" is the source's own
    block: int | None = None  # most tokens in a forward of a draft model that writes a whole draft at once

    def decoder(self) -> DecoderShape | None:
        """Its decoder; None for a head, or where unknown."""
        if self.config is None:
            found = None if head_called(self.source) else presets().get(model_called(self.source) or "")
        else:
            found = self.config.whole(in_parallel=self.block is not None) if self.config.kind == "" else None
        return None if found is None else self._served(found)

    def shape(self, target: DecoderShape | None) -> ModelInfo:
        """The shape of its source; a head without a model's name is for the target."""
        decoder = self.decoder()
        if decoder is not None:
            return self._info(decoder)
        called = f"`models` {self.name}={self.source}"
        if self.config is not None:
            if self.weights or self.kv_dtype or self.block is not None:
                raise ArgumentError(f"{called} must be without @: it is a drafter of its own kind")
            return self.config.shape(self.name)
        kind, model = head_called(self.source), model_called(self.source)
        if kind is None:
            known = known_are(self.source, preset_names(), where=SHAPES_PAGE)
            raise ArgumentError(f"`models` must be a config.json or a preset ({known}), got {self.source!r}")
        if self.weights or self.block is not None:
            raise ArgumentError(f"{called} must be without @, but for its kv: what a head weighs is in FILE.json")
        whose = target if model is None else presets()[model]
        if whose is None:
            raise ArgumentError(f"{called} must name the model it is a head of, as in {kind}-llama-3.1-8b")
        head = head_of(kind, self._served(whose), self.name)
        if head is None:
            rule = "must be a config.json or FILE.json: what heads of a mixture of experts are made of differs"
            raise ArgumentError(f"{called} {rule}")
        return head

    def _info(self, decoder: DecoderShape) -> ModelInfo:
        block = None if self.block is None else DraftBlock(tokens=self.block)
        return decoder.info(self.name).model_copy(update={"draft_block": block})

    def _served(self, decoder: DecoderShape) -> DecoderShape:
        """The same model with the requested weights and cache."""
        if self.weights and decoder.quantised is not None:
            raise ArgumentError(
                f"`models` {self.name}={self.source} has {decoder.quantised.format.name} weights, got {self.weights}"
            )
        if self.weights:
            decoder = replace(decoder, quantised=quantised_weights(decoder, FORMATS[self.weights]))
        return replace(decoder, kv_dtype=self.kv_dtype) if self.kv_dtype else decoder


def _given(text: str, name: str, source: str) -> _Given:
    """Parse a text: a source, and after `@` how it is served."""
    if "@" not in source or _is_file(source):
        return _Given(name=name, source=source, config=_config(source))
    source, _, ways = source.rpartition("@")
    said: dict[str, str] = {}
    for way in ways.split(","):
        key, _, value = way.partition("=") if "=" in way else ("weights", "", way)
        known = {"weights": tuple(FORMATS), "kv": tuple(KV_WIDTHS)}
        is_count = value.isascii() and value.isdigit() and len(value) <= len(str(MOST)) and 1 <= int(value) <= MOST
        right = value in known[key] if key in known else key == "block" and is_count
        if key in said or not source or not right:
            rule = f"{', '.join(FORMATS)}, kv= one of {', '.join(KV_WIDTHS)} or block=TOKENS (1 to {MOST}), each once"
            raise ArgumentError(f"`models` must say after @ one of {rule}, got {text!r}")
        said[key] = value
    block = said.get("block")
    return _Given(
        name=name,
        source=source,
        config=_config(source),
        weights=said.get("weights", ""),
        kv_dtype=said.get("kv", ""),
        block=None if block is None else int(block),
    )


def _config(source: str) -> _Config | None:
    return _Config(Path(source)) if _is_file(source) else None


def _is_file(text: str) -> bool:
    return text.endswith(".json") or Path(text).is_dir()


def _shapes(text: str) -> list[ModelInfo]:
    """Shapes from a file that lists them, at least one."""
    path = Path(text)
    decoded = checked_json(path, TraceFormatError)
    if isinstance(decoded, dict) and "model_type" in decoded:
        raise TraceFormatError(
            path, "content", "must be a list of shapes; of a config say whose, NAME=FILE", "a config"
        )
    try:
        found = TypeAdapter(_Shapes).validate_json(json.dumps(decoded), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "content"
        raise TraceFormatError(path, field, first["msg"][:1].lower() + first["msg"][1:], first["input"]) from None
    for place, one in enumerate(found):
        if one.layers > one.hidden_size:
            rule = f"must be at most hidden_size, {one.hidden_size:,}"
            raise TraceFormatError(path, f"{place}.layers", rule, one.layers)
        if one.parameters < one.layers * one.hidden_size:
            rule = f"must be at least layers x hidden_size, {one.layers * one.hidden_size:,}"
            raise TraceFormatError(path, f"{place}.parameters", rule, one.parameters)
    return list(found)

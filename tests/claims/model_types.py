"""Every causal language model of the installed transformers, tiny and with random weights."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)

from ..word_models import words

MODEL_TYPES = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
VOCABULARY, END, HEADS = 64, 3, 4
# By value, the names that configs use for it. What a config does not have is left out.
_SIZES: tuple[tuple[int | float, str], ...] = (
    (VOCABULARY, "vocab_size vocab_size_per_layer_input unpadded_vocab_size decoder_vocab_size"),
    (3, "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers"),
    (3, "num_encoder_layers"),
    (32, "hidden_size n_embd d_model dim word_embed_proj_dim embedding_size input_embedding_size emb_dim lru_width"),
    (32, "output_embedding_size attention_hidden_size decoder_hidden_size embedding_dim ple_embed_dim"),
    (32, "backbone_hidden_size dim_model_base adapter_in_dim adapter_out_dim adapter_input_size"),
    (HEADS, "num_attention_heads n_head n_heads decoder_attention_heads encoder_attention_heads attention_heads"),
    (4, "num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads num_heads"),
    (4, "num_experts num_local_experts n_routed_experts moe_num_experts"),
    (2, "num_key_value_heads num_kv_heads swa_num_key_value_heads num_global_key_value_heads num_query_groups"),
    (2, "num_experts_per_tok num_experts_per_token moe_k moe_topk top_k_experts n_group num_expert_group"),
    (8, "head_dim dim_head swa_head_dim d_kv kv_channels attention_head_size attention_head_dim d_head rotary_dim"),
    (8, "qk_head_dim qk_nope_head_dim v_head_dim global_head_dim linear_head_dim index_head_dim"),
    (4, "qk_rope_head_dim"),
    (16, "kv_lora_rank q_lora_rank hidden_size_per_layer_input"),
    (48, "intermediate_size ffn_dim d_inner decoder_ffn_dim encoder_ffn_dim dff ffn_hidden_size dim_ff"),
    (48, "intermediate_size_mlp shared_expert_intermediate_size shared_intermediate_size feed_forward_size"),
    (48, "dense_intermediate_size shared_experts_intermediate_size"),
    (64, "shape_vocab_size pronunciation_vocab_size encoder_hash_byte_group_vocab"),
    (24, "moe_intermediate_size expert_ffn_hidden_size moe_shared_expert_intermediate_size"),
    (256, "max_position_embeddings n_positions n_ctx max_seq_len context_length model_max_length"),
    (7, "sliding_window sliding_window_size attention_window_size local_attention window_size"),
    (0.2, "initializer_range init_std"),
    (END, "eos_token_id"),
    (1, "bos_token_id"),
    (0, "pad_token_id"),
)
SIZES = {name: value for value, names in _SIZES for name in names.split()}


def tiny_config(model_type: str, **changes: Any) -> PreTrainedConfig:
    """Its default config with the sizes of `SIZES`."""
    config_class = CONFIG_MAPPING[model_type]
    special = SPECIAL.get(model_type, {})
    return config_class(**_merged(_tiny(_defaults(config_class)), {**special, **changes}))


def whole_model(config: PreTrainedConfig, *, seed: int = 1) -> PreTrainedModel:
    """In float32, with weights that are large enough for a varied text; of a wrapper with all its towers."""
    torch.manual_seed(seed)
    wrapper = hasattr(config, "text_config") and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    auto = AutoModelForImageTextToText if wrapper and config.model_type not in NEED_MORE else AutoModelForCausalLM
    model: PreTrainedModel = auto.from_config(config)
    return model.float().eval().requires_grad_(requires_grad=False)


def write_pool(folder: Path, members: tuple[str, ...]) -> Path:
    """A pool file; `slim` leaves the second layer of `target` out, the others are in folders of their names."""
    folder.mkdir(exist_ok=True)
    words(VOCABULARY, letter="t", unknown=2).save(str(folder / "tokenizer.json"))
    lines = ['name = "swept"', 'tokenizer = "tokenizer.json"', "context_tokens = 64"]
    for name in members:
        lines += ["[[members]]", f'name = "{name}"']
        lines += ['submodel_of = "target"', "skip_layers = [1]"] if name == "slim" else [f'path = "{name}"']
    file = folder / f"{'-'.join(members)}.toml"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def write_models(folder: Path, config: PreTrainedConfig) -> None:
    """A target and a draft, which is the target with noise."""
    target = whole_model(config)
    target.save_pretrained(folder / "target")
    generator = torch.Generator().manual_seed(2)
    draft = copy.deepcopy(target)
    for weight in draft.parameters():
        if weight.dim() > 1:
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1 * weight.std())
    draft.save_pretrained(folder / "draft")


# Wrappers that are not made from a config alone; their text part is.
NEED_MORE = ("emu3",)
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8}
_DOTS = {
    "num_key_value_heads": 4,
    "head_dim": 12,
    "layer_types": ["indexed_attention", "sliding_attention", "indexed_attention"],
    "per_layer_config": {"01": {"num_attention_heads": 2, "num_key_value_heads": 2}},
}
# What a config needs beyond sizes to be one at all; hybrids with some layer of attention.
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": _MAMBA,
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 48},
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note": {"text_config": {"model_type": "dots3_note_text", **_DOTS}},
    "dots3_note_text": _DOTS,
    "gemma3n_text": {"num_kv_shared_layers": 1, "layer_types": ["full_attention"] * 3},
    "gemma4_assistant": {
        "text_config": {
            **SIZES,
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
        }
    },
    "gpt_neo": {"attention_types": [[["global", "local", "global"], 1]]},
    "granitemoehybrid": {**_MAMBA, "layer_types": ["attention"] * 3},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "mamba2": {"num_heads": 8},
    "ministral": {"head_dim": 8},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "roc_bert": {"eos_token_id": END},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid", "hybrid"]},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}


def _defaults(config_class: type[PreTrainedConfig]) -> Mapping[str, Any]:
    try:
        return config_class().to_dict()
    except Exception:  # noqa: BLE001 - it has no default of its own
        return {}


def _merged(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Nested objects are merged key by key."""
    found = dict(base)
    for key, value in other.items():
        both = isinstance(value, Mapping) and isinstance(base.get(key), Mapping) and key.endswith("_config")
        found[key] = _merged(base[key], value) if both else value
    return found


def _tiny(defaults: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in defaults.items():
        if isinstance(value, Mapping) and key.endswith("_config"):
            found[key] = {**_tiny(value), **({"model_type": value["model_type"]} if "model_type" in value else {})}
        elif key in SIZES and value is not None and not isinstance(value, (list, bool)):
            found[key] = SIZES[key]
        elif key.endswith("token_id") and isinstance(value, int) and value >= VOCABULARY:
            found[key] = VOCABULARY - 1
    if defaults.get("is_decoder") is False:
        found["is_decoder"] = True
    for key in ("eos_token_id", "bos_token_id", "pad_token_id"):
        if key in defaults:
            found[key] = SIZES[key]
    return found

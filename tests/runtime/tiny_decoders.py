"""Tiny random decoders of every family that the fused forward knows, and ragged texts that are fed to a cache."""

import torch
from paceline.runtime.caches import MaskCache, SlotCache
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 40
CONTEXT = 64
CACHES = {"slots": SlotCache, "mask": MaskCache}

WINDOW = {"use_sliding_window": True, "sliding_window": 4}
GEMMA = {"sliding_window": 4, "head_dim": 16, "query_pre_attn_scalar": 16, "attn_implementation": None}
# Grouped heads throughout; a head width that is not width / heads; biases and tied heads where the family has them.
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "llama-biased": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    "llama-ungrouped": (LlamaForCausalLM, LlamaConfig, {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None, "head_dim": 16}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16}),
    "mistral-window": (MistralForCausalLM, MistralConfig, {"sliding_window": 4}),
    "qwen2-window": (Qwen2ForCausalLM, Qwen2Config, {**WINDOW, "max_window_layers": 1}),
    "qwen3-window": (Qwen3ForCausalLM, Qwen3Config, {**WINDOW, "max_window_layers": 1, "tie_word_embeddings": True}),
}
# Families that run through their modules; Gemma 2 caps scores and logits, and every other layer has a window.
MODULES_ONLY = {
    "gemma2": (Gemma2ForCausalLM, Gemma2Config, GEMMA),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig, {**GEMMA, "layer_types": ["sliding_attention", "full_attention"]}),
    "phi3-window": (Phi3ForCausalLM, Phi3Config, {"sliding_window": 5, "pad_token_id": None}),
    "olmo3": (
        Olmo3ForCausalLM,
        Olmo3Config,
        {"sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]},
    ),
}


def tiny_decoder(family="llama", dtype=torch.float64, *, seed=0, **changes):
    """Two layers of width 32; weights, biases and norms all random."""
    cls, config, special = {**FAMILIES, **MODULES_ONLY}[family]
    options = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.25,
        "attn_implementation": "sdpa",
    }
    torch.manual_seed(seed)
    model = cls(config(**{**options, **special, **changes})).eval().requires_grad_(requires_grad=False)
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    return model.to(dtype)


@torch.inference_mode()
def without_cache(model, text):
    """`[len(text), V]` by the stock model in one go."""
    return model(input_ids=torch.tensor([text], device=model.device), use_cache=False).logits[0]


def remembered(model):
    """`without_cache` of a model, each text once: many forwards are compared with it on the same texts."""
    known = {}

    def stock(text):
        key = tuple(text)
        if key not in known:
            known[key] = without_cache(model, text)
        return known[key]

    return stock


class RaggedTexts:
    """Texts of several requests, one cache, and the forward that feeds it."""

    def __init__(self, forward, cache):
        self.forward = forward
        self.cache = cache
        self.texts = {}

    def feed(self, new, keep=None):
        """Feed `new` tokens by request in one forward; returns logits by request, of the kept last ones of each."""
        names = list(new)
        names = [names[index] for index in self.cache.in_order(names)]
        counts = [len(new[name]) for name in names]
        kept = counts if keep is None else [min(keep, count) for count in counts]
        ends = torch.tensor(counts).cumsum(0).tolist()
        pick = torch.tensor([at for end, count in zip(ends, kept, strict=True) for at in range(end - count, end)])
        device = self.forward.kv_shape.device
        ids = torch.tensor([token for name in names for token in new[name]], device=device)
        placement = self.cache.place(names, counts)
        logits = self.forward(ids, placement, self.cache, slice(None) if keep is None else pick.to(device))
        for name in names:
            self.texts[name] = self.texts.get(name, []) + list(new[name])
        return dict(zip(names, logits.split(kept), strict=True))

    def roll_back(self, name, num_tokens):
        self.cache.roll_back(name, num_tokens)
        del self.texts[name][num_tokens:]

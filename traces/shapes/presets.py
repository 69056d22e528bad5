"""Shapes of models that people serve, as their published configs give them."""

from collections.abc import Mapping
from dataclasses import replace

from .decoder import Decoder

# hidden, layers, heads, heads of keys and values, size of a head, intermediate
_Sizes = tuple[int, int, int, int, int, int]


def presets() -> dict[str, Decoder]:
    """Every known model by name, as weights are published; vision towers are left out."""
    return {**_llama_2(), **_llama_3(), **_qwen_2_5(), **_qwen_3(), **_gemma_3(), **_small()}


def _llama_2() -> dict[str, Decoder]:
    found = _family(
        {
            "llama-2-7b": (4096, 32, 32, 32, 128, 11_008),
            "llama-2-13b": (5120, 40, 40, 40, 128, 13_824),
            "llama-2-70b": (8192, 80, 64, 8, 128, 28_672),
        },
        vocabulary=32_000,
        dtype="float16",
    )
    return {**found, "vicuna-7b": found["llama-2-7b"], "vicuna-13b": found["llama-2-13b"]}


def _llama_3() -> dict[str, Decoder]:
    found = _family(
        {
            "llama-3-8b": (4096, 32, 32, 8, 128, 14_336),
            "llama-3-70b": (8192, 80, 64, 8, 128, 28_672),
            "llama-3.1-405b": (16_384, 126, 128, 8, 128, 53_248),
        },
        vocabulary=128_256,
    )
    tied = _family(
        {"llama-3.2-1b": (2048, 16, 32, 8, 64, 8192), "llama-3.2-3b": (3072, 28, 24, 8, 128, 8192)},
        vocabulary=128_256,
        tied=True,
    )
    small, large = found["llama-3-8b"], found["llama-3-70b"]
    return {**found, **tied, "llama-3.1-8b": small, "llama-3.1-70b": large, "llama-3.3-70b": large}


def _qwen_2_5() -> dict[str, Decoder]:
    tied = _family(
        {
            "qwen-2.5-0.5b": (896, 24, 14, 2, 64, 4864),
            "qwen-2.5-1.5b": (1536, 28, 12, 2, 128, 8960),
            "qwen-2.5-3b": (2048, 36, 16, 2, 128, 11_008),
        },
        vocabulary=151_936,
        tied=True,
        bias=True,
    )
    untied = _family(
        {
            "qwen-2.5-7b": (3584, 28, 28, 4, 128, 18_944),
            "qwen-2.5-14b": (5120, 48, 40, 8, 128, 13_824),
            "qwen-2.5-32b": (5120, 64, 40, 8, 128, 27_648),
            "qwen-2.5-72b": (8192, 80, 64, 8, 128, 29_568),
        },
        vocabulary=152_064,
        bias=True,
    )
    return {**tied, **untied}


def _qwen_3() -> dict[str, Decoder]:
    tied = _family(
        {
            "qwen-3-0.6b": (1024, 28, 16, 8, 128, 3072),
            "qwen-3-1.7b": (2048, 28, 16, 8, 128, 6144),
            "qwen-3-4b": (2560, 36, 32, 8, 128, 9728),
        },
        vocabulary=151_936,
        tied=True,
        head_norms=2,
    )
    untied = _family(
        {
            "qwen-3-8b": (4096, 36, 32, 8, 128, 12_288),
            "qwen-3-14b": (5120, 40, 40, 8, 128, 17_408),
            "qwen-3-32b": (5120, 64, 64, 8, 128, 25_600),
        },
        vocabulary=151_936,
        head_norms=2,
    )
    return {**tied, **untied}


def _gemma_3() -> dict[str, Decoder]:
    found = _family(
        {
            "gemma-3-270m": (640, 18, 4, 1, 256, 2048),
            "gemma-3-1b": (1152, 26, 4, 1, 256, 6912),
            "gemma-3-4b": (2560, 34, 8, 4, 256, 10_240),
            "gemma-3-12b": (3840, 48, 16, 8, 256, 15_360),
            "gemma-3-27b": (5376, 62, 32, 16, 128, 21_504),
        },
        vocabulary=262_208,
        tied=True,
        norms=4,
        head_norms=2,
    )
    text = {name: replace(found[name], vocabulary=262_144) for name in ("gemma-3-270m", "gemma-3-1b")}
    return {**found, **text}


def _small() -> dict[str, Decoder]:
    """Drafters of the Llama 2 vocabulary."""
    found = _family(
        {
            "llama-68m": (768, 2, 12, 12, 64, 3072),
            "llama-160m": (768, 12, 12, 12, 64, 3072),
            "tinyllama-1.1b": (2048, 22, 32, 4, 64, 5632),
        },
        vocabulary=32_000,
        dtype="float16",
    )
    return {**found, "vicuna-68m": found["llama-68m"]}


def _family(
    sizes: Mapping[str, _Sizes],
    *,
    vocabulary: int,
    tied: bool = False,
    bias: bool = False,
    norms: int = 2,
    head_norms: int = 0,
    dtype: str = "bfloat16",
) -> dict[str, Decoder]:
    return {
        name: Decoder(
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_size=head_size,
            intermediate=intermediate,
            vocabulary=vocabulary,
            tied=tied,
            bias=bias,
            norms=norms,
            head_norms=head_norms,
            dtype=dtype,
        )
        for name, (hidden, layers, heads, kv_heads, head_size, intermediate) in sizes.items()
    }

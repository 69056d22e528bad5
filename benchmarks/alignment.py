"""The share of a draft that is kept when drafter and target have different tokenizers.

The drafter is perfect: it writes the target's own text, in its own tokens. Alignment causes every loss.

python benchmarks/alignment.py [--every 5]
"""

import argparse
import ast
import inspect
import json
from collections.abc import Sequence

from paceline.base.files import shipped
from paceline.runtime.prompts import read_prompts
from paceline.runtime.tokenizers import Alignment
from paceline_laboratory.findings import Cell, table_cell
from paceline_laboratory.shared import Tally, add_drafts
from shared.report import parser_of, show
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PICO = shipped("pools", "pico")
DRAFT_TOKENS = 6
SOURCES = (argparse, inspect, ast)
TEXTS = (json, argparse, ast)
LONGEST_TEXT = 4000  # characters


def trained(size: int) -> Tokenizer:
    """A byte-level BPE trained on Python's own sources."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([inspect.getsource(module) for module in SOURCES], trainer)
    return tokenizer


def tally(target: Tokenizer, other: Tokenizer, texts: Sequence[str], every: int) -> Tally:
    alignment = Alignment(target, other, 0, frozenset())
    result = Tally()
    for text in texts:
        trunk = target.encode(text, add_special_tokens=False).ids
        add_drafts(result, alignment, trunk, range(1, len(trunk) - 8, every), DRAFT_TOKENS)
    return result


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--every", type=int, default=5, help="tokens of text between two drafts")
    options = parser.parse_args()
    texts = [prompt.text for prompt in read_prompts(PICO / "prompts.jsonl")]
    texts += [inspect.getsource(module)[:LONGEST_TEXT] for module in TEXTS]
    pico = Tokenizer.from_file(str(PICO / "tokenizer.json"))
    others = {"byte-level 600": trained(600), "byte-level 2,500": trained(2500)}
    pairs = {f"{name} -> pico": (pico, other) for name, other in others.items()}
    pairs["pico -> byte-level 2,500"] = (others["byte-level 2,500"], pico)
    found = {name: tally(target, other, texts, options.every) for name, (target, other) in pairs.items()}
    show(f"perfect drafts of {DRAFT_TOKENS} tokens", [row(name, one) for name, one in found.items()])


def row(name: str, found: Tally) -> list[Cell]:
    return [
        table_cell("drafter -> target", name),
        table_cell("drafts", len(found.counted)),
        table_cell("nothing counted", f"{found.counted.count(0) / len(found.counted):.1%}"),
        table_cell("target tokens per draft", found.counted_a_draft, digits=1),
        table_cell("spelled alike", f"{found.spelled_share:.0%}"),
        table_cell("µs", found.typical_s[1] * 1e6, digits=0),
    ]


if __name__ == "__main__":
    main()

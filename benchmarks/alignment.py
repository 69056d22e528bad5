"""How much of a draft survives when drafter and target have different tokenizers.

The drafter is perfect: it writes the target's own text, in its own tokens. What is missing is the alignment's.

python benchmarks/alignment.py [--every 5]
"""

import argparse
import ast
import inspect
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from paceline.laboratory.table import Cell, cell
from paceline.runtime.executor.foreign_drafter import num_common
from paceline.runtime.prompts import read_prompts
from paceline.runtime.tokenizers import Alignment
from shared.report import parser_of, show
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PICO = Path(__file__).parent.parent / "pools" / "pico"
DRAFT_TOKENS = 6
SOURCES = (argparse, inspect, ast)
TEXTS = (json, argparse, ast)
LONGEST_TEXT = 4000  # characters


@dataclass
class Tally:
    """What came of the drafts of one pair."""

    drafts: int = 0
    empty: int = 0
    tokens: int = 0
    as_spelled: int = 0
    seconds: list[float] = field(default_factory=list)


def trained(size: int) -> Tokenizer:
    """A byte-level BPE of Python's own sources."""
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
        written = alignment.to_other(trunk)
        for cut in range(1, len(trunk) - 8, every):
            before = alignment.to_other(trunk[:cut])
            draft = written[len(before) : len(before) + DRAFT_TOKENS]
            if written[: len(before)] != before or not draft:
                continue
            start_s = time.perf_counter()
            drafted = alignment.drafted(trunk[:cut], draft)
            result.seconds.append(time.perf_counter() - start_s)
            result.drafts += 1
            result.empty += not drafted
            result.tokens += len(drafted)
            result.as_spelled += num_common(drafted, trunk[cut:])
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
        cell("drafter -> target", name),
        cell("drafts", found.drafts),
        cell("nothing counted", f"{found.empty / found.drafts:.1%}"),
        cell("target tokens per draft", found.tokens / found.drafts, digits=1),
        cell("spelled alike", f"{found.as_spelled / found.tokens:.0%}"),
        cell("µs", median(found.seconds) * 1e6, digits=0),
    ]


if __name__ == "__main__":
    main()

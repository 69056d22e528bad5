"""Memory of models: during the choice of how they run, afterwards, and over calls; a process for each figure.

Without --pool a random Llama of 124 million parameters is written and loaded. The figures of `pool check` are shown
beside the measured ones. Bytes are the process's resident memory in excess of that after loading the pool (weights of a
mapped file are read at their first use).

python benchmarks/memory.py [--pool FOLDER] [--kinds modules fused:plain auto] [--calls 6]
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import paceline
import torch
from paceline.runtime import products as product_choice
from paceline.runtime.coupled_noise import gumbel
from paceline.runtime.forward_kinds import ForwardKind
from paceline.runtime.pools.check import check_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.products import KnownChoices
from paceline_laboratory.findings import Cell, table_cell
from shared.report import parser_of, show
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM

KINDS = ("modules", "fused:plain", "auto")
VOCABULARIES = (32_000, 49_152, 128_256)
MB = 1e6
POOL = """name = "random"
tokenizer = "tokenizer.json"
context_tokens = 1024

[[members]]
name = "target"
path = "target"
"""


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--pool", type=Path, help="a pool file or its folder; one member of it at least is a model")
    parser.add_argument("--kinds", nargs="+", default=KINDS, help="of forwards, as `--forward` takes them")
    parser.add_argument("--calls", type=int, default=6, help="of generate() and of a prepared model")
    parser.add_argument("--child", nargs="+", help="what a process of its own measures; for this script alone")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.child:
        what, *rest = asked.child
        print(json.dumps({"choice": choice, "calls": calls}[what](*rest)))
        return
    with tempfile.TemporaryDirectory() as folder:
        show_choices(asked.pool or random_pool(Path(folder)), asked.kinds)
    show_calls(asked.calls)
    show_noise()


def in_process(*words: str) -> list[Any]:
    command = [sys.executable, __file__, "--child", *words]
    told: list[Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return told


def show_choices(pool: Path, kinds: list[str]) -> None:
    (need,) = check_pool(pool).devices
    rows: list[list[Cell]] = []
    for kind in kinds:
        name, peak, held, copies = in_process("choice", str(pool), kind)
        rows.append(
            [
                table_cell("--forward", kind),
                table_cell("runs by", name),
                table_cell("weights MB", f"{need.weight_bytes / MB:.0f}"),
                table_cell("copies MB", f"{copies / MB:.0f}"),
                table_cell("held MB", f"{held / MB:.0f}"),
                table_cell("peak MB", f"{peak / MB:.0f}"),
                table_cell("peak / weights", f"{peak / need.weight_bytes:.2f}"),
                table_cell("peak / weights and copies", f"{peak / (need.weight_bytes + copies):.2f}"),
            ]
        )
    most = need.weight_bytes + need.copy_bytes + need.choice_bytes
    show(
        "choosing how models run, nothing known of this machine",
        rows,
        f"pool check: weights {need.weight_bytes / MB:.0f} MB, copies at most {need.copy_bytes / MB:.0f} MB, "
        f"choosing {need.choice_bytes / MB:.0f} MB, together {most / MB:.0f} MB",
    )


def choice(pool: str, kind: ForwardKind) -> list[Any]:
    """How the target runs, its most and final bytes in excess of a loaded pool, and those of copies."""
    product_choice.choices_of_this_machine = lambda: KnownChoices(None)
    loaded = ModelPool.load(Path(pool))
    before = resident_bytes()
    names = loaded.forward_names(kind)
    held = resident_bytes() - before
    copies = {id(copy): weight.nbytes for member in loaded._forwards.values() for weight, copy in copies_of(member)}
    return [names[loaded.target.name], peak_bytes() - before, held, sum(copies.values())]


def copies_of(forward: object) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Weights of a fused forward with their copies; empty for modules."""
    layers = getattr(forward, "_layers", [])
    projections = [getattr(layer, name) for layer in layers for name in ("qkv", "output", "gate_up", "down")]
    parts = [part for each in [*projections, *([forward._head] if layers else [])] for part in each.parts]
    return [(part.weight, copy) for part in parts for _, copy in part._by_count if copy is not part.weight]


def show_calls(count: int) -> None:
    rows = []
    for how in ("generate", "prepared"):
        held = in_process("calls", how, str(count))
        rows.append(
            [
                table_cell("calls by", how),
                *(table_cell(f"MB after {number}", f"{each / MB:.0f}") for number, each in enumerate(held, 1)),
            ]
        )
    show("resident memory after each of some calls, 32 rows of 400 tokens", rows)


def calls(how: str, count: str) -> list[float]:
    """The resident bytes after each call."""
    model = LlamaForCausalLM(llama(width=128, layers=6, words=500)).eval()
    ids = torch.randint(500, (32, 392), generator=torch.Generator().manual_seed(0))
    ready = paceline.prepare(model) if how == "prepared" else paceline.generate
    held = []
    for _ in range(int(count)):
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, custom_generate=ready)
        held.append(resident_bytes())
    return held


def show_noise() -> None:
    rows = []
    for words in VOCABULARIES:
        taken = []
        for position in range(30):
            start_s = perf_counter()
            gumbel(1, "r", position, words)
            taken.append(perf_counter() - start_s)
        rows.append(
            [
                table_cell("vocabulary", f"{words:,}"),
                table_cell("ms a position", f"{1e3 * sorted(taken)[len(taken) // 4]:.2f}"),
            ]
        )
    show("coupled noise, the lower quartile of 30 positions", rows)


def random_pool(folder: Path) -> Path:
    LlamaForCausalLM(llama(width=768, layers=12, words=32_000)).save_pretrained(folder / "target")
    words = {f"w{number}": number for number in range(32_000)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    (folder / "pool.toml").write_text(POOL, encoding="utf-8")
    return folder


def llama(*, width: int, layers: int, words: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=2048 * width // 768,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )


def resident_bytes() -> float:
    return _status_bytes("VmRSS")


def peak_bytes() -> float:
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> float:
    """A figure of Linux's account of this process, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main()

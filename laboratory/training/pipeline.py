"""The whole way from a recipe to a pool on disk, one stage after another."""

import copy
import json
from dataclasses import asdict, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from ...runtime.pools.pool import ModelPool
from ...runtime.prompts import read_prompts
from ...whole_files import write_whole
from .card import make_card
from .checkpoint import read_tensors, write_tensors
from .loop import TrainingRun
from .recipe import Recipe
from .teacher import make_teacher
from .text.corpus import build_corpus, held_out_items, pack_corpus, write_prompts
from .text.item import Corpus
from .text.tokenizer import train_tokenizer
from .trained_models import train_student, train_target


def train_pool(recipe: Recipe, out_dir: Path, work_dir: Path, *, command: str = "train_pool(...)") -> None:
    """Train a pool and write it to `out_dir`.

    Every stage keeps its state in `work_dir`; after a kill the same call continues and comes to the same result.

    Args:
        recipe: what to train.
        out_dir: folder of the pool, made where needed.
        work_dir: folder for checkpoints; may be removed at the end.
        command: how this was called, for the card.

    Raises:
        ValueError: if `work_dir` belongs to another recipe.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    out_dir.mkdir(parents=True, exist_ok=True)
    _claim(work_dir, recipe)
    corpus = build_corpus(recipe)
    tokenizer = _prepare_texts(corpus, recipe, out_dir, work_dir)
    held_out = held_out_items(corpus, tokenizer, recipe)
    write_prompts(held_out, out_dir / "prompts.jsonl")
    runs = _train_members(corpus, tokenizer, recipe, out_dir, work_dir)
    write_pool_file(recipe, out_dir / "pool.toml")
    card = make_card(
        ModelPool.load(out_dir, threads=torch.get_num_threads()),
        read_prompts(out_dir / "prompts.jsonl"),
        held_out,
        runs,
        recipe=recipe,
        command=command,
    )
    write_whole(out_dir / "CARD.md", card)


def _claim(work_dir: Path, recipe: Recipe) -> None:
    """Checkpoints of another recipe must not leak into this pool; how often to write them may differ."""
    path = work_dir / "recipe.json"
    fingerprint = json.dumps(asdict(replace(recipe, checkpoint_every_s=0.0)), indent=1, sort_keys=True) + "\n"
    if not path.exists():
        write_whole(path, fingerprint)
    if path.read_text(encoding="utf-8") != fingerprint:
        raise ValueError(f"work_dir must belong to the same recipe, {work_dir} holds another one")


def _prepare_texts(corpus: Corpus, recipe: Recipe, out_dir: Path, work_dir: Path) -> Tokenizer:
    """Tokenizer and packed sequences; the last file written says that both exist."""
    packed, learned = work_dir / "sequences.safetensors", work_dir / "tokenizer.json"
    if not packed.exists():
        tokenizer = train_tokenizer(corpus, recipe)
        write_whole(learned, tokenizer.to_str(pretty=True))
        write_tensors({"sequences": pack_corpus(corpus, tokenizer, recipe)}, packed)
    tokenizer = Tokenizer.from_file(str(learned))
    write_whole(out_dir / "tokenizer.json", tokenizer.to_str(pretty=True))
    return tokenizer


def _train_members(
    corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe, out_dir: Path, work_dir: Path
) -> dict[str, TrainingRun]:
    """Train and export target, mid and draft; returns what each took."""
    sequences = read_tensors(work_dir / "sequences.safetensors")["sequences"]
    target, run = train_target(sequences, recipe, work_dir / "target.safetensors")
    export_model(target, out_dir / "target")
    runs = {"target": run}
    teacher = make_teacher(target, corpus, sequences, tokenizer, recipe, work_dir)
    for name, shape, schedule in (
        ("mid", recipe.mid, recipe.mid_schedule),
        ("draft", recipe.draft, recipe.draft_schedule),
    ):
        checkpoint = work_dir / f"{name}.safetensors"
        student, runs[name] = train_student(name, shape, schedule, teacher, recipe, checkpoint)
        export_model(student, out_dir / name)
    return runs


def export_model(model: PreTrainedModel, folder: Path) -> None:
    """Write `config.json` and the weights in bfloat16; the tied output matrix is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.dtype = "bfloat16"
    write_whole(folder / "config.json", config.to_json_string())
    tensors = {name: tensor.detach().to(torch.bfloat16) for name, tensor in model.named_parameters()}
    write_tensors(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_pool_file(recipe: Recipe, path: Path) -> None:
    """Write `pool.toml`: lookup, draft, mid, slim, target."""
    members = "".join(
        f'\n[[members]]\nname = "{name}"\npath = "{name}"\ndtype = "float32"\ndevice = "cpu"\n'
        if name != "slim"
        else f'\n[[members]]\nname = "slim"\nsubmodel_of = "target"\nskip_layers = {list(recipe.skip_layers)}\n'
        for name in ("draft", "mid", "slim", "target")
    )
    head = f'name = "{recipe.name}"\ntokenizer = "tokenizer.json"\ncontext_tokens = {recipe.context_tokens}\n'
    lookup = '\n[[members]]\nname = "ngram"\nngram = { max_match = 3 }\n'
    write_whole(path, head + lookup + members)

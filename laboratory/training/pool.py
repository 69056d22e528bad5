"""From a recipe to a pool of small models on disk, and its card with measurements of the members."""

import copy
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from paceline.base.files import write_whole
from paceline.base.terminal import tracked
from paceline.reports import tables
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import POOL_FILE_NAME, MemberEntry
from paceline.runtime.profiling.costs import measure_costs
from paceline.runtime.prompts import Prompt, is_right, read_prompts
from paceline.runtime.slim import Calibration, calibrate, measure_distance
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import PreTrainedModel

from ..findings import markdown_table
from .recipe import TAGS, TARGET, Recipe, claim
from .texts import END_TOKEN, Corpus, Item, build_corpus, held_out_items, pack_corpus, train_tokenizer, write_prompts
from .training import TrainingRun, make_teacher, read_tensors, train_student, train_target, write_tensors

SAMPLE_CHARACTERS = 240
# Enough for the whole answer to most prompts.
AGREEMENT_TOKENS = 128
TIMED_FORWARDS = 40

Networks = Mapping[str, PreTrainedModel]  # by member; prompt lookup has none


def train_pool(recipe: Recipe, out_dir: Path, work_dir: Path, *, command: str = "train_pool(...)") -> None:
    """Train a pool and write it to `out_dir`, which is made if missing.

    Every stage keeps its state in `work_dir`; after a kill the same call continues, with the same result. The folder
    may be removed at the end. `command` is how this was called, for the card.

    Raises:
        ValueError: if `work_dir` belongs to another recipe.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    out_dir.mkdir(parents=True, exist_ok=True)
    rule = f"work_dir must belong to the same recipe, {work_dir} holds another one"
    claim(work_dir / "recipe.json", recipe.to_json(), rule)
    corpus = build_corpus(recipe)
    tokenizer = _prepare_texts(corpus, recipe, out_dir, work_dir)
    held_out = held_out_items(corpus, tokenizer, recipe)
    write_prompts(held_out, out_dir / "prompts.jsonl")
    sequences = read_tensors(work_dir / "sequences.safetensors")["sequences"]
    target, run = train_target(sequences, recipe, work_dir / "target.safetensors")
    export_model(target, out_dir / TARGET)
    runs = {TARGET: run}
    teacher = make_teacher(target, corpus, sequences, tokenizer, recipe, work_dir)
    for student in recipe.students:
        model, runs[student.name] = train_student(student, teacher, recipe, work_dir / f"{student.name}.safetensors")
        export_model(model, out_dir / student.name)
    write_pool_file(recipe, out_dir / POOL_FILE_NAME)
    pool = ModelPool.load(out_dir, threads=torch.get_num_threads())
    prompts = read_prompts(out_dir / "prompts.jsonl")
    write_whole(out_dir / "CARD.md", make_card(pool, prompts, held_out, runs, recipe=recipe, command=command))


def _prepare_texts(corpus: Corpus, recipe: Recipe, out_dir: Path, work_dir: Path) -> Tokenizer:
    """Tokenizer and packed sequences; the last file written shows that both exist."""
    packed, learned = work_dir / "sequences.safetensors", work_dir / "tokenizer.json"
    if not packed.exists():
        tokenizer = train_tokenizer(corpus, recipe)
        write_whole(learned, tokenizer.to_str(pretty=True))
        write_tensors({"sequences": pack_corpus(corpus, tokenizer, recipe)}, packed)
    tokenizer = Tokenizer.from_file(str(learned))
    write_whole(out_dir / "tokenizer.json", tokenizer.to_str(pretty=True))
    return tokenizer


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
    """Write the pool file of a recipe: lookup, students, `slim`, target."""
    head = f'name = "{recipe.name}"\ntokenizer = "tokenizer.json"\ncontext_tokens = {recipe.context_tokens}\n'
    write_whole(path, "\n".join([head, *map(_member, recipe.members)]))


def _member(entry: MemberEntry) -> str:
    lines = ["[[members]]", f'name = "{entry.name}"']
    if entry.ngram is not None:
        rule = ", ".join(
            f"{key} = {json.dumps(value)}" for key, value in entry.ngram.model_dump(exclude_unset=True).items()
        )
        lines.append(f"ngram = {{ {rule} }}")
    elif entry.submodel_of is not None:
        lines += [f'submodel_of = "{entry.submodel_of}"', f"skip_layers = {list(entry.skip_layers)}"]
    else:
        lines += [f'path = "{entry.path}"', f'dtype = "{entry.dtype}"', f'device = "{entry.device}"']
    return "\n".join(lines) + "\n"


def make_card(
    pool: ModelPool,
    prompts: Sequence[Prompt],
    held_out: dict[str, list[Item]],
    runs: dict[str, TrainingRun],
    *,
    recipe: Recipe,
    command: str,
) -> str:
    """Measure the pool and write the card as Markdown; `command` is the one that trained it."""
    networks = {member.name: member.model for member in pool.members if member.model is not None}
    written = calibrate(pool, prompts, max_new_tokens=AGREEMENT_TOKENS)
    texts = [pool.decode(list(text.tokens)) for text in written.texts]
    sections = (
        f"# {pool.name}",
        _origin(recipe, command),
        "## Members\n\n" + members_table(pool, runs, of_others="with the target"),
        "## Agreement with the target\n\nShare of equal greedy choices, teacher-forced on the target's greedy text "
        f"of {len(prompts)} held-out prompts ({written.num_tokens} tokens), float32.\n\n"
        + _agreement_table(networks, prompts, written),
        "## Loss on held-out documents\n\nNats per token.\n\n" + _loss_table(networks, held_out, pool.tokenizer),
        "## Answers of the target\n\nGreedy text that holds the expected answer.\n\n" + _answer_table(prompts, texts),
        "## Samples\n\nThe target's greedy text of the first held-out prompt of each domain.\n\n"
        + _samples(prompts, texts),
    )
    return "\n\n".join(sections) + "\n"


def _origin(recipe: Recipe, command: str) -> str:
    return (
        "Small models for trying out chains on a CPU: Llama architecture, random initial weights, trained on "
        "generated texts and on the Python standard library of the machine that ran\n\n"
        f"    {command}\n\n"
        f"with Python {platform.python_version()}, torch {torch.__version__}, {torch.get_num_threads()} thread(s), "
        f"seed {recipe.seed}. `slim` is the target without its layers {list(recipe.skip_layers)} and shares its "
        "weights. All numbers below were written by that command. Weights are stored in bfloat16."
        f"{recipe.remark and ' ' + recipe.remark}"
    )


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    return markdown_table(tables.table(rows))


def _agreement_table(networks: Networks, prompts: Sequence[Prompt], written: Calibration) -> str:
    """By domain and for all text; a domain without a prompt has no column."""
    tags = [prompt.tag for prompt in prompts]
    parts = {tag: tuple(text for text, its in zip(written.texts, tags, strict=True) if its == tag) for tag in TAGS}
    parts = {tag: texts for tag, texts in {**parts, "all": written.texts}.items() if texts}

    def row(name: str) -> dict[str, str]:
        apart = {tag: measure_distance(networks[name], replace(written, texts=texts)) for tag, texts in parts.items()}
        return {"member": name, **{tag: f"{1 - one.disagreement:.1%}" for tag, one in apart.items()}}

    return _table([row(name) for name in tracked(networks, "agreement", total=len(networks), unit="members")])


def _loss_table(networks: Networks, held_out: Mapping[str, Sequence[Item]], tokenizer: Tokenizer) -> str:
    def row(name: str) -> dict[str, str]:
        losses = {tag: _held_out_loss(networks[name], held_out[tag], tokenizer) for tag in TAGS}
        return {"member": name, **{tag: f"{loss:.2f}" for tag, loss in losses.items()}}

    return _table([row(name) for name in networks])


@torch.no_grad()
def _held_out_loss(model: PreTrainedModel, items: Sequence[Item], tokenizer: Tokenizer) -> float:
    """Mean cross-entropy in nats per token over whole documents, their end tokens included."""
    total, num_tokens = 0.0, 0
    for item in items:
        ids = torch.tensor([tokenizer.encode(item.text + END_TOKEN).ids])
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        total += float(functional.cross_entropy(logits[0].float(), ids[0, 1:], reduction="sum"))
        num_tokens += ids.shape[1] - 1
    return total / max(1, num_tokens)


def _answer_table(prompts: Sequence[Prompt], texts: Sequence[str]) -> str:
    rows = []
    for tag in TAGS:
        pairs = [
            (prompt.answer, text)
            for prompt, text in zip(prompts, texts, strict=True)
            if prompt.tag == tag and prompt.answer is not None
        ]
        if pairs:
            num_right = sum(is_right(tag, answer, text) for answer, text in pairs)
            rows.append({"domain": tag, "right": f"{num_right} of {len(pairs)}"})
    return _table(rows)


def _samples(prompts: Sequence[Prompt], texts: Sequence[str]) -> str:
    first = {prompt.tag: (prompt, text) for prompt, text in zip(reversed(prompts), reversed(texts), strict=True)}
    parts = []
    for tag in (tag for tag in TAGS if tag in first):
        prompt, text = first[tag]
        sample = f"{prompt.text[-SAMPLE_CHARACTERS:]}▶{text[:SAMPLE_CHARACTERS]}"
        parts.append(f"{tag}:\n\n" + "\n".join(f"    {line}" for line in sample.splitlines()))
    return "\n\n".join(parts)


def members_table(pool: ModelPool, runs: Mapping[str, TrainingRun], *, of_others: str) -> str:
    """Parameters, seconds of a forward of one token, and training or `of_others`, as Markdown."""
    rows = []
    for name, costs in measure_costs(pool, new_tokens=(1,), repeats=TIMED_FORWARDS).tables.items():
        run = runs.get(name)
        rows.append(
            {
                "member": name,
                "parameters": f"{pool.member(name).num_parameters:,}",
                "ms per token": f"{1000 * costs.seconds[0]:.2f}",
                "tokens seen": f"{run.num_tokens:,}" if run else of_others,
                "seconds of training": f"{run.seconds:,.0f}" if run else "-",
            }
        )
    return markdown_table(tables.table(rows))

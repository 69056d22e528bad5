"""Slim verifiers, the target without some of its layers: how they are searched, measured and written into a pool file.

For each share of layers a search finds the mask of least distance from the target, teacher-forced on the target's own
text: over every mask if they are few, else random ones and then by Bayesian optimisation (the order of the VIA-SD
paper, arXiv:2606.12243, which does not publish its settings). A mask is the ascending tuple of skipped layers, and a
point in a box of keys; none is tried twice. Results include the seconds of a verification. Letters: n layers of the
target, k of them skipped, T tokens of one text, N of all texts, V vocabulary.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import comb
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..base.errors import ArgumentError, load_optuna
from ..base.terminal import Progress, quiet
from ..base.toml import decode_toml
from ..policies.fixed import Plain
from ..traces.meta import GREEDY, Sampling
from .decode import decode, whole
from .pools.members import describe_model, loaded_pool
from .pools.pool import ModelPool
from .pools.pool_file import MemberEntry, PoolFile, PoolFileError
from .pools.submodels import make_submodel
from .profiling.costs import measure_costs
from .prompts import Prompt
from .sampling import truncated

BAYESIAN = "Bayesian search (random trials alone do not)"


class BayesianProposals:
    """Points `[n]` of the unit box; `num_keys` is n.

    Raises:
        ModuleNotFoundError: the extra `search` is not installed; the message says how.
    """

    def __init__(self, num_keys: int, *, seed: int) -> None:
        optuna = load_optuna(BAYESIAN)
        self._names = [str(number) for number in range(num_keys)]
        self._space = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in self._names}
        # Each coordinate on its own: the joint density repeats points far more often with so few.
        sampler = optuna.samplers.TPESampler(n_startup_trials=0, multivariate=False, seed=seed)
        self._study = optuna.create_study(sampler=sampler)
        self._make_trial = optuna.trial.create_trial
        self._unused = optuna.trial.TrialState.FAIL

    def learn(self, keys: Sequence[float], value: float) -> None:
        """Note the value of a point; less is better."""
        point = dict(zip(self._names, keys, strict=True))
        self._study.add_trial(self._make_trial(params=point, distributions=self._space, value=value))

    def propose(self) -> list[float]:
        """The next point `[n]`; its value is noted by `learn`."""
        trial = self._study.ask(self._space)
        self._study.tell(trial, state=self._unused)
        return [trial.params[name] for name in self._names]


# Texts written together.
BATCH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationText:
    """One prompt and what the target writes after it."""

    prompt: tuple[int, ...]  # token ids, at least one
    tokens: tuple[int, ...]  # `[T]` ids of the target's text, at least one
    target_probs: Tensor  # `[T, V]` float32 on the CPU: the target's distribution of each of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Texts of the target; their distributions take 4 N V bytes."""

    texts: tuple[CalibrationText, ...]  # one per prompt, at least one
    sampling: Sampling  # how they were written; distances are taken at its temperature

    @property
    def num_tokens(self) -> int:
        """N."""
        return sum(len(text.tokens) for text in self.texts)


def calibrate(
    pool: ModelPool,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
) -> Calibration:
    """Let the target, the pool's last member, continue every prompt (at least one), and keep its distributions.

    The ids of prompts must differ; `max_new_tokens` >= 1 is the longest text.

    Raises:
        ValueError: no prompts, one that does not fit into the pool's context with its text, or a target that fails.
    """
    if not prompts:
        raise ArgumentError("`prompts` must hold at least one, got none")
    plain = Plain(loaded_pool(pool))
    outputs, _ = whole(
        decode(pool, plain, prompts, sampling=sampling, max_new_tokens=max_new_tokens, name="plain", batch=BATCH)
    )
    texts = []
    for prompt, output in zip(prompts, outputs, strict=True):
        if output.error or pool.target.model is None:
            raise ValueError(output.error)
        ids = tuple(pool.encode(prompt.text))
        probs = next_token_probs(pool.target.model, ids, output.tokens, sampling)
        texts.append(CalibrationText(prompt=ids, tokens=output.tokens, target_probs=probs))
    return Calibration(texts=tuple(texts), sampling=sampling)


@torch.inference_mode()
def next_token_probs(
    model: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling
) -> Tensor:
    """`[T, V]` float32 on the CPU: the model's distribution of each of T tokens after a prompt, without a cache.

    The model is in evaluation mode; the prompt has at least one token id, and T >= 1. Distributions are taken at the
    temperature and truncation of `sampling`; greedy ones at temperature 1.
    """
    ids = torch.tensor([[*prompt, *tokens[:-1]]], device=model.device)
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(tokens)).logits[0]
    return truncated(logits, sampling).float().softmax(dim=-1).cpu()


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """A model's distance to the target, over all tokens of the target's text.

    1 - `tvd` is the SimScore of SpecRouter (arXiv:2505.07680), and the share of tokens that rejection sampling accepts
    (Leviathan et al. 2023, arXiv:2211.17192, Cor. 3.6); 1 - `disagreement` is the share that greedy decoding accepts.
    """

    tvd: float  # mean total variation distance of the two distributions of the next token, 0 to 1
    disagreement: float  # share of tokens for which the two likeliest differ, 0 to 1


def measure_distance(model: PreTrainedModel, calibration: Calibration) -> Distance:
    """Mean over the calibration's tokens; logits that are not finite count as a distance of 1."""
    apart, unequal = 0.0, 0
    for text in calibration.texts:
        probs = next_token_probs(model, text.prompt, text.tokens, calibration.sampling)
        finite = probs.isfinite().all(dim=-1)
        differences = (probs - text.target_probs).abs().sum(dim=-1).double() / 2
        apart += float(torch.where(finite, differences, 1.0).sum())
        unequal += int((~finite | (probs.argmax(dim=-1) != text.target_probs.argmax(dim=-1))).sum())
    num_tokens = calibration.num_tokens
    return Distance(tvd=apart / num_tokens, disagreement=unequal / num_tokens)


Mask = tuple[int, ...]


def num_skipped(share: float, num_layers: int) -> int:
    """k: the share of n layers, rounded.

    Raises:
        ValueError: a share outside (0, 1), or one that rounds to no layer or to all of them.
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"share must be in (0, 1), got {share:g}")
    skipped = round(share * num_layers)
    if not 0 < skipped < num_layers:
        raise ValueError(
            f"share must leave out at least one of {num_layers} layers and keep one, got {share:g}, which rounds to "
            f"{skipped}"
        )
    return skipped


def slim_name(share: float) -> str:
    """The name of a slim verifier without a share of the layers: `slim45` for 0.45."""
    return f"slim{100 * share:g}"


def skipped_of(shares: Sequence[float], num_layers: int) -> dict[str, int]:
    """The number of layers each share skips, by the name of its slim verifier.

    Raises:
        ValueError: no shares, one that `num_skipped` rejects, or two that skip equally many layers.
    """
    if not shares:
        raise ValueError("shares must hold at least one, got 0")
    names: dict[int, str] = {}
    for share in shares:
        skipped = num_skipped(share, num_layers)
        if skipped in names:
            rule = f"must leave out another number of layers than {names[skipped]}"
            raise ValueError(f"share {rule} ({skipped} of {num_layers}), got {share:g}")
        names[skipped] = slim_name(share)
    return {name: skipped for skipped, name in names.items()}


def mask_of(keys: Sequence[float], skipped: int) -> Mask:
    """The k layers of the largest keys `[n]`, the first ones on ties.

    So every point of a box is a mask, and one drawn evenly from the box is a mask drawn evenly (random keys: Bean 1994,
    ORSA Journal on Computing 6).
    """
    order = sorted(range(len(keys)), key=lambda layer: (-keys[layer], layer))
    return tuple(sorted(order[:skipped]))


def nearest_unseen(keys: Sequence[float], mask: Mask, seen: Collection[Mask]) -> tuple[list[float], Mask] | None:
    """A mask not in `seen` that differs from `mask` in one layer: the exchange with the least difference of `keys`.

    `mask` is that of `keys` `[n]`. Returns the keys with those of the two layers exchanged, and the mask; None if every
    such mask was seen.
    """
    pairs = [(left_out, kept) for left_out in mask for kept in range(len(keys)) if kept not in mask]
    for left_out, kept in sorted(pairs, key=lambda pair: keys[pair[0]] - keys[pair[1]]):
        other = tuple(sorted({*mask, kept} - {left_out}))
        if other not in seen:
            exchanged = list(keys)
            exchanged[left_out], exchanged[kept] = keys[kept], keys[left_out]
            return exchanged, other
    return None


How = Literal["exhaustive", "random", "bayesian", "pool"]

# Tokens of the timed verification: four drafted ones and the one before them.
VERIFIED_TOKENS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimFound:
    """A slim verifier; distances are means over the target's own text after the prompts of the search."""

    name: str
    share: float  # of the target's layers that it leaves out, 0 to 1
    skip_layers: Mask  # those layers
    num_parameters: int  # of the remaining model
    tvd: float  # mean total variation distance to the target, 0 to 1
    disagreement: float  # share of tokens with another argmax than the target's, 0 to 1
    seconds: float  # of a forward of `VERIFIED_TOKENS` tokens
    seconds_share: float  # of the target's seconds for the same, > 0
    how: How  # what proposed it; `pool` for a submodel of the pool
    # another one is as fast and as close or better, and better in seconds, `tvd` or `disagreement`
    dominated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The results of a search."""

    found: tuple[SlimFound, ...]  # one per share, in the order asked
    baselines: tuple[SlimFound, ...]  # submodels of the pool
    target_s: float  # seconds of the target's forward of `VERIFIED_TOKENS` tokens
    num_layers: int  # of the target
    num_tokens: int  # of the target's text that distances were measured on
    num_trials: int  # masks tried


def mark_dominated(rows: Sequence[SlimFound]) -> tuple[SlimFound, ...]:
    """The rows with `dominated` set, each compared with all others."""
    return tuple(replace(row, dominated=any(_dominates(other, row) for other in rows)) for row in rows)


def _dominates(one: SlimFound, other: SlimFound) -> bool:
    pairs = ((one.seconds, other.seconds), (one.tvd, other.tvd), (one.disagreement, other.disagreement))
    return all(mine <= theirs for mine, theirs in pairs) and any(mine < theirs for mine, theirs in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimTrial:
    """One mask that was tried."""

    skip_layers: Mask  # the mask
    distance: Distance  # to the target without a mask
    how: How  # what proposed it


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long to search."""

    trials: int  # masks tried, >= 1; if there are no more than that, all of them
    random_trials: int  # the first of these, drawn uniformly, 1 to `trials`
    seed: int  # of the draws, >= 0

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"trials must be >= 1, got {self.trials}")
        if not 1 <= self.random_trials <= self.trials:
            raise ValueError(f"random_trials must be 1 to trials ({self.trials}), got {self.random_trials}")
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")

    def num_trials(self, masks: int) -> int:
        """How many of `masks` masks will be tried."""
        return min(self.trials, masks)

    def is_bayesian(self, masks: int) -> bool:
        """Whether a search among `masks` masks has a Bayesian part."""
        return self.random_trials < self.trials < masks


def search_masks(
    evaluate: Callable[[Mask], Distance], num_layers: int, skipped: int, budget: Budget
) -> tuple[SlimTrial, ...]:
    """Try masks in turn, each once; `best_trial` takes the best.

    `evaluate` gives the distance of a mask; `num_layers` is n, `skipped` k, 1 to n - 1.

    Raises:
        ModuleNotFoundError: Bayesian search without the extra `search`.
    """
    if comb(num_layers, skipped) <= budget.trials:
        return tuple(
            SlimTrial(skip_layers=mask, distance=evaluate(mask), how="exhaustive")
            for mask in combinations(range(num_layers), skipped)
        )
    rng = np.random.default_rng([budget.seed, num_layers, skipped])
    tried: dict[Mask, SlimTrial] = {}
    points: dict[Mask, list[float]] = {}

    def unseen_at_random() -> tuple[list[float], Mask]:
        while True:
            keys = rng.random(num_layers).tolist()
            mask = mask_of(keys, skipped)
            if mask not in tried:
                return keys, mask

    def value_of(keys: list[float], mask: Mask, how: How) -> float:
        points[mask], tried[mask] = keys, SlimTrial(skip_layers=mask, distance=evaluate(mask), how=how)
        return tried[mask].distance.tvd

    while len(tried) < budget.random_trials:
        value_of(*unseen_at_random(), "random")
    if len(tried) < budget.trials:
        proposals = BayesianProposals(num_layers, seed=int(rng.integers(2**31)))
        for mask, trial in tried.items():
            proposals.learn(points[mask], trial.distance.tvd)
        while len(tried) < budget.trials:
            keys = proposals.propose()
            mask = mask_of(keys, skipped)
            if mask in tried:
                proposals.learn(keys, tried[mask].distance.tvd)
                keys, mask = nearest_unseen(keys, mask, tried) or unseen_at_random()
            proposals.learn(keys, value_of(keys, mask, "bayesian"))
    return tuple(tried.values())


def best_trial(trials: tuple[SlimTrial, ...]) -> SlimTrial:
    """The trial of least total variation distance, then of least disagreement, then with the first layers."""
    return min(trials, key=lambda trial: (trial.distance.tvd, trial.distance.disagreement, trial.skip_layers))


# Comments right above a header are about what follows.
_MEMBER = re.compile(r"(?:^[ \t]*#[^\n]*\n)*^[ \t]*\[\[[ \t]*members[ \t]*\]\]", re.MULTILINE)
_SKIPPED = re.compile(r"^([ \t]*skip_layers[ \t]*=[ \t]*)\[[^\]]*\]", re.MULTILINE)


class _Block(NamedTuple):
    """A member, its size, and its part of the text with the comments above it and the text after it."""

    entry: MemberEntry
    num_parameters: int
    text: str


def masks_of(content: PoolFile) -> dict[str, Mask]:
    """Layers that submodels of the target leave out, by name; without those with weights of their own."""
    target = content.members[-1].name
    submodels = [entry for entry in content.members if entry.submodel_of == target and entry.low_rank is None]
    return {entry.name: entry.skip_layers for entry in submodels}


def check_names(file: Path, content: PoolFile, names: Sequence[str], *, replace: bool) -> None:
    """Reject names of new slim verifiers that are taken; `replace` lets a submodel of the target be replaced.

    Raises:
        PoolFileError: a name that is taken; if `replace`, by another kind of member.
    """
    target = content.members[-1].name
    for row, member in enumerate(content.members):
        if member.name not in names:
            continue
        if not replace:
            rule = "must not be that of a member to be (`replace` puts another in its place)"
            raise PoolFileError(file, f"members[{row}].name", rule, member.name)
        if member.submodel_of != target:
            raise PoolFileError(file, f"members[{row}]", f"must be a submodel of {target} to be replaced", member.name)
        if member.low_rank is not None:
            rule = "must be absent where the submodel is to be replaced, as it fits the old layers only"
            raise PoolFileError(file, f"members[{row}].low_rank", rule, member.low_rank)


def add_slims(
    file: Path, content: PoolFile, slims: Sequence[SlimFound], sizes: Mapping[str, int], *, folder: Path
) -> str:
    """The text of a pool file with slim verifiers of its target, each after the members that are no larger.

    Each replaces a member of its name; `sizes` are parameters by member. Relative locations are rewritten where the
    text will be kept in another `folder` than the file, which is not changed.

    Raises:
        PoolFileError: a file that lists its members in another way than as `[[members]]` with plain keys.
    """
    text = file.read_bytes().decode("utf-8")
    newline = "\r\n" if "\r\n" in text else "\n"
    starts = [found.start() for found in _MEMBER.finditer(text)]
    head, *parts = [text[start:end] for start, end in pairwise([0, *starts, len(text)])]
    if len(parts) != len(content.members):
        raise _unfit(file, len(parts))
    tokenizer = content.tokenizer
    blocks = [_Block(entry, sizes[entry.name], part) for entry, part in zip(content.members, parts, strict=True)]
    if folder.resolve() != file.parent.resolve():
        tokenizer = moved(file, tokenizer, folder)
        head = _with_value(head, "tokenizer", tokenizer)
        blocks = [_relocated(file, block, folder) for block in blocks]
    for slim in slims:
        blocks = _placed(blocks, slim, newline)
    # Every header on a line of its own.
    ended = [block.text if block.text.endswith("\n") else block.text + newline for block in blocks[:-1]]
    edited = "".join([head, *ended, blocks[-1].text])
    members = tuple(block.entry for block in blocks)
    try:
        found = PoolFile.model_validate(decode_toml(edited))
    except ValueError as error:
        raise _unfit(file, str(error)) from error
    if found != content.model_copy(update={"tokenizer": tokenizer, "members": members}):
        raise _unfit(file, "another form")
    return edited


def _placed(blocks: Sequence[_Block], slim: SlimFound, newline: str) -> list[_Block]:
    """The blocks with a slim verifier in order of size; the target, last, is larger than any."""
    others = [block for block in blocks if block.entry.name != slim.name]
    old = next((block.text for block in blocks if block.entry.name == slim.name), None)
    layers = str(list(slim.skip_layers))
    entry = MemberEntry(name=slim.name, submodel_of=blocks[-1].entry.name, skip_layers=slim.skip_layers)
    if old is None:
        lines = ("[[members]]", f'name = "{entry.name}"', f'submodel_of = "{entry.submodel_of}"')
        text = newline.join((*lines, f"skip_layers = {layers}", "", ""))
    else:
        text = _SKIPPED.sub(lambda found: found[1] + layers, old, count=1)
    place = next(place for place, block in enumerate(others) if block.num_parameters > slim.num_parameters)
    return [*others[:place], _Block(entry, slim.num_parameters, text), *others[place:]]


def _relocated(file: Path, block: _Block, folder: Path) -> _Block:
    entry, text = block.entry, block.text
    for field in ("path", "tokenizer", "vocabulary", "low_rank"):
        value = getattr(entry, field)
        if value is not None:
            there = moved(file, value, folder)
            entry, text = entry.model_copy(update={field: there}), _with_value(text, field, there)
    return _Block(entry, block.num_parameters, text)


def moved(file: Path, location: str, folder: Path) -> str:
    """A location of a pool file relative to `folder` instead; hub ids and absolute ones are unchanged."""
    here = file.parent / location
    if Path(location).is_absolute() or not here.exists():
        return location
    return Path(os.path.relpath(here.resolve(), folder.resolve())).as_posix()


def _with_value(text: str, field: str, value: str) -> str:
    """The text with another string for the first `field = "..."`."""
    written = json.dumps(value, ensure_ascii=False)
    pattern = re.compile(rf"^([ \t]*{field}[ \t]*=[ \t]*)(?:\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*')", re.MULTILINE)
    return pattern.sub(lambda found: found[1] + written, text, count=1)


def _unfit(file: Path, found: object) -> PoolFileError:
    rule = "must be a [[members]] table with plain keys for each member, to have one added"
    return PoolFileError(file, "members", rule, found)


def weight_shares(models: Mapping[str, nn.Module]) -> dict[str, dict[str, float]]:
    """By member, the share of its bytes of weights that each other member reads as well, without zeros."""
    bytes_of = {
        name: {weight.data_ptr(): weight.nbytes for weight in model.parameters()} for name, model in models.items()
    }
    shares: dict[str, dict[str, float]] = {}
    for name, weights in bytes_of.items():
        total = sum(weights.values())
        common = {
            other: sum(weights[place] for place in weights.keys() & theirs.keys()) / total
            for other, theirs in bytes_of.items()
            if other != name
        }
        shares[name] = {other: share for other, share in common.items() if share}
    return shares


# Other work on the machine adds seconds, and more to longer forwards: a median over a busy spell distorts ratios. So
# there are many short spells, and the fastest counts.
SPELLS, REPEATS = 21, 3


def verify_seconds(pool: ModelPool, masks: Iterable[Mask]) -> dict[int, float]:
    """Seconds of a forward of `VERIFIED_TOKENS` tokens after a context: the fastest of `measure_costs`' figures.

    They depend on the number of skipped layers, not on which, so one mask of each number is timed; all of them and the
    target, the pool's last member, take turns. Returns seconds by number of layers left out; 0 is the target.
    """
    model = pool.target.model
    assert model is not None  # a pool file without one is rejected
    one_of = {len(mask): mask for mask in masks}
    members = [
        describe_model(str(skipped), "submodel", make_submodel(model, mask), None)
        for skipped, mask in sorted(one_of.items(), reverse=True)
    ]
    timed = replace(pool, members=(*members, replace(pool.target, name="0")))
    spells = []
    with Progress("timing forwards", SPELLS, unit="spells") as progress, quiet():
        for _ in range(SPELLS):
            tables = measure_costs(timed, new_tokens=(VERIFIED_TOKENS,), repeats=REPEATS).tables
            spells.append({int(name): table.seconds[0] for name, table in tables.items()})
            progress.advance()
    return {skipped: min(spell[skipped] for spell in spells) for skipped in spells[0]}


def find_slims(
    pool: ModelPool,
    prompts: Sequence[Prompt],
    shares: Sequence[float],
    budget: Budget,
    *,
    max_new_tokens: int,
    baselines: Mapping[str, Mask] | None = None,
) -> Frontier:
    """Search the best mask of each share, and time a verification by each.

    Distances are measured on continuations of prompts by the target, the pool's last member, of at most
    `max_new_tokens` >= 1. `shares` are of the layers to leave out, each in (0, 1); `budget` is of each one's search.
    `baselines` are masks of other submodels of the target to compare with, by name.

    Raises:
        ValueError: shares out of range or that leave out equally many layers, a target without layers to leave out, or
            as of `calibrate`.
        ModuleNotFoundError: Bayesian search without the extra `search`.
    """
    model = target_with_layers(pool)
    num_layers = int(model.config.num_hidden_layers)
    skipped = skipped_of(shares, num_layers)
    if any(budget.is_bayesian(comb(num_layers, count)) for count in skipped.values()):
        load_optuna(BAYESIAN)  # raises before any work if it is not installed
    calibration = calibrate(pool, prompts, max_new_tokens=max_new_tokens)
    num_trials = sum(budget.num_trials(comb(num_layers, count)) for count in skipped.values())
    candidates = []
    with Progress("trying masks", num_trials) as progress:

        def evaluate(mask: Mask) -> Distance:
            distance = measure_distance(make_submodel(model, mask), calibration)
            progress.advance()
            return distance

        for name, count in skipped.items():
            candidates.append((name, best_trial(search_masks(evaluate, num_layers, count, budget))))
    for name, mask in (baselines or {}).items():
        distance = measure_distance(make_submodel(model, mask), calibration)
        candidates.append((name, SlimTrial(skip_layers=mask, distance=distance, how="pool")))
    seconds = verify_seconds(pool, [trial.skip_layers for _, trial in candidates])
    rows = mark_dominated([_timed(name, trial, seconds, model) for name, trial in candidates])
    return Frontier(
        found=rows[: len(skipped)],
        baselines=rows[len(skipped) :],
        target_s=seconds[0],
        num_layers=num_layers,
        num_tokens=calibration.num_tokens,
        num_trials=num_trials,
    )


def tries_all(pool: ModelPool, shares: Sequence[float], budget: Budget) -> bool:
    """Whether no share has more masks than are tried, so that none is drawn; raises as `find_slims`."""
    num_layers = int(target_with_layers(pool).config.num_hidden_layers)
    return all(comb(num_layers, count) <= budget.trials for count in skipped_of(shares, num_layers).values())


def target_with_layers(pool: ModelPool) -> PreTrainedModel:
    """The target's model; raises ValueError if no layers can be left out of it."""
    model = pool.target.model
    assert model is not None  # a pool file without one is rejected
    try:
        make_submodel(model, ())
    except ValueError as error:
        raise ValueError(f"target {pool.target.name}: {error}") from error
    return model


def _timed(name: str, trial: SlimTrial, seconds: Mapping[int, float], model: PreTrainedModel) -> SlimFound:
    skipped = len(trial.skip_layers)
    submodel = make_submodel(model, trial.skip_layers)
    return SlimFound(
        name=name,
        share=skipped / int(model.config.num_hidden_layers),
        skip_layers=trial.skip_layers,
        num_parameters=sum(parameter.numel() for parameter in submodel.parameters()),
        tvd=trial.distance.tvd,
        disagreement=trial.distance.disagreement,
        seconds=seconds[skipped],
        seconds_share=seconds[skipped] / seconds[0],
        how=trial.how,
    )

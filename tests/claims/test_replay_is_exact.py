"""Replaying a recording says what decoding would have done, for chains the recording was made without.

The measure is `reference_decoder`, which shares no code with what it measures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from random import Random

import pytest
import torch
from paceline.decoding.results import VERIFY
from paceline.decoding.seen import Start
from paceline.policies import make_policy
from paceline.reports.summary import summarise_run
from paceline.runs.log import RunLog
from paceline.runtime.coupled_noise import gumbel
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt, read_prompts
from paceline.runtime.recording.recorder import record
from paceline.sim.contexts import TrieTables
from paceline.sim.recorded import recorded_pool
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.contexts.recording import TrieRecording
from paceline.traces.meta import Closure, Sampling

from ..reference_decoder import Decoded, ReferenceDecoder
from ..tiny_models import random_prompts, tiny_pool_of_four
from ..unit_cost import UnitCost

CHAINS = (
    "draft:4/target",
    "slim:7/target",
    "draft:3/mid:6/target",
    "draft:4/slim:5/target",
    "mid:2/slim:7/target",
)
CLOSURE = Closure(kind="monotone", reach=10, run=4)
GREEDY = Sampling(mode="greedy")
COUPLED = Sampling(mode="coupled", temperature=0.8, seed=11)
SAMPLINGS = (GREEDY, COUPLED)
PICO = Path(str(files("paceline"))) / "pools" / "pico"
needs_pico = pytest.mark.skipif(not (PICO / "pool.toml").is_file(), reason="the pool pico is not there")


@dataclass
class Comparison:
    """Replay against the reference, over all requests of a recording and one chain."""

    mismatches: list[str]
    near_ties: int
    num_modelled: int
    num_tokens: int


@lru_cache
def pico():
    return ModelPool.load(PICO)


def pico_prompts(count):
    """Random ones; the short half, since the reference reads every context from its first token."""
    pool = pico()
    prompts = sorted(read_prompts(PICO / "prompts.jsonl"), key=lambda prompt: len(pool.encode(prompt.text)))
    return Random(1).sample(prompts[: len(prompts) // 2], count)


def recorded(
    pool: ModelPool,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    folder: Path,
    num_tokens: int,
    closure: Closure = CLOSURE,
) -> TrieRecording:
    out = folder / f"{sampling.mode}-{closure.reach}.trace"
    return record(
        pool,
        prompts,
        sampling=sampling,
        closure=closure,
        max_new_tokens=num_tokens,
        out=out,
    )


def references(pool: ModelPool, trace: TrieRecording) -> dict[str, ReferenceDecoder]:
    """By request id; one decoder serves all chains, so that it reads no context twice."""
    sampling = trace.meta.sampling
    models = {member.name: member.model for member in pool.members if member.model is not None}
    decoders = {}
    for request in trace.requests:

        def noise(position, request_id=request.request_id):
            return torch.from_numpy(gumbel(sampling.seed, request_id, position, trace.meta.vocab_size))

        decoders[request.request_id] = ReferenceDecoder(
            models,
            request.prompt,
            budget=request.max_new_tokens,
            eos=frozenset(pool.eos_token_ids),
            temperature=sampling.temperature,
            noise=None if sampling.seed is None else noise,
        )
    return decoders


def parsed(chain: str) -> tuple[list[tuple[str, int]], str]:
    *below, target = chain.split("/")
    pairs = [part.split(":") for part in below]
    return [(name, int(window)) for name, window in pairs], target


def replayed(tables: TrieTables, chain: str, start: Start = Start.prefill) -> tuple[dict[str, Decoded], RunLog]:
    """What the simulator says, in the reference's terms."""
    pool = recorded_pool(tables.trace)
    tokens: dict[str, list[int]] = {}
    scenario = Scenario(tables=tables, cost=UnitCost(), start=start)
    log = simulate(scenario, make_policy(chain, pool), chain, outputs=tokens)
    ids = log.requests["request_id"].tolist()
    decoded = {request_id: Decoded(tokens=tokens[request_id]) for request_id in ids}
    steps = {name: column.tolist() for name, column in log.steps.items()}
    for request, kind, level, accepted, op in zip(
        steps["request"], steps["kind"], steps["level"], steps["accepted"], steps["op"], strict=True
    ):
        name = pool.names[level]
        if kind == VERIFY:
            decoded[ids[request]].verdicts.append((name, accepted))
        forwards = decoded[ids[request]].forwards
        forwards[name] = forwards.get(name, 0) + int(log.ops["num_forwards"][op])
    return decoded, log


def compare(
    decoders: dict[str, ReferenceDecoder], tables: TrieTables, chain: str, start: Start = Start.prefill
) -> Comparison:
    seen, log = replayed(tables, chain, start)
    mismatches = []
    near_ties = num_tokens = 0
    for request_id, decoder in decoders.items():
        wanted, got = decoder.decode(*parsed(chain), prefill=start is Start.prefill), seen[request_id]
        near_ties += wanted.near_ties
        num_tokens += len(wanted.tokens)
        mismatches += [
            f"{request_id}: {what} are {getattr(got, what)}, not {getattr(wanted, what)}"
            for what in ("tokens", "verdicts", "forwards")
            if getattr(wanted, what) != getattr(got, what)
        ]
    return Comparison(mismatches, near_ties, int(log.steps["modelled"].sum()), num_tokens)


def assert_exact(pool, prompts, folder, *, chains=CHAINS, samplings=SAMPLINGS, num_tokens=32, starts=(Start.prefill,)):
    for sampling in samplings:
        trace = recorded(pool, prompts, sampling, folder, num_tokens)
        tables, decoders = TrieTables(trace), references(pool, trace)
        for chain, start in product(chains, starts):
            result = compare(decoders, tables, chain, start)
            begun = "" if start is Start.prefill else f" start {start}"
            met = f"{result.num_tokens} tokens, {result.near_ties} near ties met"
            told = f"{sampling.mode} {chain}{begun}: {met}"
            assert not result.mismatches, f"{told}; {len(result.mismatches)} differ, first {result.mismatches[0]}"
            assert result.num_modelled == 0, told
            print(told, "- no mismatch")  # noqa: T201 - shown by `pytest -rP`


def test_tiny_models_replay_exactly(tmp_path):
    """Random models, every shape of chain: a member left out in any place, four levels, windows of one."""
    chains = (*CHAINS, "target", "mid:1/target", "draft:1/mid:1/slim:1/target", "draft:2/mid:3/slim:3/target")
    starts = (Start.prefill, Start.draft)
    assert_exact(tiny_pool_of_four(), random_prompts(3), tmp_path, chains=chains, num_tokens=20, starts=starts)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: sampling.mode)
@pytest.mark.parametrize("reach", [0, 1, 3])
def test_beyond_the_reach_decisions_are_counted_as_modelled_and_the_text_is_still_right(tmp_path, sampling, reach):
    pool = tiny_pool_of_four()
    closure = Closure(kind="monotone", reach=reach, run=2)
    trace = recorded(pool, random_prompts(5), sampling, tmp_path, 20, closure)
    tables = TrieTables(trace)
    for chain in ("draft:8/target", "draft:2/mid:9/target", "draft:1/mid:2/slim:6/target"):
        seen, log = replayed(tables, chain)
        assert 0.0 < summarise_run(log).exact_share < 1.0, chain
        assert log.requests["divergent_tokens"].sum() == 0, chain
        for request in trace.requests:
            trunk = request.trie.token[request.trie.trunk[1:]].tolist()
            assert seen[request.request_id].tokens == trunk, (chain, request.request_id)


def test_within_the_reach_everything_is_replayed(tmp_path):
    """A window of n looks n tokens past the trunk; a middle level adds its own window and its own token."""
    closure = Closure(kind="monotone", reach=6, run=3)
    tables = TrieTables(recorded(tiny_pool_of_four(), random_prompts(8), GREEDY, tmp_path, 24, closure))
    for chain in ("draft:6/target", "draft:3/mid:3/target", "draft:2/slim:4/target"):
        _, log = replayed(tables, chain)
        assert summarise_run(log).exact_share == 1.0, chain


@needs_pico
@pytest.mark.slow
def test_trained_models_replay_exactly(tmp_path):
    assert_exact(pico(), pico_prompts(10), tmp_path, num_tokens=24)


@pytest.mark.slow
@needs_pico
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: sampling.mode)
@pytest.mark.parametrize(
    "part", [slice(2), *(pytest.param(slice(at, at + 5), marks=pytest.mark.slow) for at in range(0, 50, 5))], ids=str
)
def test_fifty_prompts_replay_exactly(tmp_path, part, sampling):
    """Five at a time, so that workers can share them."""
    assert_exact(pico(), pico_prompts(50)[part], tmp_path, samplings=(sampling,), num_tokens=32)

"""Forced runs: models made from configs, with random weights, give the seconds; a recording of other models decides.

A `ForcedPool` holds shapes only: configs, or names of shapes that people serve and of some for processors (sizes.toml).
The models do all the work of decoding: forwards over as many tokens and contexts, cache writes, rollbacks, the choice
of tokens, distances where a policy reads them. Then the *decisions*, another world's, replace their results: a
`ForcedSampler` does a sampler's work and returns the decided tokens. `forced_recording` is a recording whose models
have the names and sizes of the pool's, level by level. Letters as in `sampler`.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ..base.errors import ArgumentError, counted, known_are
from ..decoding.legal_steps import Policy
from ..decoding.results import Drafted, DraftResults, Judged, VerifyResults
from ..decoding.rules import Signal, Stop, token_factor
from ..decoding.session import Session
from ..decoding.steps import Draft
from ..decoding.world import DraftItem, VerifyItem, World
from ..runs.log import RunLog
from ..traces.contexts.recording import TrieRecording
from ..traces.contexts.trie import TrieRequest
from ..traces.meta import NgramInfo, Sampling
from ..traces.shapes import DecoderShape, model_called, presets
from .caches import total_bytes
from .clock import Prices
from .decode import Run, check_fit
from .distances import LazyNumbers
from .forward import ModelForward, WrappedForward, attention_of
from .forward_kinds import ForwardKind
from .pools.configs import CONFIG as CONFIG_FILE
from .pools.configs import MemberConfig, check_configs, check_order, read_config, submodel_of
from .pools.members import LoadedMember, LoadedMembers, describe_entry, device_of, loaded_pool
from .pools.pool_file import CONFIG, ForcedPoolFile, MemberEntry, PoolFileError, read_forced_pool_file
from .pools.tokenizer_files import quiet_loading
from .profiling.probe import ProbedWorld
from .prompts import Prompt
from .recording.model_info import model_info, ngram_info
from .sampler import Judging, Sampler, Verdict, Verdicts, make_sampler
from .state import RequestState
from .threads import use_threads
from .verify import Chunk
from .world import TorchWorld


class ForcedResult(NamedTuple):
    """The decided result of one request in an operation."""

    start: int  # output position of the first token drafted
    tokens: Sequence[int]  # drafted, or the verifier's own
    num_accepted: int = 0  # of the judged tokens


class ForcedSampler(Sampler):
    """Writes and accepts as decided: by request in `decided`, which must be set before each operation."""

    def __init__(self, sampling: Sampling) -> None:
        super().__init__(sampling)
        self.decided: Mapping[str, ForcedResult] = {}
        self._real = make_sampler(sampling)

    def distributions(self, logits: Tensor, states: Sequence[RequestState]) -> Tensor:
        return self._real.distributions(logits, states)

    def write(self, logits: Tensor, states: Sequence[RequestState], positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `Sampler`; the tokens are the decided ones."""
        _, best = self._real.write(logits, states, positions)
        tokens = []
        for state, position in zip(states, positions, strict=True):
            told = self.decided[state.request_id]
            tokens.append(told.tokens[position - told.start])
        return torch.tensor(tokens, device=logits.device), best

    def verdicts(self, logits: Tensor, judgings: Sequence[Judging]) -> Verdicts:
        """See `Sampler`; the verdicts are the decided ones, except for logits that are not finite."""
        verdicts: Verdicts = []
        for row, real in zip(judgings, self._real.verdicts(logits, judgings), strict=True):
            told = self.decided[row.state.request_id]
            verdicts.append(None if real is None else Verdict(told.num_accepted, told.tokens[0]))
        return verdicts


# By (biases of queries, keys and values; norms of the hidden size; norms of a head), in a layer.
_FAMILIES: dict[tuple[bool, int, int], type[PreTrainedConfig]] = {
    (False, 2, 0): LlamaConfig,
    (True, 2, 0): Qwen2Config,
    (False, 2, 2): Qwen3Config,
}


@cache
def sized_shapes() -> Mapping[str, DecoderShape]:
    """Shapes for processors by name, small ones first."""
    shapes = tomllib.loads(files(__package__).joinpath("sizes.toml").read_text(encoding="utf-8"))
    return {name: DecoderShape(**shape) for name, shape in shapes.items()}


def preset_names() -> tuple[str, ...]:
    """All names that `preset_config` takes, as tables show them; other spellings of these are accepted too."""
    return (*sized_shapes(), *(name for name, shape in presets().items() if _is_made(shape)))


def preset_config(text: str, *, context_tokens: int) -> PreTrainedConfig | None:
    """The config of the shape named by a text, `20M`, `llama-3-8b` or `Qwen3-0.6B`; None if it names none.

    `context_tokens` are positions the model is made for; its seconds do not depend on them.
    """
    shape = sized_shapes().get(text.upper()) or presets().get(model_called(text) or text.lower())
    if shape is None or not _is_made(shape):
        return None
    return _FAMILIES[_family(shape)](
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        max_position_embeddings=context_tokens,
        tie_word_embeddings=shape.tied,
    )


def _is_made(shape: DecoderShape) -> bool:
    """Whether a config class here has the shape; mixtures of experts have none: dense ones would be far too small."""
    return shape.mixture is None and _family(shape) in _FAMILIES


def _family(shape: DecoderShape) -> tuple[bool, int, int]:
    return shape.bias, shape.norms, shape.head_norms


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedPool(LoadedMembers):
    """Models of random weights; their output is of no use, and any token id may be fed to them."""

    name: str

    @staticmethod
    def load(path: Path, *, threads: int = 1) -> "ForcedPool":
        """Make the models of the forced pool at `path`, a pool file or its folder, each on its device.

        Sets the number of CPU threads torch uses in this process.

        Raises:
            PoolFileError: with one line that names the file, the field, the rule and the value.
            ValueError: threads below 1.
        """
        use_threads(threads)
        file, content = read_forced_pool_file(path)
        configs = _configs(file, content)
        devices = {
            entry.name: device_of(file, f"members[{row}]", entry)
            for row, entry in enumerate(content.members)
            if entry.config is not None
        }
        _check_memory(file, devices, shapes_of(file, content, configs))
        members = _made(file, content, configs, devices)
        return ForcedPool(
            name=content.name,
            members=members,
            tokenizer=None,
            eos_token_ids=(),
            context_tokens=content.context_tokens,
        )

    def forward(self, level: int, kind: ForwardKind, *, share_weights: bool) -> ModelForward:
        """See `LoadedMembers`; token ids are taken modulo the vocabulary."""
        # `slots=True` creates a new class, for which a bare super() fails.
        return _AnyToken(LoadedMembers.forward(self, level, kind, share_weights=share_weights), self.vocab_size)


class _AnyToken(WrappedForward):
    """Takes the token ids of a recording: reading any row of the embedding costs the same."""

    def __init__(self, inner: ModelForward, vocab_size: int) -> None:
        super().__init__(inner)
        self._vocab_size = vocab_size

    def ids(self, ids: Tensor) -> Tensor:
        return ids.remainder(self._vocab_size)


def shapes_of(
    file: Path, content: ForcedPoolFile, configs: Mapping[str, MemberConfig] | None = None
) -> tuple[LoadedMember, ...]:
    """The members without any weights, for their sizes; raises as `ForcedPool.load`, except for memory.

    `configs` are by name, of the members that have one; None reads them.
    """
    known = _configs(file, content) if configs is None else configs
    with torch.device("meta"):
        models = {entry.name: _model(known[entry.name], entry) for entry in content.members if entry.config is not None}
    return _members(file, content, models)


def _configs(file: Path, content: ForcedPoolFile) -> dict[str, MemberConfig]:
    found = {}
    for row, entry in enumerate(content.members):
        if entry.config is not None:
            field = f"members[{row}].{CONFIG}"
            config, model_class, place = named_config(file, field, entry.config, content.context_tokens)
            if content.vocab_size is not None:
                config.vocab_size = content.vocab_size
            found[entry.name] = MemberConfig(
                location=place, config=config, model_class=model_class, eos_token_ids=(), generation_file=place
            )
    check_configs(file, content, found, None)
    return found


def named_config(
    file: Path, field: str, text: str, context_tokens: int
) -> tuple[PreTrainedConfig, type[PreTrainedModel], Path]:
    """The config that a pool file names, the class of its model, and its file.

    `field` of the pool file names it by `text`: a preset, or a config.json or its folder relative to the pool file.
    `context_tokens` is the longest text the model is used with.

    Raises:
        PoolFileError: there is none, or one that cannot be used.
    """
    preset = preset_config(text, context_tokens=context_tokens)
    if preset is not None:
        return preset, MODEL_FOR_CAUSAL_LM_MAPPING[type(preset)], file
    place = file.parent / text
    place = place / CONFIG_FILE if place.is_dir() else place
    if not place.is_file():
        known = known_are(text, preset_names(), where="docs/validation.md")
        raise PoolFileError(file, field, f"must be a {CONFIG_FILE}, its folder or a preset ({known})", text)
    return *read_config(place, context_tokens=context_tokens), place


def _made(
    file: Path, content: ForcedPoolFile, configs: Mapping[str, MemberConfig], devices: Mapping[str, torch.device]
) -> tuple[LoadedMember, ...]:
    """The members with weights: initialised by each model's class, from the pool's seed."""
    models = {}
    for row, entry in enumerate(content.members):
        if entry.config is not None:
            device = devices[entry.name]
            with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
                torch.manual_seed(content.seed + row)
                models[entry.name] = _model(configs[entry.name], entry)
    return _members(file, content, models)


def _model(found: MemberConfig, entry: MemberEntry) -> PreTrainedModel:
    made: Any = found.model_class
    with quiet_loading():
        model: PreTrainedModel = made._from_config(
            found.config, dtype=getattr(torch, entry.dtype), attn_implementation=attention_of(found.config)
        )
    return model.eval().requires_grad_(requires_grad=False)


def _members(file: Path, content: ForcedPoolFile, models: dict[str, PreTrainedModel]) -> tuple[LoadedMember, ...]:
    for row, entry in enumerate(content.members):
        if entry.submodel_of is not None:
            models[entry.name] = submodel_of(file, row, entry, models[entry.submodel_of])
    members = [describe_entry(entry, models.get(entry.name)) for entry in content.members]
    check_order(file, [member.name for member in members], [member.num_parameters for member in members])
    return tuple(members)


def _check_memory(file: Path, devices: Mapping[str, torch.device], shapes: Sequence[LoadedMember]) -> None:
    """Reject weights that some device cannot hold, before any are made; weights shared by submodels count once."""
    needed: dict[torch.device, int] = {}
    for member in shapes:
        if member.name in devices:
            device = devices[member.name]
            needed[device] = needed.get(device, 0) + member.num_parameters * getattr(torch, member.dtype).itemsize
    for device, num_bytes in needed.items():
        if num_bytes > total_bytes(device):
            rule = f"must have {num_bytes:,} bytes for the weights"
            raise PoolFileError(file, f"device {device}", rule, total_bytes(device))


def forced_recording(recording: TrieRecording, pool: ForcedPool) -> TrieRecording:
    """The same contexts under the names of the pool's members, without the recorded models' seconds.

    A prompt lookup that the pool does not have is left out.

    Raises:
        ArgumentError: not as many models as the pool has, another prompt lookup than the pool's, or requests that do
            not fit into the pool's context.
    """
    meta = recording.meta
    models = [member for member in pool.members if member.model is not None]
    if len(models) != len(meta.models):
        theirs, ours = ", ".join(meta.model_names), ", ".join(member.name for member in models)
        raise ArgumentError(
            f"`recording` must hold as many models as pool {pool.name} has, {len(models)} ({ours}), got "
            f"{len(meta.models)} ({theirs})"
        )
    for request in recording.requests:
        if len(request.prompt) + request.max_new_tokens > pool.context_tokens:
            raise ArgumentError(
                f"`recording` must fit into the context of pool {pool.name}, {counted(pool.context_tokens, 'token')}, "
                f"got request {request.request_id} of {len(request.prompt)} and {request.max_new_tokens} new ones"
            )
    update: dict[str, Any] = {
        "models": tuple(model_info(member) for member in models),
        "ngram": _lookup(recording, pool),
        "costs": {},
        "profile": None,
        "origin": f"forced: {meta.name} on pool {pool.name}",
    }
    return replace(recording, meta=meta.model_copy(update=update))


def _lookup(recording: TrieRecording, pool: ForcedPool) -> NgramInfo | None:
    """The recorded prompt lookup under the pool's name for it; None where the pool has none."""
    asked, known = ngram_info(pool.members), recording.meta.ngram
    if asked is None:
        return None
    if known is None or known.model_copy(update={"name": asked.name}) != asked:
        raise ArgumentError(
            f"`recording` must hold the prompt lookup of pool {pool.name}, {asked.model_dump()}, got "
            f"{None if known is None else known.model_dump()}"
        )
    return asked


class ForcedWorld(TorchWorld):
    """Takes the seconds from models and the decisions from elsewhere. The clock leaves out the time for deciding.

    A session's places are those of the models; the decisions see the session with theirs. `sampling` is greedy or
    coupled, as the decisions were recorded; `further` is as of `TorchWorld`.
    """

    _decisions: World

    def __init__(self, *, pool: ForcedPool, sampling: Sampling, **further: Any) -> None:  # noqa: ANN401 - see there
        self._sampler = ForcedSampler(sampling)
        super().__init__(pool=pool, sampling=sampling, sampler=self._sampler, **further)
        self._vocab_size = pool.vocab_size
        self._theirs: dict[str, dict[int, int]] = {}  # by request, the decisions' place for each of ours

    def follow(self, decisions: World) -> None:
        """Take drafts and verdicts from a world whose pool has the same levels; call it before any request opens."""
        self._decisions = decisions

    def open(self, session: Session) -> None:
        with self.clock.paused():
            self._decisions.open(session)
            theirs = session.place
        super().open(session)
        self._theirs[session.request_id] = {session.place: theirs}

    def close(self, session: Session) -> None:
        super().close(session)
        with self.clock.paused():
            self._decisions.close(session)
            del self._theirs[session.request_id]

    def signal(self, session: Session, index: int) -> Signal:
        """See `TorchWorld`; computed from logits, then replaced by the decisions' signal."""
        super().signal(session, index)
        with self.clock.paused(), self._as_decided([session]):
            return self._decisions.signal(session, index)

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        with self.clock.paused():
            with self._as_decided([session for session, _ in items]):
                decided = [row for row in self._decisions.draft(level, items).rows if isinstance(row, Drafted)]
            if self.pool.members[level].model is not None:
                items = self._forced_drafts(items, decided)
            else:
                items = [
                    (
                        session,
                        step if step.copy is None else replace(step, copy=tuple(self._safe_ids(session, step.copy))),
                    )
                    for session, step in items
                ]
        ran = super().draft(level, items)
        with self.clock.paused():
            rows = [
                self._drafted(session, row, told) if isinstance(row, Drafted) else row
                for (session, _), row, told in zip(items, ran.rows, decided, strict=True)
            ]
        return ran._replace(rows=rows)

    def verify(self, level: int, items: Sequence[VerifyItem], chunks: Sequence[Chunk] = ()) -> VerifyResults:
        """See `TorchWorld`; raises ArgumentError for a lossy rule, which reads the logits themselves."""
        with self.clock.paused():
            for session, step in items:
                if not step.rule.lossless:
                    raise ArgumentError(f"a forced run must be of lossless steps, got {step} of {session.request_id}")
            with self._as_decided([session for session, _ in items]):
                decided = [row for row in self._decisions.verify(level, items).rows if isinstance(row, Judged)]
            self._sampler.decided = {
                session.request_id: ForcedResult(0, self._safe_ids(session, [told.own_token]), told.num_accepted)
                for (session, _), told in zip(items, decided, strict=True)
            }
        ran = super().verify(level, items, chunks)
        with self.clock.paused():
            rows = [
                self._judged(session, row, told) if isinstance(row, Judged) else row
                for (session, _), row, told in zip(items, ran.rows, decided, strict=True)
            ]
        return ran._replace(rows=rows)

    def check_ahead(self) -> None:
        """Raises ValueError: outcomes are decided for one step of a request at a time."""
        raise ValueError("no member works ahead in a forced run")

    def check_tree(self, level: int) -> None:
        """Raises ValueError: decisions are forced on runs of tokens only."""
        raise ValueError("a forced run drafts no token trees")

    def _forced_drafts(self, items: Sequence[DraftItem], decided: Sequence[Drafted]) -> list[DraftItem]:
        """The steps by which the models draft as many tokens as decided."""
        self._sampler.decided = {}
        steps = []
        for (session, step), told in zip(items, decided, strict=True):
            start = len(session.emitted) + len(session.tokens)
            self._sampler.decided[session.request_id] = ForcedResult(start, self._safe_ids(session, told.tokens))
            stop: Any = None if step.stop is None else _Unending(step.stop)
            steps.append((session, Draft(step.model, len(told.tokens), stop)))
        return steps

    def _drafted(self, session: Session, row: Drafted, told: Drafted) -> Drafted:
        places = row.places[: len(told.tokens)]
        self._theirs[session.request_id].update(zip(places, told.places, strict=True))
        return told._replace(places=places)

    def _judged(self, session: Session, row: Judged, told: Judged) -> Judged:
        self._theirs[session.request_id][row.own_place] = told.own_place
        return told._replace(own_place=row.own_place, tvd=_DecidedDistances(row.tvd, told.tvd))

    @contextmanager
    def _as_decided(self, sessions: Sequence[Session]) -> Iterator[None]:
        """Within the block, sessions have the decisions' places; places that are no longer pending are forgotten."""
        ours = [(session, session.place, session.places) for session in sessions]
        for session, place, places in ours:
            theirs = self._theirs[session.request_id]
            session.place, session.places = theirs[place], [theirs[each] for each in places]
        try:
            yield
        finally:
            for session, place, places in ours:
                pending = zip(places, session.places, strict=True)
                self._theirs[session.request_id] = {place: session.place, **dict(pending)}
                session.place, session.places = place, places

    def _safe_ids(self, session: Session, tokens: Sequence[int]) -> list[int]:
        """Ids of the models' vocabulary in place of the recorded ones, none of which ends a text."""
        safe = []
        for token in tokens:
            within = token % self._vocab_size
            while within in session.eos:
                within = (within + 1) % self._vocab_size
            safe.append(within)
        return safe


@dataclass(frozen=True, slots=True)
class _Unending:
    """A stop that computes what the original does, and never ends the draft."""

    stop: Stop

    def factor(self, signal: Signal, index: int) -> float:
        return token_factor(self.stop)(signal, index)

    def holds(self, signal: Signal, product: float) -> bool:
        self.stop.holds(signal, product)
        return False


class _DecidedDistances(LazyNumbers):
    """Distances as decided; reading them computes the real ones too."""

    def __init__(self, real: Sequence[float], decided: Sequence[float]) -> None:
        super().__init__(len(decided))
        self._real, self._decided = real, decided

    def values(self) -> Sequence[float]:
        self._real[:1]  # which computes all of them
        return self._decided


class ForcedProbedWorld(ProbedWorld, ForcedWorld):
    """Notes the operations of recorded requests; call `follow` and `take` first."""

    def take(self, requests: Mapping[str, TrieRequest], *, eos: frozenset[int]) -> None:
        """Use recorded requests in place of prompts, by the prompt's id; `eos` tokens end an answer."""
        self._requests = requests
        self._eos = eos

    def sessions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[Session]:
        """The recorded requests in place of prompts, whose texts are not used."""
        members = loaded_pool(self.pool)
        taken = [(prompt.request_id, self._requests[prompt.request_id]) for prompt in prompts]
        return [
            Session(
                pool=members,
                request_id=name,
                tag=request.tag,
                prompt=request.prompt,
                budget=min(max_new_tokens, request.max_new_tokens),
                eos=self._eos,
            )
            for name, request in taken
        ]


def forced_run(
    pool: ForcedPool,
    policy: Policy,
    sessions: Sequence[Session],
    decisions: World,
    *,
    sampling: Sampling,
    trace: str,
    name: str,
    batch: int,
    prices: Prices | None = None,
) -> RunLog:
    """Run every request to its end, `batch` >= 1 at a time; returns the run log, marked `forced`.

    `policy`, `name` and `prices` are as of `Run`. `sessions` are mutated, the tokens are in them. `decisions` say what
    is drafted and accepted, as was recorded with this `sampling` in the recording called `trace`.

    Raises:
        ArgumentError: a batch whose caches cannot fit into the machine's memory, or a lossy step.
        PolicyError: the policy broke the contract.
        ValueError: a request failed.
    """
    with ForcedWorld(pool=pool, sampling=sampling) as world:
        world.follow(decisions)
        run = Run(world, policy, name=name, prices=prices)
        check_fit(pool, sessions[:batch], world.memory)
        for _ in run.driver.run(sessions, batch):
            pass
    for request_id, error in run.driver.failed.items():
        raise ValueError(f"request {request_id} failed in a forced run: {error}")
    meta = run.meta(pool=pool.name, max_new_tokens=max(session.budget for session in sessions), batch=batch)
    return run.ledger.finish(meta | {"forced": True, "trace": trace}, reanchored={}, divergent={})

"""Every recording of the arena by its name: what it is, how it is made, and its folder.

Shipped ones are copied, published ones imported if they are on this machine, others drawn, or recorded with pools
trained for the arena. In some a drafter becomes stale in mid-run, or the mix of tags changes: each request is taken
whole from a recording without changes, so its content is still exact, and changes come after half of them. A recording
is made once, appears whole, and is reused while its recipe is the same.
"""

import fcntl
import hashlib
import inspect
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from paceline.base.errors import ArgumentError, needs_torch
from paceline.base.files import shipped, write_whole
from paceline.base.terminal import tell
from paceline.studies.grids import code_hash
from paceline.traces.contexts.meta import TrieMeta
from paceline.traces.contexts.on_disk import read_trace, write_trace
from paceline.traces.contexts.recording import TrieRecording
from paceline.traces.contexts.trie import TrieRequest
from paceline.traces.folder import META, hash_file
from paceline.traces.importers import ImportOptions, import_recording
from paceline.traces.rounds.rounds import RoundsRequest
from paceline.traces.synthetic import SyntheticSpec, make_trace

from .recipe import PoolRecipe, pool_recipe

# Meta fields that determine the columns, or that a replay assumes for all requests of a recording.
_SHARED = ("models", "ngram", "vocab_size", "eos_token_ids", "tokenizer_sha256", "sampling", "closure")


def in_turn(lists: Sequence[Sequence[TrieRequest]]) -> tuple[TrieRequest, ...]:
    """The first of each list, the second of each, and so on; a list that has ended is skipped."""
    longest = max(map(len, lists), default=0)
    return tuple(requests[place] for place in range(longest) for requests in lists if place < len(requests))


def as_one(
    recordings: Sequence[TrieRecording], requests: Sequence[TrieRequest], *, name: str, origin: str
) -> TrieRecording:
    """Requests of these recordings as one; near ties are those of all of them, and the rest is that of the first.

    Raises ArgumentError if the recordings differ in members, tokens, sampling or closure, or there is none.
    """
    if not recordings:
        raise ArgumentError(f"recording {name}: must be of at least one recording, got none")
    first = recordings[0].meta
    for other in recordings[1:]:
        _check_same(name, first, other.meta)
    near_ties = sum(each.meta.near_ties for each in recordings)
    meta = first.model_copy(update={"name": name, "origin": origin, "near_ties": near_ties})
    return replace(recordings[0], meta=meta, requests=requests)


def _check_same(name: str, first: TrieMeta, other: TrieMeta) -> None:
    for key in _SHARED:
        if getattr(first, key) != getattr(other, key):
            raise ArgumentError(
                f"recording {name}: {first.name} and {other.name} must have the same {key}, got "
                f"{getattr(first, key)!r} and {getattr(other, key)!r}"
            )


def made_once(out: Path, fingerprint: str, make: Callable[[Path], None]) -> Path:
    """The folder `out`, made unless it exists with this fingerprint of everything that determines its content.

    The fingerprint of a finished folder is beside it, in `NAME.made`. `make` writes a folder whose name has the
    fingerprint, so that a killed call is continued only with the same recipe; its partial results are beside it, under
    names that begin with that one. While another process makes it, this one waits: the maker holds a lock of the
    system, which ends with its process.
    """
    made = out.with_name(f"{out.stem}.made")
    if not is_made(out, fingerprint):
        out.parent.mkdir(parents=True, exist_ok=True)
        with _alone(out):
            if not is_made(out, fingerprint):  # by the process that this one waited for
                part = out.with_name(f"{out.stem}.making-{fingerprint[:12]}{out.suffix}")
                shutil.rmtree(part, ignore_errors=True)
                tell(f"making {out}")
                make(part)
                # In this order a kill leaves a folder without its fingerprint, never one with that of another.
                made.unlink(missing_ok=True)
                shutil.rmtree(out, ignore_errors=True)
                part.rename(out)
                write_whole(made, fingerprint)
                for left in out.parent.glob(f"{out.stem}.making-*"):
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
    return out


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Within the block no other process makes `out`; waits at the start for any that does."""
    with out.with_name(f"{out.stem}.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"waiting for {out}, which another process makes")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_made(out: Path, fingerprint: str) -> bool:
    """Whether the folder `out` exists, and was made with this fingerprint."""
    made = out.with_name(f"{out.stem}.made")
    return out.exists() and made.is_file() and made.read_bytes() == fingerprint.encode()


class RecordingUnavailableError(ValueError):
    """A recording that is unavailable here, such as one of absent logs; the arena leaves it out and names it."""


class Source(ABC):
    """One way to make a recording; a frozen dataclass of settings."""

    slow: ClassVar[bool] = False  # whether it takes minutes, so that it is made only on request
    needs: tuple[str, ...] = ()  # recordings of the catalogue that it is made from

    @abstractmethod
    def recipe(self) -> object:
        """Everything that determines the result, except the recordings it needs, as JSON.

        It includes the code that makes it if that takes seconds; trained pools are not trained again for changes of
        code that may not affect them. Raises RecordingUnavailableError if it is unavailable on this machine.
        """

    @abstractmethod
    def make(self, out: Path, *, name: str, shelf: "RecordingShelf") -> None:
        """Write the recording to `out`, which does not exist yet; partial results to continue from may be beside it.

        The shelf has the recordings it needs. Raises RecordingUnavailableError if it is unavailable on this machine.
        """


def code_of_traces() -> str:
    """A hash of the code that draws and imports recordings."""
    return code_hash([Path(inspect.getfile(make_trace)).parent])


DATA = "PACELINE_DATA"  # environment variable that names the folder of published logs
BESIDE = Path(__file__).parents[2].parent / "shared" / "data"  # beside the checkout; need not exist


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSource(Source):
    """Logs of a benchmark, through the importer of their format."""

    folder: str  # of the logs, below the folder of published logs
    pattern: str  # which of its files
    format_name: str  # of the importer
    every: int  # the first of this many logged requests is taken, >= 1, so that all tasks are kept

    def recipe(self) -> object:
        """Hashes of the files, the settings, and the code."""
        files = {path.name: hash_file(path) for path in self._files()}
        return {"files": files, "format": self.format_name, "every": self.every, "code": code_of_traces()}

    def make(self, out: Path, *, name: str, shelf: "RecordingShelf") -> None:
        """Import them; raises RecordingUnavailableError if they are missing."""
        del shelf
        import_recording(self.format_name, self._files(), out, ImportOptions(name=name), watch=self._taken)

    def _taken(self, requests: Iterable[RoundsRequest]) -> Iterable[RoundsRequest]:
        return islice(requests, 0, None, self.every)

    def _files(self) -> list[Path]:
        folder = Path(os.environ.get(DATA) or BESIDE) / self.folder
        files = sorted(folder.glob(self.pattern))
        if not files:
            rule = f"published logs {self.pattern} must lie there, or below the folder that {DATA} names"
            raise RecordingUnavailableError(f"{folder}: {rule}, got none")
        return files


def spec_bench() -> ImportedSource:
    """Vicuna-7B with EAGLE and with a draft model of 68 million parameters, on the tasks of Spec-Bench."""
    return ImportedSource(folder="specbench_yukiki", pattern="*.jsonl.gz", format_name="spec-bench", every=9)


def hsd() -> ImportedSource:
    """Llama-3.1-8B with EAGLE-3, its tree verified directly and by hierarchical speculative decoding, on GSM8K."""
    return ImportedSource(folder="hsd_eagle3_h100", pattern="h100_*.jsonl.gz", format_name="eagle-timed", every=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrangedSource(Source):
    """Requests of other recordings of the catalogue, in an order of its own."""

    slow: ClassVar[bool] = True
    needs: tuple[str, ...]
    arrange: Callable[..., TrieRecording]  # takes these recordings, and the keyword `name`; raises ArgumentError
    setting: tuple[object, ...] = ()  # further arguments of `arrange`

    def recipe(self) -> object:
        """The arrangement."""
        return {"arrange": self.arrange.__name__, "setting": self.setting}

    def make(self, out: Path, *, name: str, shelf: "RecordingShelf") -> None:
        """Put the requests in order."""
        recordings = [read_trace(shelf.recording(other)) for other in self.needs]
        write_trace(self.arrange(*recordings, *self.setting, name=name), out)


def gone_stale(fresh: TrieRecording, stale: TrieRecording, *, name: str) -> TrieRecording:
    """The first half of the requests from the fresh recording, the rest from the stale one; tags take turns.

    Raises ArgumentError for another target or other requests, and as `as_one`.
    """
    if _texts(fresh) != _texts(stale):
        raise ArgumentError(
            f"recording {name}: {fresh.meta.name} and {stale.meta.name} must have the same requests, and the same "
            "text of the target for each"
        )
    origin = f"the first half of the requests from {fresh.meta.name}, the rest from {stale.meta.name}"
    half = (len(fresh.requests) + 1) // 2
    requests = (*tags_in_turn(fresh.requests)[:half], *tags_in_turn(stale.requests)[half:])
    return as_one([fresh, stale], requests, name=name, origin=origin)


def _texts(recording: TrieRecording) -> dict[str, tuple[tuple[int, ...], list[int]]]:
    tries = ((request, request.trie) for request in recording.requests)
    return {one.request_id: (one.prompt, trie.token[trie.trunk[1:]].tolist()) for one, trie in tries}


def turned_over(recording: TrieRecording, phases: Sequence[Sequence[str]], *, name: str) -> TrieRecording:
    """The requests of each phase's tags after those of the phase before; within a phase tags take turns.

    Raises ArgumentError unless the phases name each tag of the recording once.
    """
    tags = sorted({request.tag for request in recording.requests})
    if sorted(tag for phase in phases for tag in phase) != tags:
        raise ArgumentError(f"recording {name}: phases must name each tag of {tags} once, got {phases}")
    origin = f"requests of {recording.meta.name}: {'; then '.join(', '.join(phase) for phase in phases)}"
    of_phases = [[one for one in recording.requests if one.tag in phase] for phase in phases]
    requests = tuple(request for phase in of_phases for request in tags_in_turn(phase))
    return as_one([recording], requests, name=name, origin=origin)


def tags_in_turn(requests: Sequence[TrieRequest]) -> tuple[TrieRequest, ...]:
    """One request of each tag after the other, in the order of their first ones."""
    by_tag: dict[str, list[TrieRequest]] = {}
    for request in requests:
        by_tag.setdefault(request.tag, []).append(request)
    return in_turn(list(by_tag.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedSource(Source):
    """A shipped recording, by its path."""

    title: str

    def recipe(self) -> object:
        """Its meta, which has hashes of the rest."""
        return (shipped("recordings", f"{self.title}.trace") / META).read_text(encoding="utf-8")

    def make(self, out: Path, *, name: str, shelf: "RecordingShelf") -> None:
        """Copy it, under its own name."""
        del name, shelf
        shutil.copytree(shipped("recordings", f"{self.title}.trace"), out)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSource(Source):
    """A recording of several tags, a request of each in turn."""

    spec: SyntheticSpec  # of every tag, without its acceptance: `requests` and `tokens` are those of one tag
    # by tag, S rates of equal next tokens with the target on the trunk (S members below the target)
    acceptance: Mapping[str, tuple[float, ...]]

    def recipe(self) -> object:
        """The spec, the rates by tag, in their order, and the code that draws."""
        rates = [list(each) for each in self.acceptance.items()]
        return {"spec": asdict(self.spec), "acceptance": rates, "code": code_of_traces()}

    def make(self, out: Path, *, name: str, shelf: "RecordingShelf") -> None:
        """Write it; every tag has a seed of its own."""
        del shelf
        recordings = [make_trace(spec) for spec in self.specs(name)]
        origin = f"one of each in turn: {'; '.join(each.meta.origin for each in recordings)}"
        requests = in_turn([each.requests for each in recordings])
        write_trace(as_one(recordings, requests, name=name, origin=origin), out)

    def specs(self, name: str) -> tuple[SyntheticSpec, ...]:
        """One for each tag."""
        return tuple(
            replace(self.spec, name=f"{name}-{tag}", tags=(tag,), acceptance=rates, seed=self.spec.seed + number)
            for number, (tag, rates) in enumerate(self.acceptance.items())
        )


def flat() -> SyntheticSource:
    """Members agree independently of all earlier tokens, on and off the trunk."""
    rates = {"easy": (0.85, 0.93), "usual": (0.65, 0.82), "hard": (0.4, 0.62)}
    return _drawn(rates, requests=28, seed=100, depth_decay=0.0, reach=32)


def deep() -> SyntheticSource:
    """The longer a run of agreement, and the further off the trunk, the more often the next token differs."""
    rates = {"easy": (0.7, 0.78), "usual": (0.55, 0.7), "hard": (0.35, 0.5)}
    return _drawn(rates, requests=16, seed=200, depth_decay=0.1, run_decay=0.08)


def bursty() -> SyntheticSource:
    """Easy and hard stretches: agreement at neighbouring tokens has correlation 0.6."""
    rates = {"easy": (0.8, 0.9), "usual": (0.6, 0.75), "hard": (0.35, 0.55)}
    return _drawn(rates, requests=28, seed=300, autocorrelation=0.6, reach=24)


def ladder() -> SyntheticSource:
    """Four models with low to high agreement, and with the memory of real texts."""
    rates = {"easy": (0.55, 0.75, 0.92), "usual": (0.4, 0.6, 0.85), "hard": (0.25, 0.5, 0.75)}
    return _drawn(rates, requests=16, seed=400, models=("draft", "mid", "slim", "target"), autocorrelation=0.15)


def _drawn(
    acceptance: Mapping[str, tuple[float, ...]],
    *,
    models: tuple[str, ...] = ("draft", "mid", "target"),
    depth_decay: float = 0.05,
    reach: int = 16,
    **options: Any,  # noqa: ANN401 - of a SyntheticSpec
) -> SyntheticSource:
    """Probabilities predict acceptance about as well as in `pico`.

    With the reach of the shipped recordings, a router with long drafts on easy text at steep prices leaves the record
    of the flat one in 8% of its decisions; so the longer a recording's runs of agreement, the larger its reach.
    """
    shape: dict[str, Any] = {"tokens": 128, "models": models, "reach": reach, "run": reach // 2}
    rates = (0.5,) * (len(models) - 1)  # in place of those by tag
    spec = SyntheticSpec(acceptance=rates, depth_decay=depth_decay, **shape, **options)
    return SyntheticSource(spec=spec, acceptance=acceptance)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedSource(Source):
    """A trained pool of the recipes, recorded on its held-out prompts."""

    slow: ClassVar[bool] = True
    pool: str  # name of the recipe
    file: Path | None = None  # of recipes; ours if None
    # agreement by student, for a pool in which these have learned less; see `PoolRecipe.stale`
    goals: Mapping[str, float] = field(default_factory=dict)

    def recipe(self) -> object:
        """The recipe of the pool and of its recording; raises PoolRecipeError for an invalid one."""
        return self._recipe().deciding(recorded=True)

    def make(self, out: Path, *, name: str, shelf: "RecordingShelf") -> None:
        """Train the pool, if it does not exist, and record it."""
        recipe = self._recipe()
        pool = self.trained(shelf.work)
        with needs_torch(f"recording {name}"):
            from paceline.studies.record import record

            from .pools import write_recorded_prompts
        prompts = out.with_name(f"{out.name}.prompts.jsonl")
        write_recorded_prompts(recipe, pool, prompts)
        record(
            pool,
            prompts,
            out,
            name=name,
            max_new_tokens=recipe.max_new_tokens,
            reach=recipe.reach,
            run=recipe.run,
            costs=False,
        )
        prompts.unlink()

    def trained(self, work: Path) -> Path:
        """The folder of the pool, `pools/NAME` below `work`; trained, or continued, if necessary."""
        recipe = self._recipe()
        deciding = json.dumps(recipe.deciding(recorded=False), sort_keys=True)
        fingerprint = hashlib.sha256(deciding.encode()).hexdigest()

        def train(part: Path) -> None:
            with needs_torch(f"pool {recipe.name}"):
                from .pools import train_arena_pool
            train_arena_pool(recipe, part, part.with_name(f"{part.name}.work"))

        return made_once(work / "pools" / recipe.name, fingerprint, train)

    def _recipe(self) -> PoolRecipe:
        recipe = pool_recipe(self.pool, self.file)
        return recipe.stale(self.goals) if self.goals else recipe


# Pools whose draft has learned less than in the recipe, with its agreement.
AGED = {"llama-plain": {"draft": 0.4}, "mixed": {"draft": 0.35}}
TRAINED = ("llama-plain", "neox-near", "gpt2-middle", "gpt2-weak", "qwen3-strong", "gemma-specialists", "mixed")


def catalogue() -> Mapping[str, Source]:
    """Sources by name, in the order of the page."""
    return {
        "pico": ShippedSource(title="pico"),
        "pico-coupled": ShippedSource(title="pico-coupled"),
        **{name: TrainedSource(pool=name) for name in TRAINED},
        **{f"{name}-aged": TrainedSource(pool=name, goals=goals) for name, goals in AGED.items()},
        # After half of the requests the draft's agreement is 40%, not 70%; 35%, not 63%.
        "llama-stale": ArrangedSource(needs=("llama-plain", "llama-plain-aged"), arrange=gone_stale),
        "mixed-stale": ArrangedSource(needs=("mixed", "mixed-aged"), arrange=gone_stale),
        "qwen3-turnover": ArrangedSource(
            needs=("qwen3-strong",), arrange=turned_over, setting=((("dialogue", "edit"), ("math", "translation")),)
        ),
        "synth-flat": flat(),
        "synth-deep": deep(),
        "synth-bursty": bursty(),
        "synth-ladder": ladder(),
        "specbench": spec_bench(),
        "hsd": hsd(),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingShelf:
    """Recordings below one folder."""

    work: Path  # the folder; recordings are in `recordings/NAME.trace`, beside `NAME.made`, their fingerprint
    entries: Mapping[str, Source] = field(default_factory=catalogue)  # the available recordings

    def recording(self, name: str) -> Path:
        """The finished .trace folder, made if it does not exist or its recipe has changed.

        Raises:
            ArgumentError: no recording has this name.
            RecordingUnavailableError: it is unavailable on this machine.
        """
        source = self._source(name)
        make = partial(source.make, name=name, shelf=self)
        return made_once(self._place(name), self.fingerprint(name), make)

    def is_at_hand(self, name: str) -> bool:
        """Whether it exists, or can be made in seconds; raises as `recording` does."""
        return not self._source(name).slow or is_made(self._place(name), self.fingerprint(name))

    def fingerprint(self, name: str) -> str:
        """Hash of everything that determines a recording; raises as `recording` does."""
        source = self._source(name)
        said = {"recipe": source.recipe(), "needs": [self.fingerprint(other) for other in source.needs]}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def _place(self, name: str) -> Path:
        return self.work / "recordings" / f"{name}.trace"

    def _source(self, name: str) -> Source:
        if name not in self.entries:
            raise ArgumentError(f"a recording must be one of {', '.join(self.entries)}, got {name!r}")
        return self.entries[name]

"""A decision about speculation as settings to paste: vLLM, SGLang, TensorRT-LLM, llama.cpp and transformers.

A decision is a drafter and a schedule: how many tokens K are drafted, by the number of running requests. Names and
rules of each engine were read in the files of one version, `ENGINES`. What an engine would clamp, drop or reject raises
here, with the best that it supports; what it does by itself is a note.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..base.errors import ArgumentError, check_within, known_are
from ..reports.tables import Printed
from .options import SettingsOptions, checked, takes

MODEL, EAGLE, EAGLE3, MTP, NGRAM, SUFFIX = KINDS = ("model", "eagle", "eagle3", "mtp", "ngram", "suffix")
NEED_PATH = (MODEL, EAGLE, EAGLE3)
_MATCH = re.compile(r"(?:([1-9][0-9]{0,3})\.\.)?([1-9][0-9]{0,3})")
_PAIR = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
_VERSION = re.compile(r"v?([0-9]{1,9}(?:\.[0-9]{1,9}){1,3})(?:(?:rc|a|b|\.?post|\.?dev)[0-9]+){0,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDrafter:
    """The drafter of an engine."""

    kind: str  # of KINDS
    model: str | None = None  # path or name of its weights; None: it has none, or they are the target's
    longest_match: int | None = None  # tokens that an n-gram drafter looks up at most; None: the engine's default
    shortest_match: int = 1  # and at least, beside `longest_match`

    def __str__(self) -> str:
        value = self.model if self.model is not None else self.longest_match
        if self.shortest_match > 1:
            value = f"{self.shortest_match}..{value}"
        return self.kind if value is None else f"{self.kind}={value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision to set. Letter: R ranges of running requests."""

    drafter: EngineDrafter
    schedule: tuple[tuple[int, int], ...]  # `[R]` (first number of running requests, K); begins at 1, ascends
    target: str  # path or name of the target's weights
    max_batch: int | None  # most requests that run at a time; None: the engine's default
    tree: tuple[int, int] | None  # (children of a node, tokens of the whole tree); None: a chain of K tokens

    @property
    def most(self) -> int:
        """The largest K."""
        return max(tokens for _, tokens in self.schedule)

    @property
    def first(self) -> int:
        """K of a single request."""
        return self.schedule[0][1]

    @property
    def bounds(self) -> list[tuple[int, int | None, int]]:
        """`[R]` (first number of running requests, last one, K); the last one of the last range may be None."""
        ends = [start - 1 for start, _ in self.schedule[1:]]
        return [(start, end, k) for (start, k), end in zip(self.schedule, [*ends, self.max_batch], strict=True)]

    def text(self) -> str:
        """The schedule as typed."""
        return ",".join(f"{start}:{tokens}" for start, tokens in self.schedule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pasted:
    """The text to paste."""

    command: str  # a line of a shell, or of Python
    setting: dict[str, Any] = field(default_factory=dict)  # the same by the engine's names
    files: Mapping[str, str] = field(default_factory=dict)  # text of each file that the command reads, by name
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """An engine whose settings are known."""

    title: str
    version: str  # whose files were read
    names: Mapping[str, str]  # the engine's name for each kind of drafter that it has
    fixed: Mapping[str, str]  # kinds for which K cannot follow the running requests, and why
    trees: tuple[str, ...] = ()  # kinds that draft trees
    longest_match: bool  # whether the longest match of an n-gram drafter can be set
    shortest_match: bool = False  # whether the shortest can
    mtp_weights: bool  # whether MTP layers may have weights of their own
    alone: bool = False  # whether it takes one request at a time
    write: Callable[[Decision, str | None], Pasted]  # with the engine's name of the drafter; None: no speculation


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EngineSettings(Printed):
    """Settings of one engine, with notes."""

    engine: str
    version: str  # whose names they are
    decision: Decision
    pasted: Pasted

    def lines(self) -> Sequence[str]:
        bounds = self.decision.bounds
        ranges = "by running requests: " + ", ".join(_range(*bound) for bound in bounds)
        what = ranges if len(bounds) > 1 else f"K = {self.decision.first}"
        head = f"{ENGINES[self.engine].title} {self.version}, {self.decision.drafter}; {what}"
        files = [f"\n{name}:\n{text.rstrip()}" for name, text in self.pasted.files.items()]
        notes = [f"note: {note}" for note in self.pasted.notes]
        return [head, *files, f"\n{self.pasted.command}" + "\n" * bool(notes), *notes]

    def to_json(self) -> dict[str, Any]:
        """All of it; see docs/settings.md."""
        decision = self.decision
        return {
            "engine": self.engine,
            "version": self.version,
            "drafter": str(decision.drafter),
            "schedule": [list(pair) for pair in decision.schedule],
            "max_batch": decision.max_batch,
            "tree": None if decision.tree is None else list(decision.tree),
            "command": self.pasted.command,
            "files": dict(self.pasted.files),
            "setting": self.pasted.setting,
            "notes": list(self.pasted.notes),
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each range of running requests."""
        return [
            {"engine": self.engine, "from_requests": start, "to_requests": end, "draft_tokens": tokens}
            for start, end, tokens in self.decision.bounds
        ]


def _range(start: int, end: int | None, tokens: int) -> str:
    where = f"{start} to {end}" if end is not None and end > start else f"{start}" if end is not None else f"{start} on"
    return f"K = {tokens} {'from' if end is None else 'at'} {where}"


@takes(SettingsOptions)
def settings(
    engine: str,
    drafter: str | Sequence[str],
    *,
    schedule: str | Mapping[int, int],
    **options: Any,  # noqa: ANN401 - see `SettingsOptions`
) -> EngineSettings:
    """What to paste into an engine so that it speculates as decided.

    Args:
        engine: vllm, sglang, trtllm, llamacpp or transformers.
        drafter: `model=PATH`, `eagle=PATH`, `eagle3=PATH`, `mtp`, `mtp=PATH`, `ngram`, `ngram=[SHORTEST..]LONGEST` or
            `suffix`; several, the smallest first, are a chain, which no engine runs.
        schedule: tokens that are drafted by running requests, as "1:5,8:3,32:0" or {1: 5, 8: 3, 32: 0}: 5 from one
            request on, 3 from eight on, none from 32 on.
        options: see `SettingsOptions`.

    Raises:
        ArgumentError: a bad argument, or one that the engine does not support; says what it does.
    """
    asked = checked(SettingsOptions, options)
    known = ENGINES.get(engine)
    if known is None:
        raise ArgumentError(f"`engine` {engine!r} is not known; {known_are(engine, ENGINES)}")
    decision = Decision(
        drafter=_one_drafter(drafter, engine),
        schedule=_schedule(schedule),
        target=asked.target,
        max_batch=asked.max_batch,
        tree=_tree(asked),
    )
    _check_can(decision, engine, known, per_request=asked.per_request)
    notes = _check_version(asked.engine_version, decision, engine, known)
    if asked.per_request:
        notes.append("K of each request: set it anew before its call")
    if decision.most == 0:
        notes = [f"K is 0 at every number of running requests: {known.title} serves without a drafter", *notes]
    pasted = known.write(decision, known.names[decision.drafter.kind] if decision.most else None)
    told = replace(pasted, notes=(*pasted.notes, *notes))
    return EngineSettings(engine=engine, version=known.version, decision=decision, pasted=told)


def _one_drafter(given: str | Sequence[str], engine: str) -> EngineDrafter:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise ArgumentError(f"`drafter` must be a text or several, got {given!r}")
    drafters = [engine_drafter(text) for text in texts]
    if not drafters:
        raise ArgumentError("`drafter` must name one, got none")
    if len(drafters) > 1:
        raise ArgumentError(
            f"`drafter` must be one in {engine}, which runs no chain of {len(drafters) + 1} models, got "
            f"{', '.join(texts)}; the best it can is one of them right below the target (paceline.generate runs chains)"
        )
    return drafters[0]


def engine_drafter(text: str, argument: str = "drafter") -> EngineDrafter:
    """The drafter of an engine, from its text; raises ArgumentError, which names `argument`."""
    kind, equals, value = text.partition("=")
    if kind not in KINDS:
        raise ArgumentError(f"`{argument}` {text!r} is of no known kind; {known_are(kind, KINDS)}")
    if (equals and not value) or (kind in NEED_PATH and not value) or (kind == SUFFIX and equals):
        forms = f"{kind}=PATH" if kind in NEED_PATH else "suffix" if kind == SUFFIX else f"{kind} or {kind}=..."
        raise ArgumentError(f"`{argument}` must read {forms}, got {text!r}")
    if any(ord(letter) < ord(" ") for letter in value):
        raise ArgumentError(f"`{argument}` must be of printable characters, got {text!r}")
    if kind != NGRAM:
        return EngineDrafter(kind=kind, model=value or None)
    if not value:
        return EngineDrafter(kind=kind)
    found = _MATCH.fullmatch(value)
    shortest, longest = (int(number or 1) for number in found.groups()) if found is not None else (1, 0)
    if shortest > longest:
        form = "ngram=[SHORTEST..]LONGEST, a match in tokens, 1 to 9999"
        raise ArgumentError(f"`{argument}` must read {form}, got {text!r}")
    return EngineDrafter(kind=kind, longest_match=longest, shortest_match=shortest)


def _schedule(given: str | Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    if isinstance(given, str):
        found = [_PAIR.fullmatch(part) for part in given.split(",")]
        if None in found:
            wrong = given.split(",")[found.index(None)]
            raise ArgumentError(f"`schedule` must read REQUESTS:K,..., as in 1:5,8:3,32:0, got {wrong!r} in {given!r}")
        pairs = [(int(one[1]), int(one[2])) for one in found if one is not None]
    elif not isinstance(given, Mapping):
        raise ArgumentError(f"`schedule` must be a text or K by running requests, got {given!r}")
    else:
        pairs = list(given.items())
        wrong_type = next((value for pair in pairs for value in pair if type(value) is not int), None)
        if wrong_type is not None:
            raise ArgumentError(f"`schedule` must hold whole numbers, got {wrong_type!r}")
    starts = [start for start, _ in pairs]
    if not pairs or starts[0] != 1 or starts != sorted(set(starts)):
        raise ArgumentError(f"`schedule` must begin at 1 request and ascend, got {given!r}")
    for start, tokens in pairs:
        check_within("`schedule`, requests", start, "[1, 1,000,000]")
        check_within("`schedule`, K", tokens, "[0, 1,024]")
    # An unchanged K begins no new range.
    return tuple(pair for place, pair in enumerate(pairs) if place == 0 or pair[1] != pairs[place - 1][1])


def _tree(asked: SettingsOptions) -> tuple[int, int] | None:
    top_k, tokens = asked.tree_top_k, asked.tree_tokens
    if top_k is None and tokens is None:
        return None
    if top_k is None or tokens is None:
        lacking = "tree_top_k" if top_k is None else "tree_tokens"
        raise ArgumentError(f"a tree needs `tree_top_k` and `tree_tokens`, got no `{lacking}`")
    check_within("`tree_top_k`", top_k, "[2, 1,024]")
    check_within("`tree_tokens`", tokens, f"[{top_k}, most=1,024]")
    return top_k, tokens


def _check_can(decision: Decision, engine: str, known: EngineRules, *, per_request: bool) -> None:
    """Raise ArgumentError for what the engine does not support; each line says what it does."""
    kind, schedule = decision.drafter.kind, decision.text()
    last = decision.schedule[-1][0]
    if decision.max_batch is not None:
        check_within("`max_batch`", decision.max_batch, "[1, 1,000,000]")
        if last > decision.max_batch:
            raise ArgumentError(f"`schedule` must not go beyond `max_batch` {decision.max_batch:,}, got {schedule}")
    if decision.max_batch not in (None, 1) and known.alone:
        raise ArgumentError(
            f"`max_batch` must be 1 in {engine}, where a drafter takes one request at a time, "
            f"got {decision.max_batch:,}"
        )
    if per_request and not known.alone:
        raise ArgumentError(
            f"`per_request` cannot be set in {engine}, where one K holds for all running requests; "
            "the best it can is one `schedule`"
        )
    if kind not in known.names:
        raise ArgumentError(f"`drafter` must be one of {', '.join(known.names)} in {engine}, got {decision.drafter}")
    if decision.drafter.longest_match is not None and not known.longest_match:
        raise ArgumentError(
            f"`drafter` must be ngram without a longest match in {engine}, which has none of this meaning, "
            f"got {decision.drafter}"
        )
    if decision.drafter.shortest_match > 1 and not known.shortest_match:
        raise ArgumentError(f"`drafter` must be ngram=LONGEST in {engine}, got {decision.drafter}")
    if kind == MTP and decision.drafter.model is not None and not known.mtp_weights:
        raise ArgumentError(
            f"`drafter` must be mtp alone in {engine}, whose MTP layers are the target's own, got {decision.drafter}"
        )
    if len(decision.schedule) > 1 and kind in known.fixed:
        raise ArgumentError(
            f"`schedule` must have one K for {kind} in {engine}: {known.fixed[kind]}; got {schedule}, "
            f"the best it can is one K for all, as 1:{decision.first or decision.most}, or 1:0 for none"
        )
    if decision.tree is not None:
        _check_tree(decision, engine, known)


def _check_tree(decision: Decision, engine: str, known: EngineRules) -> None:
    assert decision.tree is not None
    kind, (top_k, tokens) = decision.drafter.kind, decision.tree
    if kind not in known.trees:
        able = f"for {' and '.join(known.trees)} only" if known.trees else "of no drafter"
        raise ArgumentError(
            f"`tree_top_k` must be left out for {kind} in {engine}, which verifies trees {able}, got {top_k}; "
            f"the best it can is a chain of K = {decision.most}"
        )
    if len(decision.schedule) > 1 or decision.most == 0:
        raise ArgumentError(f"`schedule` of a tree must have one K > 0, its depth, got {decision.text()}")
    check_within("`tree_tokens`", tokens, f"[{decision.most}, most=1,024]")


def _check_version(given: str | None, decision: Decision, engine: str, known: EngineRules) -> list[str]:
    """Notes on a version that differs from ours; raises ArgumentError where its names may mean something else."""
    if given is None or given.removeprefix("v") == known.version:
        return []
    if not sets_schedules(engine, given) and len(decision.schedule) > 1:
        raise ArgumentError(
            f"`engine_version` must be {known.version} or newer for a K by running requests, whose setting was read "
            f"there, got {given}; one K for all is set in older ones, too"
        )
    return [f"names are those of {known.title} {known.version}: look whether {given} has them"]


def sets_schedules(engine: str, version: str) -> bool:
    """Whether a version of an engine is not older than the one whose K by running requests is known.

    Raises ArgumentError for no version, or an engine whose versions have no order.
    """
    known = ENGINES[engine].version
    ours, theirs = _VERSION.fullmatch(known), _VERSION.fullmatch(version)
    if version == known:
        return True
    if ours is None:
        raise ArgumentError(f"`engine_version` must be left out for {engine}: names are of {known}, got {version}")
    if theirs is None:
        raise ArgumentError(f"`engine_version` must be a version as {known}, got {version!r}")
    return _numbers(theirs[1]) >= _numbers(ours[1])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _shell(*parts: str) -> str:
    """A command of a shell, an option and its values a line."""
    lines: list[list[str]] = [[]]
    for part in parts:
        if part.startswith("--"):
            lines.append([])
        lines[-1].append(shlex.quote(part))
    return " \\\n  ".join(" ".join(line) for line in lines if line)


def _most_running(decision: Decision, option: str) -> list[str]:
    return [] if decision.max_batch is None else [option, str(decision.max_batch)]


def _vllm(decision: Decision, method: str | None) -> Pasted:
    drafter = decision.drafter
    serve = ["vllm", "serve", decision.target, *_most_running(decision, "--max-num-seqs")]
    if method is None:
        return Pasted(command=_shell(*serve))
    config: dict[str, Any] = {"method": method}
    if drafter.model is not None:
        config["model"] = drafter.model
    config["num_speculative_tokens"] = decision.most
    if drafter.longest_match is not None:
        config |= {"prompt_lookup_max": drafter.longest_match, "prompt_lookup_min": drafter.shortest_match}
    notes = []
    if len(decision.schedule) > 1:
        # The last range ends where it begins unless its end is known: vLLM continues with its K.
        config["num_speculative_tokens_per_batch_size"] = [
            [start, start if end is None else end, tokens] for start, end, tokens in decision.bounds
        ]
        notes.append(
            "num_speculative_tokens is the largest K: vLLM clamps a larger one of the schedule to it, and says nothing"
        )
        if decision.max_batch is None:
            last, tokens = decision.schedule[-1]
            notes.append(f"beyond {last} running requests vLLM keeps the last K, {tokens}")
        notes.append("vLLM's documentation: with data parallelism it drops the schedule and takes the largest K")
    if drafter.kind == MTP and decision.most > 1:
        notes.append(
            f"vLLM refuses K = {decision.most} where the model has fewer MTP layers and K is no multiple of them"
        )
    if drafter.kind == SUFFIX:
        notes.append(f"as many tokens as it finds, {decision.most} at most; needs the package arctic-inference")
    command = _shell(*serve, "--speculative-config", json.dumps(config))
    return Pasted(command=command, setting={"speculative_config": config}, notes=tuple(notes))


_ADAPTIVE = "adaptive.json"


def _sglang(decision: Decision, algorithm: str | None) -> Pasted:
    running = _most_running(decision, "--max-running-requests")
    serve = ["python", "-m", "sglang.launch_server", "--model-path", decision.target, *running]
    if algorithm is None:
        return Pasted(command=_shell(*serve))
    drafter, most = decision.drafter, decision.most
    top_k, drafted = decision.tree or (1, most)
    tokens = drafted + 1  # SGLang counts the newest token of the text
    setting: dict[str, Any] = {"speculative-algorithm": algorithm}
    if drafter.model is not None:
        setting["speculative-draft-model-path"] = drafter.model
    notes, files = [], {}
    if drafter.kind == NGRAM:
        # Without it an n-gram drafter drafts trees.
        setting |= {"speculative-ngram-max-bfs-breadth": 1, "speculative-num-draft-tokens": tokens}
    else:
        setting |= {"speculative-num-steps": most, "speculative-eagle-topk": top_k}
        setting["speculative-num-draft-tokens"] = tokens
    if len(decision.schedule) > 1:
        setting |= {"speculative-adaptive": True, "speculative-adaptive-config": _ADAPTIVE}
        steps = {str(start): {"candidate_steps": [k]} for start, k in decision.schedule}
        files[_ADAPTIVE] = json.dumps(steps) + "\n"
        ends = " ".join(str(end) for _, end, _ in decision.bounds[:-1])
        notes = [
            f"SGLang rounds the running requests up to a captured CUDA graph before it looks K up: have {ends} "
            "among --cuda-graph-bs-decode",
            "with attention DP, multi-layer EAGLE or two-batch overlap SGLang warns, drops the schedule and takes "
            f"K = {most}",
        ]
        if drafter.kind == MTP:
            notes.append("a Gemma 4 assistant becomes FROZEN_KV_MTP, for which SGLang drops the schedule as well")
    if decision.max_batch is None:
        notes.append("with a drafter SGLang runs 48 requests at a time unless --max-running-requests says otherwise")
    options = [
        part for name, value in setting.items() for part in (f"--{name}", *([] if value is True else [str(value)]))
    ]
    return Pasted(command=_shell(*serve, *options), setting=setting, files=files, notes=tuple(notes))


_YAML = "speculative.yaml"


def _tensorrt(decision: Decision, decoding_type: str | None) -> Pasted:
    if decoding_type is None:
        return _trtllm_serve(decision, {}, [])
    drafter, schedule = decision.drafter, decision.schedule
    config: dict[str, Any] = {"decoding_type": decoding_type, "max_draft_len": decision.most}
    if drafter.model is not None:
        config["speculative_model"] = drafter.model
    if drafter.longest_match is not None:
        config["max_matching_ngram_size"] = drafter.longest_match
    if decision.tree is not None:
        config |= {"use_dynamic_tree": True, "dynamic_tree_max_topK": decision.tree[0]}
        config["max_total_draft_tokens"] = decision.tree[1]
    notes = []
    if len(schedule) > 1:
        if decision.first != decision.most:
            raise ArgumentError(
                f"`schedule` must begin with its largest K in trtllm, whose max_draft_len is K of the smallest "
                f"key, got {decision.text()}; the best it can is a K that never rises above the first"
            )
        if schedule[-1][1] > 0 and decision.max_batch is None:
            raise ArgumentError(
                f"`max_batch` must be given in trtllm, where K is 0 above the last key, for {decision.text()}"
            )
        keys = {end: tokens for _, end, tokens in decision.bounds if end is not None}
        if schedule[-1][1] == 0:
            keys.pop(decision.max_batch or 0, None)  # above the last key it drafts nothing
            notes.append("above the last key of draft_len_schedule, TensorRT-LLM drafts nothing")
        config["draft_len_schedule"] = keys
    return _trtllm_serve(decision, {"speculative_config": config}, notes)


def _trtllm_serve(decision: Decision, setting: dict[str, Any], notes: Sequence[str]) -> Pasted:
    if decision.max_batch is not None:
        setting = {"max_batch_size": decision.max_batch, **setting}
    files = {_YAML: _yaml(setting)} if setting else {}
    options = ["--config", _YAML] if setting else []
    command = _shell("trtllm-serve", decision.target, *options)
    return Pasted(command=command, setting=setting, files=files, notes=tuple(notes))


def _yaml(values: Mapping[str, Any], indent: str = "") -> str:
    """Numbers, texts and mappings; those of numbers on one line. JSON's texts are YAML's, too."""
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping) and all(isinstance(key, int) for key in value):
            lines.append(f"{indent}{name}: {{{', '.join(f'{key}: {each}' for key, each in value.items())}}}\n")
        elif isinstance(value, Mapping):
            lines.append(f"{indent}{name}:\n{_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{name}: {json.dumps(value)}\n")
    return "".join(lines)


def _llamacpp(decision: Decision, kind: str | None) -> Pasted:
    drafter = decision.drafter
    serve = ["llama-server", "--model", decision.target, *_most_running(decision, "--parallel")]
    if kind is None:
        return Pasted(command=_shell(*serve))
    setting: dict[str, Any] = {} if drafter.model is None else {"spec-draft-model": drafter.model}
    setting["spec-type"] = kind
    if drafter.kind == NGRAM:
        setting["spec-ngram-simple-size-m"] = decision.most
        if drafter.longest_match is not None:
            setting["spec-ngram-simple-size-n"] = drafter.longest_match
    else:
        setting["spec-draft-n-max"] = decision.most
    options = [part for name, value in setting.items() for part in (f"--{name}", str(value))]
    notes = []
    if drafter.longest_match is not None:
        notes.append(f"llama.cpp looks up exactly {drafter.longest_match} tokens, and no shorter match")
    return Pasted(command=_shell(*serve, *options), setting=setting, notes=tuple(notes))


def _transformers(decision: Decision, keyword: str | None) -> Pasted:
    drafter, most = decision.drafter, decision.most
    if keyword is None:
        return Pasted(command="model.generate(**inputs)")
    if drafter.kind == MODEL:
        # `generate` reads these from the assistant's own configuration: as keywords they change nothing.
        config = {
            "num_assistant_tokens": most,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        }
        lines = [f"assistant = AutoModelForCausalLM.from_pretrained({drafter.model!r})"]
        lines += [f"assistant.generation_config.{name} = {value!r}" for name, value in config.items()]
        lines.append(f"model.generate(**inputs, {keyword}=assistant)")
        note = "as keywords of generate() these three change nothing: it reads the assistant's own configuration"
        return Pasted(command="\n".join(lines), setting={"assistant_generation_config": config}, notes=(note,))
    notes = []
    setting: dict[str, Any] = {keyword: True}
    if drafter.kind == NGRAM:
        setting = {keyword: most}
        if drafter.longest_match is not None:
            setting["max_matching_ngram_size"] = drafter.longest_match
    else:
        notes.append("transformers drafts with every MTP layer of the model: K is their number, whatever is asked for")
    words = ", ".join(f"{name}={value!r}" for name, value in setting.items())
    return Pasted(command=f"model.generate(**inputs, {words})", setting=setting, notes=tuple(notes))


_EAGER = "it takes one request at a time"
_ONE_K = "it has one K, whatever the load"
_ASSERTS = "its drafter stops vLLM where K is not the configured one"
_NOT_ADAPTIVE = "its adaptive mode knows EAGLE heads and MTP only, and is dropped otherwise"

ENGINES: Mapping[str, EngineRules] = {
    "vllm": EngineRules(
        title="vLLM",
        version="0.33.0",
        names={MODEL: "draft_model", EAGLE: "eagle", EAGLE3: "eagle3", MTP: "mtp", NGRAM: "ngram", SUFFIX: "suffix"},
        fixed={SUFFIX: _ASSERTS},
        longest_match=True,
        shortest_match=True,
        mtp_weights=True,
        write=_vllm,
    ),
    "sglang": EngineRules(
        title="SGLang",
        version="0.5.23",
        names={MODEL: "STANDALONE", EAGLE: "EAGLE", EAGLE3: "EAGLE3", MTP: "NEXTN", NGRAM: "NGRAM"},
        fixed={MODEL: _NOT_ADAPTIVE, NGRAM: _NOT_ADAPTIVE},
        trees=(EAGLE, EAGLE3),
        longest_match=False,
        mtp_weights=True,
        write=_sglang,
    ),
    "trtllm": EngineRules(
        title="TensorRT-LLM",
        version="1.4.0rc1",
        names={MODEL: "DraftTarget", EAGLE3: "Eagle3", MTP: "MTP", NGRAM: "NGram", SUFFIX: "SA"},
        fixed={},
        trees=(EAGLE3,),
        longest_match=True,
        mtp_weights=False,
        write=_tensorrt,
    ),
    "llamacpp": EngineRules(
        title="llama.cpp",
        version="commit 0c1e57098",
        names={MODEL: "draft-simple", EAGLE3: "draft-eagle3", MTP: "draft-mtp", NGRAM: "ngram-simple"},
        fixed=dict.fromkeys((MODEL, EAGLE3, MTP, NGRAM), _ONE_K),
        longest_match=True,
        mtp_weights=True,
        write=_llamacpp,
    ),
    "transformers": EngineRules(
        title="transformers",
        version="5.24.0",
        names={MODEL: "assistant_model", MTP: "use_mtp", NGRAM: "prompt_lookup_num_tokens"},
        fixed=dict.fromkeys((MODEL, MTP, NGRAM), _EAGER),
        longest_match=True,
        mtp_weights=False,
        alone=True,
        write=_transformers,
    ),
}

"""Common parts of servers' responses, several methods over the same questions, and vLLM's steps of each request.

vLLM's figures of speculation are in `metrics.speculative_decoding`; that object may also be alone on its line, or as
`speculative_decoding` or `spec_decode_metrics`; drafts of the change (vLLM PR 48915) kept it in the first choice as
`speculative_decoding_stats`. Null in its place means that the request ran without speculation.

It has the steps that drafted (`detailed`), or a histogram of them, without their order (`summary`, read by
`vllm-summary`). Of an answer of known length the number of *plain* steps follows: its tokens less those of the listed
steps. Every order of listed and plain steps is taken to be equally likely, which assumes the least; the order is drawn,
and the rounds marked as placed.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.errors import message_of, repeated
from ..errors import TraceFormatError
from ..rounds.rounds import TARGET_ALONE, Rounds, RoundsRequest
from .format import Format, described
from .importing import DRAFTER, Ongoing, check_drafted, rounds_at, starts_of
from .reading import ERROR_RULE, LONGEST_TOLD, Fields, read_objects, refuse_pipe

# In this order: `..._ea_hsd` is the second of its two words.
_METHODS = (
    *("hsd", "eagle3", "eagle2", "eagle", "ea", "medusa", "hydra", "sps", "pld", "lookahead", "rest", "recycling"),
    *("kangaroo", "samd", "space", "swift"),
)
TOKEN_METHODS = frozenset({"sps"})  # a draft model that reads tokens only
# Their steps begin with the token that the step before has sampled (for the first one the prefill); in the code of
# Spec-Bench the others verify a draft in the forward that reads the prompt.
PREFILLED_METHODS = frozenset({"hsd", "eagle3", "eagle2", "eagle", "medusa", "hydra", "rest", "samd"})
TREE_METHODS = PREFILLED_METHODS | {"recycling"}  # in the code of Spec-Bench, and EAGLE's own
UNCOUNTED = "answers end with a step of which the file counts only the token before it; the one it sampled is counted"
_UNLIKE = "requests have answers whose length depends on the method"
_OTHER_PROMPT = "requests have prompts whose length depends on the method; that of the first one counts"
_PARTIAL = "requests were not answered by every method"


def method_name(model_ids: Iterable[str], path: Path) -> str:
    """The first known method among the words of the model id, then of the file's name; else the model id itself."""
    ids = [model_id for model_id in model_ids if model_id]
    for text in (*ids[:1], path.name):
        words = re.split(r"[^a-z0-9]+", text.lower())
        for method in _METHODS:
            if method in words:
                return "eagle" if method == "ea" else method
    stem = path.name.split(".jsonl")[0]
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", ids[0] if ids else stem).lstrip("-._+") or DRAFTER


def check_names(names: Iterable[tuple[str, Path]]) -> None:
    """Raise TraceFormatError unless every file has a method of its own."""
    seen: dict[str, Path] = {}
    for name, path in names:
        if name in seen:
            told = f"{seen[name]} and {path}" if name else f"{seen[name]} and {path}, both the target alone,"
            raise TraceFormatError(
                path, "method", f"must differ from file to file (`names` FILE=NAME), {told} share one", name
            )
        seen[name] = path


def merged(ongoing: Ongoing, answers: Iterable[RoundsRequest]) -> Iterator[RoundsRequest]:
    """Requests in order of first appearance, merged from the answers of each method."""
    parts: dict[str, list[RoundsRequest]] = {}
    for answer in answers:
        parts.setdefault(answer.request_id, []).append(answer)
    methods = {method for told in parts.values() for answer in told for method in answer.num_tokens}
    for told in parts.values():
        request = _request_of_methods(told)
        ongoing.findings.note(_UNLIKE, len(set(request.num_tokens.values())) > 1)
        ongoing.findings.note(_PARTIAL, len(request.num_tokens) < len(methods))
        ongoing.findings.note(_OTHER_PROMPT, len({answer.prompt_tokens for answer in told if answer.prompt_tokens}) > 1)
        yield request


def _request_of_methods(told: list[RoundsRequest]) -> RoundsRequest:
    by_method: dict[str, Any] = {
        field: {method: value for answer in told for method, value in getattr(answer, field).items()}
        for field in ("num_tokens", "rounds", "wall_s", "prefill_s")
    }
    tag = next((answer.tag for answer in told if answer.tag), "")
    session = next((answer.session for answer in told if answer.session), "")
    prompt_tokens = next((answer.prompt_tokens for answer in told if answer.prompt_tokens), 0)
    return RoundsRequest(
        request_id=told[0].request_id, tag=tag, session=session, prompt_tokens=prompt_tokens, **by_method
    )


# Keys that count the speculation of a whole request, over all its answers.
_OF_THE_REQUEST = (
    ("metrics", "speculative_decoding"),
    ("speculative_decoding",),
    ("spec_decode_metrics",),
    ("timings",),
    ("meta_info",),
)
_MOST_MODEL = 100  # characters
_OTHER_MODEL = "answers name another model than the first, {!r}: acceptance is that of all together"
_SEVERAL = "answers stand beside others in one response, whose usage counts their tokens together"
# Keys of the question of a line: in the response, or next to it.
_PROMPTS = ("messages", "prompt", "prompt_token_ids", "input_ids", "input")
_UNMATCHED = "answers stand without their prompt, so that no other file's are of the same question"
_BY_PROMPT = "files that answer the same prompts are a drafter each"
_BY_ID = "files whose responses have the same ids, and no prompts, are a drafter each"
_ID = "id"  # kind of a question that is known by the id of its answer alone
_TOGETHER = "answers stand beside others in one response, whose seconds are of them all: theirs are not known"
_TIMES_MS = ("time_to_first_token_ms", "generation_time_ms")  # from its schedule to the first token, then to the last
LOADED = "seconds of answers are the server's, beside whatever else it ran then"
# Keys of the kind of request.
_TAGS = ("tag", "class", "category")
SHARED = "choices of the response"  # in a choice as a response of its own: the number of choices
EMPTY = "answers without a token were left out"


class Responses:
    """The responses of one file, of the import `ongoing`."""

    def __init__(self, path: Path, ongoing: Ongoing, method: str = DRAFTER) -> None:
        self.ongoing = ongoing
        self._path, self._method = path, method
        self._numbers = count(1)

    def name_of(self, line: Fields, *within: Fields) -> str:
        """The name of the next response, by its own id, or that within some of its objects, or by file and number."""
        number = next(self._numbers)
        for fields in (line, *within):
            for key in ("id", "request_id"):
                if key in fields:
                    request_id = fields.text(key)
                    self.ongoing.request(fields, key, request_id)
                    return request_id
        request_id = f"{stem(self._path)}/{number}"
        self.ongoing.request(line, "id", request_id)
        return request_id

    def drafter(self) -> str:
        """The name of the drafter that wrote them."""
        return self.ongoing.drafters.of_server(self._path, self._method)

    def each(self, parse: "Parse") -> Iterator[tuple[RoundsRequest, "Question | None"]]:
        """The requests of all responses that have a token, one for each of their choices, and what they answer."""

        def requests(line: Fields) -> Iterator[tuple[RoundsRequest, Question | None]]:
            if line.values.get("error"):
                raise line.error("error", ERROR_RULE, message_of(line.values["error"], LONGEST_TOLD))
            answers, tag = answers_of(line), next((line.text(key) for key in _TAGS if key in line), "")
            self.ongoing.findings.note(_SEVERAL, len(answers) if len(answers) > 1 else 0)
            if isinstance(model := line.values.get("model"), str):
                first = self.ongoing.findings.model = self.ongoing.findings.model or model
                self.ongoing.findings.note(
                    _OTHER_MODEL.format(first[:_MOST_MODEL]), len(answers) if model != first else 0
                )
            for answer, question in zip(answers, _questions(line, len(answers)), strict=True):
                for request in self.answered(parse(self, answer)):
                    yield replace(self._timed(answer, request), tag=tag or request.tag), question

        return self.ongoing.each(self._path, requests)

    def _timed(self, line: Fields, request: RoundsRequest) -> RoundsRequest:
        """The request with the seconds of vLLM's `--enable-per-request-metrics`, where the response has them."""
        metrics = within(line, "metrics")
        if metrics is None or any(key not in metrics for key in _TIMES_MS):
            return request
        if SHARED in line.values:
            self.ongoing.findings.note(_TOGETHER)
            return request
        first_s, rest_s = (metrics.rate(key, most=1e12) / 1e3 for key in _TIMES_MS)
        if not first_s:
            raise metrics.error(_TIMES_MS[0], "must be more than 0", 0)
        self.ongoing.findings.remark(LOADED)
        return replace(
            request,
            wall_s=dict.fromkeys(request.num_tokens, first_s + rest_s),
            prefill_s=dict.fromkeys(request.num_tokens, first_s),
        )

    def answered(self, request: RoundsRequest | None) -> list[RoundsRequest]:
        """The request of a response; none, which is noted, if its answer has no token."""
        self.ongoing.findings.note(EMPTY, request is None)
        return [] if request is None else [request]


# The request of a response of one answer; None if the answer has no token.
Parse = Callable[[Responses, Fields], RoundsRequest | None]


def by_response(parse: Parse) -> Callable[[Sequence[Path], Ongoing], Iterator[RoundsRequest]]:
    """A reader of files with one response per object; each of its choices is a request."""

    def read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
        return read_responses(files, ongoing, lambda _: parse)

    return read


def read_responses(
    files: Sequence[Path], ongoing: Ongoing, parse_of: Callable[[Path], Parse]
) -> Iterator[RoundsRequest]:
    """The requests of files of responses; those of several drafters are joined by their questions."""
    methods, by_id = _methods(files, ongoing) if len(files) > 1 else ({}, False)
    if methods:
        ongoing.findings.remark(_BY_ID if by_id else _BY_PROMPT)
        yield from merged(ongoing, _by_question(files, ongoing, parse_of, methods, by_id=by_id))
    for path in files if not methods else ():
        yield from (request for request, _ in Responses(path, ongoing).each(parse_of(path)))


# The kind and the hash of a prompt, and the number of the answer.
Question = tuple[str, bytes, int]


def _questions(line: Fields, answers: int) -> list[Question | None]:
    for place in (line, within(line, "request"), first_choice(line)):
        for key in _PROMPTS:
            prompt = None if place is None else place.values.get(key)
            if prompt and isinstance(prompt, str | list):
                if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
                    prompt = prompt[0]
                kind = key if isinstance(prompt, str) or key == "messages" else "prompt_token_ids"
                digest = sha256(json.dumps(prompt, sort_keys=True).encode()).digest()
                return [(kind, digest, number) for number in range(answers)]
    return [None] * answers


def _methods(files: Sequence[Path], ongoing: Ongoing) -> tuple[Mapping[Path, str], bool]:
    """By file the drafter, where files answer the same questions; empty where all files are of one drafter.

    They are of several if options give them different names, or if they answer the same prompt; where no file has a
    prompt, if their answers have the same id, which is the second of the results.
    """
    names = {path: ongoing.options.names[key] for path in files if (key := ongoing.options.key_of_file(path))}
    asked = {path: _asked(path, _questions) for path in files}
    if by_id := not any(asked.values()):
        known = {path: _asked(path, _ids) for path in files}
        told = (one for places in known.values() for one in places.items())
        if all(kind == _ID and len(lines) == 1 for (kind, _, _), lines in told):
            asked = known
    shared = repeated(question for places in asked.values() for question in places)
    if len(set(names.values())) < 2 and (not shared or len(names) == len(files)):
        return {}, False
    for path, places in asked.items():
        for question, lines in places.items():
            if len(lines) > 1:
                rule = "must be asked once in a file, to be found again in the other files"
                raise TraceFormatError(path, question[0], rule, f"the same on lines {lines[0]} and {lines[1]}")
    kinds = {question[0]: path for path, places in asked.items() for question in places}
    if len(kinds) > 1:
        (one, path), (other, _), *_ = kinds.items()
        raise TraceFormatError(path, one, "must be in all files, to tell which answer the same", other)
    called = {path: re.sub(r"[^A-Za-z0-9._+-]+", "-", stem(path)).lstrip("-._+") or DRAFTER for path in files}
    twice = repeated(names.get(path, called[path]) for path in files)
    if twice:
        rule = "must differ from file to file where they answer the same prompts (`names` FILE=NAME)"
        raise TraceFormatError(files[-1], "drafter", rule, twice[0])
    return called, by_id and bool(shared)


def _ids(line: Fields, answers: int) -> list[Question | None]:
    """The id of a response as a question; of another kind where it has none."""
    places = (line, within(line, "meta_info"), within(first_choice(line), "meta_info"))
    known = (place.values[key] for place in places if place is not None for key in ("id", "request_id") if key in place)
    found = next(known, None)
    digest = sha256(str(found).encode(errors="replace")).digest()
    return [("" if found is None else _ID, digest, number) for number in range(answers)]


def _asked(
    path: Path, questions_of: Callable[[Fields, int], list[Question | None]]
) -> Mapping[Question, Sequence[str]]:
    """The questions of a file that will be read again, with the lines that answer them, two of each at most."""
    refuse_pipe(path)
    found: dict[Question, list[str]] = {}
    for line in read_objects(path, lambda _: None):
        choices = line.values.get("choices")
        for question in questions_of(line, max(len(choices), 1) if isinstance(choices, list) else 1):
            if question is not None:
                lines = found.setdefault(question, [])
                lines.extend([line.place.removeprefix(f"{path}: line ")] if len(lines) < 2 else [])
    return found


def _by_question(
    files: Sequence[Path],
    ongoing: Ongoing,
    parse_of: Callable[[Path], Parse],
    methods: Mapping[Path, str],
    *,
    by_id: bool,
) -> Iterator[RoundsRequest]:
    """The answers of all files, those to one question under its name in the first file."""
    names: dict[Question, str] = {}
    taken: set[str] = set()
    prompts: dict[str, int] = {}
    for path in files:
        ongoing.begin_file()
        for request, question in Responses(path, ongoing, methods[path]).each(parse_of(path)):
            if by_id:
                told = prompts.setdefault(request.request_id, request.prompt_tokens)
                if told != request.prompt_tokens:
                    rule = (
                        f"must be {told}, as of the same id in a file before, {request.request_id}; answers to other "
                        "prompts need ids of their own, or an import of their own"
                    )
                    raise TraceFormatError(path, "prompt_tokens", rule, request.prompt_tokens)
                yield request
                continue
            ongoing.findings.note(_UNMATCHED, question is None)
            known = None if question is None else names.get(question)
            name = known or request.request_id
            if known is None:
                name = f"{stem(path)}/{name}" if name in taken else name
                taken.add(name)
                if question is not None:
                    names[question] = name
            yield replace(request, request_id=name)


def answers_of(line: Fields) -> list[Fields]:
    """A response of n > 1 choices as n responses of one each, called `ID/CHOICE`; any other one as it is.

    Their `usage` has the prompt's tokens alone: those of the answers are counted together. Counts of the whole request
    are an error, as they cannot be divided among its answers; vLLM counts a request only if it has one answer.
    """
    choices = line.values.get("choices")
    if not isinstance(choices, list):
        return [line]
    _check_usage(line, choices)
    if len(choices) < 2:
        return [line]
    taken: dict[int, str] = {}
    for choice in line.each("choices"):  # of the same number one would be taken for another, or counted twice
        number = choice.values.get("index")
        if type(number) is int and taken.setdefault(number, choice.prefix) != choice.prefix:
            raise choice.error(
                "index", f"must differ from that of the other choices: {taken[number]}index is the same", number
            )
    for *around, key in _OF_THE_REQUEST:
        place = within(line, *around) if around else line
        if place is not None and key in place:
            rule = "must stand beside one choice (n = 1): it is of the request as a whole, not of each of its answers"
            raise place.error(key, rule, f"{len(choices)} choices")
    usage = {key: value for key, value in usage_of(line).values.items() if key != "completion_tokens"}
    own = {key: line.text(key) for key in ("id", "request_id") if key in line}
    return [
        Fields(
            line.place,
            {
                **line.values,
                **{key: f"{name}/{number}" for key, name in own.items()},
                "choices": [choice.values],
                SHARED: len(choices),
                "usage": usage,
            },
            line.prefix,
        )
        for number, choice in enumerate(line.each("choices"))
    ]


def _check_usage(line: Fields, choices: list[Any]) -> None:
    """Raise for a `usage` that is not the sum of choices that all count their tokens."""
    usage = usage_of(line)
    told = usage.known_count("completion_tokens", least=0)
    metas = [one.get("meta_info") if isinstance(one, dict) else None for one in choices]
    counts = [meta.get("completion_tokens") if isinstance(meta, dict) else None for meta in metas]
    known = [count for count in counts if type(count) is int]
    if told is not None and known and len(known) == len(choices) and sum(known) != told:
        of = "choice" if len(known) == 1 else f"{len(known)} choices"
        raise usage.error(
            "completion_tokens", f"must be {sum(known)}, by meta_info.completion_tokens of its {of}", told
        )


def stem(path: Path) -> str:
    """The prefix for names of requests without one."""
    return path.name.split(".")[0]


def usage_of(line: Fields) -> Fields:
    """The object that counts a response's tokens, empty if there is none."""
    return line.nested("usage") if "usage" in line else Fields(line.place, {}, f"{line.prefix}usage.")


def completion_tokens(line: Fields) -> int | None:
    """Tokens of a response's answer, None if it does not say."""
    return usage_of(line).known_count("completion_tokens", least=0)


def first_choice(line: Fields) -> Fields | None:
    """The first choice of a response, None if there is none; of the only one, with its own number."""
    choices = line.values.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        index = choices[0].get("index", 0)
        return Fields(line.place, choices[0], f"{line.prefix}choices[{index if type(index) is int else 0}].")
    return None


def within(found: Fields | None, *path: str) -> Fields | None:
    """The object that these keys lead to, None if there is none."""
    for key in path:
        if found is None or not isinstance(found.values.get(key), dict):
            return None
        found = found.nested(key)
    return found


ACCEPTED, HISTOGRAM = "per_step_accepted", "acceptance_histogram"
_PLACES = (("metrics", "speculative_decoding"), ("speculative_decoding",), ("spec_decode_metrics",))


def metrics_of(found: Fields) -> Fields | None:
    """The object that holds the steps or the histogram, in any of its places; None of a server that never drafts."""
    places = [found, *(within(found, *path) for path in _PLACES)]
    places.append(within(first_choice(found), "speculative_decoding_stats"))
    metrics = next((one for one in places if one is not None and (ACCEPTED in one or HISTOGRAM in one)), None)
    return None if metrics is None or never_drafts(metrics) else metrics


def never_drafts(metrics: Fields) -> bool:
    """Whether metrics are of a server without speculation, which counts drafts of no token if it is asked to count."""
    return metrics.values.get("num_spec_tokens") == 0 and lists_steps(metrics)


def lists_steps(metrics: Fields) -> bool:
    """Whether every step that drafted is listed, as where there was none: vLLM leaves out lists that are empty."""
    counts = metrics.values.get(HISTOGRAM)
    return ACCEPTED in metrics or (isinstance(counts, list) and not any(counts))


def is_plain(found: Fields) -> bool:
    """Whether a response states that it ran without speculation."""
    if metrics_of(found) is not None:
        return False
    for *around, last in _PLACES:
        place = within(found, *around) if around else found
        if place is not None and last in place.values:
            metrics = within(place, last)
            if place.values[last] is None or (metrics is not None and never_drafts(metrics)):
                return True
    return False


def drafted_nothing(found: Fields) -> bool:
    """Whether a response has no step that drafted, which does not tell whether others list theirs."""
    metrics = metrics_of(found)
    return is_plain(found) if metrics is None else ACCEPTED not in metrics and lists_steps(metrics)


def check_steps(metrics: Fields, accepted: NDArray[np.int64], drafted: NDArray[np.int64]) -> None:
    """Raise for a histogram or counts that contradict `[R]` tokens accepted and drafted in the listed steps.

    Steps that drafted nothing may be counted or not.
    """
    if HISTOGRAM in metrics:
        told, counted = metrics.counts(HISTOGRAM, least=0), np.bincount(accepted)
        length = max(len(told), len(counted))
        more = np.pad(counted, (0, length - len(counted))) - np.pad(told, (0, length - len(told)))
        wrong = [place for place in np.flatnonzero(more).tolist() if place or more[0] != np.sum(drafted == 0)]
        if wrong:
            many = int(counted[wrong[0]]) if wrong[0] < len(counted) else 0
            rule = f"must be {many}, as many steps of {ACCEPTED} kept {wrong[0]} tokens"
            raise metrics.error(f"{HISTOGRAM}[{wrong[0]}]", rule, many - int(more[wrong[0]]))
    check_totals(metrics, {len(accepted), int(np.sum(drafted > 0))}, int(accepted.sum()), int(drafted.sum()), ACCEPTED)


def check_totals(metrics: Fields, steps: set[int], accepted: int, drafted: int | None, source: str) -> None:
    """Raise for totals, a mean or a rate that contradict the sums of steps, all counted from `source`.

    `steps` holds the possible numbers of steps, by all readings; `drafted` is None if only their total gives it.
    """
    counts = tuple(sorted(steps, reverse=True))
    metrics.check_equal("num_spec_steps", counts, f"as many steps as {source} has")
    metrics.check_equal("num_accepted_draft_tokens", (accepted,), f"the tokens that {source} adds up to")
    if drafted is None:
        drafted = metrics.known_count("num_draft_tokens", least=0)
    else:
        metrics.check_equal("num_draft_tokens", (drafted,), "the sum of per_step_drafted")
    if drafted:
        why = f"{accepted} accepted of {drafted} drafted tokens"
        metrics.check_mean("draft_acceptance_rate", accepted / drafted, why)
    if len(counts) == 1 and counts[0]:
        why = f"1 and {accepted} accepted tokens in {counts[0]} steps"
        metrics.check_mean("mean_acceptance_length", 1 + accepted / counts[0], why)


def alone(line: Fields, request_id: str) -> RoundsRequest | None:
    """The request of a response without speculation; None if its answer has no token."""
    if not is_plain(line):
        rule = f"must be there, under metrics.speculative_decoding or alone, with {ACCEPTED} or {HISTOGRAM}"
        raise line.error("speculative_decoding", f"{rule}; null if the request ran without", "nothing")
    usage = usage_of(line)
    if SHARED in line.values and "completion_tokens" not in usage:
        rule = "must be of one answer (n = 1): vLLM says nothing of the drafts of several, nor how long each of them is"
        raise line.error("choices", rule, f"{line.values[SHARED]} choices and speculative_decoding: null")
    return alone_of(usage, request_id)


def alone_of(usage: Fields, request_id: str) -> RoundsRequest | None:
    """The request without speculation whose tokens `usage` counts; raises TraceFormatError if it counts no answer."""
    tokens = usage.known_count("completion_tokens", least=0)
    if tokens is None:
        raise usage.error("completion_tokens", "must be there, the request ran without speculation", "nothing")
    if not tokens:
        return None
    prompt_tokens = usage.count("prompt_tokens", least=0, default=0)
    return RoundsRequest(
        request_id=request_id, prompt_tokens=prompt_tokens, num_tokens={TARGET_ALONE: tokens}, rounds={}
    )


ADD_FIRST = "; add the prefill's token where the count leaves it out"
MOST_PLAIN = 2**24  # of one answer: more is implausible, and would fill the memory
_DRAFTED = "per_step_drafted"
_UNLISTED = "steps drafted nothing and are not listed; they were placed by a draw"
_ALONE = "steps drafted nothing and are not listed, in answers that list no step"


def _sees(found: Fields) -> bool:
    metrics = metrics_of(found)
    return is_plain(found) if metrics is None else lists_steps(metrics)


def _parse(file: Responses, line: Fields) -> RoundsRequest | None:
    request_id, metrics = file.name_of(line), metrics_of(line)
    if metrics is None:
        return alone(line, request_id)
    if not lists_steps(metrics):
        rule = "must be there (`detailed`): a histogram does not say in which order steps came (take vllm-summary)"
        raise metrics.error(ACCEPTED, rule, "nothing")
    return request_of_steps(file, metrics, usage_of(line), request_id)


def request_of_steps(file: Responses, metrics: Fields, usage: Fields, request_id: str) -> RoundsRequest | None:
    """The request of a response that lists its steps; None if its answer has no token."""
    if usage.known_count("completion_tokens", least=0) == 0:
        return None
    if ACCEPTED not in metrics:
        metrics = Fields(metrics.place, {**metrics.values, ACCEPTED: [], _DRAFTED: []}, metrics.prefix)
    name, after_first = file.drafter(), _tokens_after_first(usage, metrics)
    return RoundsRequest(
        request_id=request_id,
        prompt_tokens=usage.count("prompt_tokens", least=0, default=0),
        num_tokens={name: after_first + 1},
        rounds={name: _rounds(file, metrics, request_id, name, after_first)},
    )


def _tokens_after_first(usage: Fields, metrics: Fields) -> int:
    """Tokens of the answer without the prefill's; raises TraceFormatError for a number that does not fit the steps."""
    accepted = metrics.counts(ACCEPTED, least=0)
    explained = int(accepted.sum()) + len(accepted)
    told = usage.count("completion_tokens", least=0) - 1 if "completion_tokens" in usage else explained
    if explained and told <= explained - int(accepted[-1]) - 1:
        rule = f"must be at least what its steps emit, {explained + 1} with the prefill's, but for the last step"
        rule += ADD_FIRST if told + 1 == explained else ""
        raise usage.error("completion_tokens", rule, told + 1)
    if told - explained > MOST_PLAIN:
        rule = f"must be at most {MOST_PLAIN} more than what its steps emit, {explained + 1} with the prefill's"
        raise usage.error("completion_tokens", rule, told + 1)
    return max(told, 0)


def _rounds(file: Responses, metrics: Fields, request_id: str, name: str, after_first: int) -> Rounds:
    """The listed steps, and the plain ones that follow from the tokens of the answer."""
    accepted, drafted = metrics.counts(ACCEPTED, least=0), metrics.counts(_DRAFTED, least=0)
    check_drafted(metrics, accepted, drafted)
    most, window = int(drafted.max(initial=0)), metrics.known_count("num_spec_tokens", least=1)
    if window is not None and window < most:
        raise metrics.error("num_spec_tokens", f"must be at least the {most} that a step of {_DRAFTED} has", window)
    check_steps(metrics, accepted, drafted)
    num_plain = max(after_first - int(accepted.sum()) - len(accepted), 0)
    file.ongoing.findings.note(_UNLISTED if len(accepted) else _ALONE, num_plain)
    placed = None
    if num_plain and len(accepted):
        placed = place_plain_steps(len(accepted), num_plain, file.ongoing.generator(request_id))
    plain = np.arange(len(accepted) + num_plain) >= len(accepted) if placed is None else placed
    accepted, drafted = with_plain_steps(accepted, plain), with_plain_steps(drafted, plain)
    start, length = starts_of(accepted + 1) + 1, after_first + 1
    return rounds_at(file.ongoing, name, metrics, start, accepted, length=length, drafted=drafted, placed=placed)


def place_plain_steps(num_listed: int, num_plain: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """`[R + P]` which of R listed and P plain steps are plain, all orders equally likely; P is at most 2^24."""
    size = num_listed + num_plain
    plain = np.zeros(size, np.bool_)
    plain[generator.permutation(size)[:num_plain]] = True
    return plain


def with_plain_steps(counts: NDArray[np.int64], plain: NDArray[np.bool_]) -> NDArray[np.int64]:
    """`[R + P]` counts of all steps, 0 in plain ones, from `[R]` those of the listed ones."""
    spread = np.zeros(len(plain), np.int64)
    spread[~plain] = counts
    return spread


VLLM_DETAILED = Format(**described("vllm-detailed"), read=by_response(_parse), sees=_sees)

"""What the metrics pages of engines say of speculative decoding, by the names that each engine gives its counters.

vLLM and llama.cpp count drafts, drafted and accepted tokens, and accepted tokens by position of the draft. TensorRT-LLM
counts drafted and accepted tokens, newer versions both by position. SGLang counts verifications and tokens of answers,
and shows what the last interval accepted as a gauge. Names: `vllm/v1/spec_decode/metrics.py` (vLLM 0.33),
`observability/metrics_collector.py` (SGLang 0.5.23), `tensorrt_llm/metrics/collector.py` (1.4.0rc1), llama.cpp's
`tools/server/server-task.cpp`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...errors import TraceFormatError
from ..options import MOST_WINDOW
from .metrics_page import Page, Sample, Scrapes, read_page

_REASON = "finished_reason"
_NO_ANSWERS = frozenset({"abort", "error", "cancelled", "timeout"})

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Names of an engine's metrics, without `_total`; "" for one that it does not have.

    Attributes:
        name: as people write it.
        prefix: what the names of all its metrics begin with.
        near: what the names of its metrics of speculative decoding begin with.
        drafts: rounds that drafted.
        drafted, accepted: tokens.
        accepted_by_place, drafted_by_place: the same by position of the draft, in the label `place`.
        verified: steps of the target that verified a draft.
        length: gauge of tokens a step, the target's own among them.
        depths: gauges of the tokens drafted in a step, each with how many more it counts.
        requests, tokens, prompts: answers, and tokens of them and of their prompts.
        summed: labels whose series are parts of one server's count.
    """

    name: str
    prefix: str
    near: str
    drafts: str = ""
    drafted: str = ""
    accepted: str = ""
    accepted_by_place: str = ""
    drafted_by_place: str = ""
    place: str = "position"
    verified: str = ""
    length: str = ""
    depths: tuple[tuple[str, int], ...] = ()
    requests: str = ""
    tokens: str = ""
    prompts: str = ""
    summed: frozenset[str] = frozenset({"engine", "model_name"})

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        named = (self.drafts, self.drafted, self.accepted, self.accepted_by_place, self.drafted_by_place)
        others = (self.verified, self.length, self.requests, self.tokens, self.prompts)
        return frozenset({*named, *others, *(name for name, _ in self.depths)} - {""})

    @property
    def of_speculation(self) -> frozenset[str]:
        """Those of speculative decoding."""
        return self.names - {self.requests, self.tokens, self.prompts}


def _like_vllm(name: str, prefix: str) -> Engine:
    return Engine(
        name=name,
        prefix=prefix,
        near=f"{prefix}spec_decode_",
        drafts=f"{prefix}spec_decode_num_drafts",
        drafted=f"{prefix}spec_decode_num_draft_tokens",
        accepted=f"{prefix}spec_decode_num_accepted_tokens",
        accepted_by_place=f"{prefix}spec_decode_num_accepted_tokens_per_pos",
    )


VLLM = replace(
    _like_vllm("vLLM", "vllm:"),
    requests="vllm:request_success",
    tokens="vllm:generation_tokens",
    prompts="vllm:prompt_tokens",
)
LLAMACPP = _like_vllm("llama.cpp", "llamacpp:")
TRTLLM = Engine(
    name="TensorRT-LLM",
    prefix="trtllm_",
    near="trtllm_spec_decode_",
    drafted="trtllm_spec_decode_num_draft_tokens",
    accepted="trtllm_spec_decode_num_accepted_tokens",
    accepted_by_place="trtllm_spec_decode_accepted_tokens",
    drafted_by_place="trtllm_spec_decode_drafted_tokens",
    place="token_position",
    length="trtllm_spec_decode_acceptance_length",
    requests="trtllm_request_success",
    tokens="trtllm_generation_tokens",
    prompts="trtllm_prompt_tokens",
    summed=frozenset({"engine_type", "model_name"}),
)
SGLANG = Engine(
    name="SGLang",
    prefix="sglang:",
    near="sglang:spec_",
    verified="sglang:spec_verify_calls",
    length="sglang:spec_accept_length",
    depths=(("sglang:spec_num_steps", 0), ("sglang:spec_num_draft_tokens", 1)),
    requests="sglang:num_requests",
    tokens="sglang:generation_tokens",
    prompts="sglang:prompt_tokens",
    summed=frozenset({"engine", "model_name", "is_streaming"}),
)
ENGINES = (VLLM, LLAMACPP, TRTLLM, SGLANG)


def page_of(lines: Iterable[tuple[str, str]], engines: Sequence[Engine] = ENGINES) -> Page:
    """What a page says by the names of some engines; raises TraceFormatError as `read_page`."""
    names = frozenset().union(*(engine.names for engine in engines))
    return read_page(lines, names, [engine.near for engine in engines])


def engine_of(scrapes: Scrapes) -> Engine | None:
    """The engine whose speculative decoding the last page speaks of, None if it speaks of none."""
    return next((engine for engine in ENGINES if any(name in scrapes for name in engine.of_speculation)), None)


class Speculation:
    """What the pages of a server say of its speculative decoding. Final.

    Args:
        scrapes: of the server.
        engine: whose names are read.
    """

    def __init__(self, scrapes: Scrapes, engine: Engine) -> None:
        self._scrapes, self._engine = scrapes, engine

    def total(self, name: str) -> float | None:
        """What a counter counted, None where the page does not have it; raises as `Scrapes.counted`."""
        found = self._scrapes.counted(name, summed=self._engine.summed) if name else {}
        return sum(found.values()) if found else None

    @property
    def drafts(self) -> float | None:
        """Rounds that drafted: as counted, or as many as drafted a first token."""
        by_place = self.by_place(self._engine.drafted_by_place)
        return float(by_place[0]) if len(by_place) else self.total(self._engine.drafts)

    @property
    def drafted(self) -> float | None:
        """Drafted tokens."""
        by_place = self.by_place(self._engine.drafted_by_place)
        return float(by_place.sum()) if len(by_place) else self.total(self._engine.drafted)

    @property
    def accepted(self) -> float | None:
        """Of those, how many stayed."""
        if not len(self.by_place(self._engine.drafted_by_place)):
            return self.total(self._engine.accepted)
        return float(self.by_place(self._engine.accepted_by_place).sum())

    def by_place(self, name: str) -> Floats:
        """`[W]` what a counter counted by position of the draft, none where the page does not have it.

        Raises:
            TraceFormatError: a position that is none, or as `Scrapes.counted`.
        """
        if not name:
            return np.zeros(0)
        found = self._scrapes.counted(name, by=self._engine.place, summed=self._engine.summed)
        places = {self._position(name, text): count for text, count in found.items()}
        return np.array([places.get(place, 0.0) for place in range(max(places, default=-1) + 1)], np.float64)

    def _position(self, name: str, text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 4 and int(text) < MOST_WINDOW):
            place = next(one.place for one in self._scrapes.gauges(name))
            rule = f"must be a whole number below {MOST_WINDOW}"
            raise TraceFormatError(place, f"{name}.{self._engine.place}", rule, text)
        return int(text)

    @property
    def tokens(self) -> float | None:
        """Tokens of answers."""
        return self.total(self._engine.tokens)

    @property
    def prompts(self) -> float | None:
        """Tokens of prompts."""
        return self.total(self._engine.prompts)

    @property
    def requests(self) -> float | None:
        """Requests that were answered: those that were aborted or failed are none."""
        return None if (found := self._by_reason()) is None else sum(found[0].values())

    @property
    def unanswered(self) -> float:
        """Requests that ended without being answered."""
        return 0.0 if (found := self._by_reason()) is None else sum(found[1].values())

    def _by_reason(self) -> tuple[dict[str, float], dict[str, float]] | None:
        name = self._engine.requests
        found = self._scrapes.counted(name, by=_REASON, summed=self._engine.summed) if name else {}
        if not found:
            return None
        ended = {reason: count for reason, count in found.items() if reason in _NO_ANSWERS}
        return {reason: count for reason, count in found.items() if reason not in ended}, ended

    @property
    def counted_length(self) -> float | None:
        """Tokens that a verification gave, its own among them, by counters; None where they do not tell it.

        The prefill gives the first token of each answer.
        """
        steps = self.total(self._engine.verified)
        if not steps or self.tokens is None or self.requests is None:
            return None
        return (self.tokens - self.requests) / steps

    @property
    def shown_length(self) -> float | None:
        """The same as a gauge shows it, of some last interval; None where none does, or nothing was verified.

        Raises:
            TraceFormatError: gauges that differ.
        """
        shown = self._scrapes.gauges(self._engine.length) if self._engine.length else []
        values = sorted({one.value for one in shown})
        if len(values) > 1:
            raise TraceFormatError(shown[0].place, self._engine.length, "must be one gauge", self._gauges(shown))
        return values[0] if values and values[0] > 0 else None

    def _gauges(self, shown: Sequence[Sample]) -> str:
        """How many gauges there are and what they say, as "two gauges, 2.5 and 2.7"."""
        values = [f"{one.value:.4g}" for one in sorted(shown, key=lambda one: one.value)]
        many = {2: "two", 3: "three", 4: "four"}.get(len(values), str(len(values)))
        listed = f"{', '.join(values[:-1])} and {values[-1]}" if len(values) < 5 else f"{values[0]} to {values[-1]}"
        return f"{many} gauges, {listed}"

    @property
    def depth(self) -> int | None:
        """Tokens drafted in a step as gauges show them now, None where none does or they differ.

        Raises:
            TraceFormatError: a gauge of more than any draft has.
        """
        for name, more in self._engine.depths:
            gauges = self._scrapes.gauges(name)
            if gauges and gauges[0].value > MOST_WINDOW:
                raise TraceFormatError(gauges[0].place, name, f"must be at most {MOST_WINDOW}", gauges[0].value)
            values = {one.value for one in gauges}
            if len(values) == 1 and (depth := round(values.pop()) - more) >= 1:
                return depth
        return None

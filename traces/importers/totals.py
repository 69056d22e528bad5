"""Requests of a log with totals: rounds that fit its counts of a request, and acceptance that it states for all.

Counts of a request are met exactly; the place of each round is drawn. Where only a sum is known, every drafted token
whose predecessors were kept is kept with one and the same probability h, so that a round that drafts c tokens keeps a <
c of them with probability h^a (1 - h), and all c with h^c. Given the sum, that distribution is sampled by exchanges:
two rounds at a time divide their accepted tokens again, with the distribution's probabilities, which keeps the sum.
Letters: R rounds, W the window.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFormatError
from ..meta import MOST
from ..rounds.rounds import TREES, Rounds, RoundsRequest, StatedAcceptance
from .importing import DRAFTER, MOST_REQUESTS, Ongoing, rounds_at, starts_of
from .reading import Fields, by_request
from .responses import ADD_FIRST, EMPTY, Responses, stem

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SWEEPS = 24  # exchanges of each round: few are enough to forget the even start
_HALVINGS = 45  # to 3e-14, where 1 - h can still be divided by
_SETTLED = 64  # longest rounds, after which the steps for a token are those of any other


def spread(total: int, least: Ints, most: Ints, generator: np.random.Generator) -> Ints:
    """`[R]` counts between bounds `[R]` that add up to `total`, as even as possible; which get one more is drawn."""
    low, high = 0, int(most.max(initial=0))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.clip(middle, least, most).sum() <= total else (low, middle - 1)
    counts: Ints = np.clip(low, least, most).astype(np.int64)
    more = np.flatnonzero((counts == low) & (counts < most))
    counts[generator.permutation(more)[: total - int(counts.sum())]] += 1
    return counts


def draw_accepted(total: int, drafted: Ints, generator: np.random.Generator, *, one_keeps: int = 0) -> Ints:
    """`[R]` accepted tokens of rounds that drafted `[R]` and kept `total` together, see the module.

    At least one round keeps `one_keeps`, which the end of the answer may cut: where no drawn round does, the longest
    draft keeps just as many, if possible.
    """
    accepted = _draw_accepted(total, drafted, generator)
    if one_keeps <= accepted.max(initial=0) or one_keeps > min(total, drafted.max(initial=0)):
        return accepted
    cut = int(np.argmax(drafted))
    return np.insert(_draw_accepted(total - one_keeps, np.delete(drafted, cut), generator), cut, one_keeps)


def _draw_accepted(total: int, drafted: Ints, generator: np.random.Generator) -> Ints:
    accepted = spread(total, np.zeros_like(drafted), drafted, generator)
    if not 0 < total < drafted.sum() or len(drafted) < 2:
        return accepted
    refused_prob = 1.0 - constant_hazard(total / len(drafted), drafted)
    for _ in range(_SWEEPS):
        order = generator.permutation(len(drafted))
        half = len(order) // 2
        _exchange(accepted, drafted, order[:half], order[half : 2 * half], refused_prob, generator)
    return accepted


def pair(accepted: Ints, drafted: Ints, generator: np.random.Generator) -> Ints:
    """`[R]` the drafts in a drawn order, in which each is at least its round's accepted tokens, all equally likely."""
    longest_first = np.sort(drafted)[::-1]
    most_first = np.argsort(accepted)[::-1]
    # Rounds that kept most come first, as only the longest drafts fit them: each takes one that is left.
    fitting = np.searchsorted(-longest_first, -accepted[most_first], side="right")
    order = np.arange(len(drafted))
    for place, many in enumerate(fitting):
        chosen = int(generator.integers(place, many))
        order[place], order[chosen] = order[chosen], order[place]
    paired = np.empty_like(drafted)
    paired[most_first] = longest_first[order]
    return paired


def constant_hazard(mean: float, drafted: Ints) -> float:
    """The probability with which rounds that draft `[R]` tokens keep `mean` on average, the same for every token."""
    lengths, counts = np.unique(drafted, return_counts=True)
    return hazard_of_lengths(mean, lengths, counts / counts.sum())


def hazard_of_lengths(mean: float, lengths: Ints, shares: Floats) -> float:
    """The same for `[L]` lengths of drafts and the shares of the rounds that have each."""
    # A draft keeps the sum of h^1 to h^length on average.
    return _least(lambda h: float(shares @ (h * (1.0 - np.power(h, lengths.astype(np.float64))) / (1.0 - h))) >= mean)


def hazard_of_steps(answers: Ints, steps: float, window: int, drafting: float = 1.0) -> float | None:
    """Probability of each drafted token to be kept, by which steps take `steps` for all answers.

    `answers` is `[A]` tokens of each after the prefill; its end cuts the last step. `drafting` is the share of steps
    that draft, whole windows. None: even windows that are always kept whole take more steps.
    """

    def few(h: float) -> bool:
        return _mean_steps(answers, _emitted(np.full(window, h), drafting)) <= steps

    return _least(few) if few(1.0) else None


def _emitted(hazards: Floats, drafting: float = 1.0) -> Floats:
    """`[W + 1]` shares of steps that emit 1, 2, ... tokens, where a share of them drafts."""
    kept = np.cumprod(np.concatenate(([1.0], hazards, [0.0])))
    shares: Floats = drafting * -np.diff(kept)
    shares[0] += 1.0 - drafting
    return shares


def _mean_steps(answers: Ints, emitted: Floats) -> float:
    """Steps that answers of `[A]` tokens take on average, of which `[W + 1]` shares emit 1, 2, ... tokens."""
    lengths, counts = np.unique(answers, return_counts=True)
    most = len(emitted)
    longest = min(int(lengths[-1]), _SETTLED * most)
    for_tokens, backwards = np.zeros(most + longest), emitted[::-1]  # from `most` before the first token, which take 0
    for n in range(longest):
        for_tokens[most + n] = 1.0 + backwards @ for_tokens[n : most + n]  # one, and those for what it leaves
    more = (lengths - longest).clip(0) / (emitted @ np.arange(1, most + 1))  # by then the mean number of each token
    return float(counts @ (for_tokens[most - 1 + lengths.clip(max=longest)] + more))


def _least(enough: Callable[[float], bool]) -> float:
    """The least probability that is enough."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if enough(middle) else (middle, high)
    return (low + high) / 2.0


def place(
    accepted: Ints, drafted: Ints, *, num_tokens: int, generator: np.random.Generator
) -> tuple[Ints, Ints] | None:
    """`[R]` tokens accepted and drafted by rounds in a drawn order that emit `num_tokens` together; None if none can.

    Fewer tokens than the rounds add up to: the last one is cut, by at most the tokens that it kept. More: the rest are
    plain steps.
    """
    surplus = int(accepted.sum()) + len(accepted) - num_tokens
    plain = np.zeros(max(-surplus, 0), np.int64)
    accepted, drafted = np.concatenate((accepted, plain)), np.concatenate((drafted, plain))
    order = generator.permutation(len(accepted))
    if surplus > 0:
        enough = np.flatnonzero(accepted[order] >= surplus)
        if not len(enough):
            return None
        last = enough[-1]
        order = np.concatenate((np.delete(order, last), order[last : last + 1]))
    return accepted[order], drafted[order]


def _exchange(
    accepted: Ints, drafted: Ints, one: Ints, other: Ints, refused_prob: float, generator: np.random.Generator
) -> None:
    """Divide the accepted tokens of each pair of rounds again; mutates `accepted`."""
    together = accepted[one] + accepted[other]
    kept = np.arange(int(min(drafted.max(), together.max())) + 1)[None, :]
    rest = together[:, None] - kept
    possible = (kept <= drafted[one][:, None]) & (rest >= 0) & (rest <= drafted[other][:, None])
    # h to the power of both rounds' tokens is the same for any division; the difference is which of them had a
    # rejection.
    weights = np.where(kept < drafted[one][:, None], refused_prob, 1.0)
    weights = weights * np.where(rest < drafted[other][:, None], refused_prob, 1.0) * possible
    ends = np.cumsum(weights, axis=1)
    chosen = (ends <= (generator.random(len(one)) * ends[:, -1])[:, None]).sum(axis=1)
    accepted[one], accepted[other] = chosen, together - chosen


MOST_STEPS = 1_000_000  # and tokens of one request: more is implausible


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A log's counts of one request."""

    num_tokens: int  # of the answer, >= 1
    # verifications after the prefill that the log counts or that follow from its totals, plain ones included; a log
    # that counts only those with a draft has further plain ones, one for each remaining token
    num_steps: int
    num_accepted: int  # accepted tokens in all of them
    num_drafted: int | None = None  # tokens drafted in all of them, None if the log does not say
    histogram: Ints | None = None  # `[W + 1]` steps that kept 0, 1, ... tokens; None if the log does not say.
    # steps that drafted 0, 1, ... tokens; None if the log does not say. Only beside `histogram`.
    drafted_histogram: Ints | None = None
    window: int | None = None  # most tokens drafted in a step, None if the log does not say
    prefilled: bool = True  # whether the first token is the prefill's, so that rounds emit the others
    # fields of the log that hold the two histograms, for errors
    keys: tuple[str, str] = ("acceptance_histogram", "drafted histogram")

    @property
    def num_emitted(self) -> int:
        """Tokens that the rounds emit."""
        return self.num_tokens - self.prefilled


def of_histogram(histogram: Ints, *, num_tokens: int | None, num_drafted: int | None, window: int | None) -> Counted:
    """The counts of a histogram of accepted tokens; without `num_tokens`, those that its steps emit."""
    steps, accepted = int(histogram.sum()), int(histogram @ np.arange(len(histogram)))
    return Counted(
        num_tokens=steps + accepted + 1 if num_tokens is None else num_tokens,
        num_steps=steps,
        num_accepted=accepted,
        num_drafted=num_drafted,
        histogram=histogram,
        window=window,
    )


def draw_steps(ongoing: Ongoing, name: str, fields: Fields, request_id: str, counted: Counted) -> tuple[Ints, Ints]:
    """`[R]` tokens accepted and drafted in steps that meet the counts; raises TraceFormatError where none can."""
    window = ongoing.drafters.window_of(name, fields, counted.window)
    _check(fields, counted, window)
    generator = ongoing.generator(request_id)
    accepted, drafted = _draw_counts(counted, window, generator)
    drawn = place(accepted, drafted, num_tokens=counted.num_emitted, generator=generator)
    if drawn is None:
        explained = int(accepted.sum()) + len(accepted) + counted.prefilled
        whose = f"{explained} with the prefill's" if counted.prefilled else f"{explained}"
        rule = f"must be at least what its steps emit, {whose}, but for one step's draft"
        rule += ADD_FIRST if counted.prefilled and counted.num_tokens == explained - 1 else ""
        raise fields.error("completion_tokens", rule, counted.num_tokens)
    return drawn


def draw_rounds(ongoing: Ongoing, name: str, fields: Fields, request_id: str, counted: Counted) -> Rounds:
    """Rounds that meet the counts, marked as placed; raises as `draw_steps`."""
    accepted, drafted = draw_steps(ongoing, name, fields, request_id, counted)
    return rounds_at(
        ongoing,
        name,
        fields,
        starts_of(accepted + 1) + counted.prefilled,
        accepted,
        length=counted.num_tokens,
        drafted=drafted,
        placed=np.ones(len(accepted), np.bool_),
    )


def counted_request(
    file: Responses, usage: Fields, fields: Fields, request_id: str, counted: Counted
) -> RoundsRequest | None:
    """The request of a response with its counts in `fields` and its prompt in `usage`; None without a token."""
    name = file.drafter()
    if not counted.num_tokens:
        return None
    return RoundsRequest(
        request_id=request_id,
        prompt_tokens=usage.count("prompt_tokens", least=0, default=0),
        num_tokens={name: counted.num_tokens},
        rounds={name: draw_rounds(file.ongoing, name, fields, request_id, counted)},
    )


def _check(fields: Fields, counted: Counted, window: int) -> None:
    steps, accepted, drafted = counted.num_steps, counted.num_accepted, counted.num_drafted
    if steps + counted.num_tokens > MOST_STEPS:
        raise fields.error("steps", f"must be at most {MOST_STEPS}, with the tokens", steps + counted.num_tokens)
    if accepted > steps * window:
        raise fields.error("accepted", f"must be at most {steps} steps of {window} tokens", accepted)
    if drafted is not None and not accepted <= drafted <= steps * window:
        rule = f"must lie between the {accepted} accepted and {steps} steps of {window} tokens (`windows`)"
        raise fields.error("drafted", rule, drafted)
    _check_histograms(fields, counted, window)
    if steps - counted.num_emitted > accepted:
        raise fields.error("steps", f"must be fewer than the {counted.num_tokens} tokens of the answer", steps)


def _check_histograms(fields: Fields, counted: Counted, window: int) -> None:
    key, drafted_key = counted.keys
    if counted.histogram is not None and np.any(counted.histogram[window + 1 :]):
        longest_kept = int(np.flatnonzero(counted.histogram)[-1])
        rule = (
            f"must be 0: no step keeps {longest_kept} tokens where drafts have at most {window}, the window (`windows`)"
        )
        raise fields.error(f"{key}[{longest_kept}]", rule, int(counted.histogram[longest_kept]))
    if counted.histogram is None or counted.drafted_histogram is None:
        return
    if int(counted.drafted_histogram.sum()) != counted.num_steps:
        rule = f"must add up to the {counted.num_steps} steps of {key}"
        raise fields.error(drafted_key, rule, int(counted.drafted_histogram.sum()))
    # For any number of tokens, at least as many steps drafted it as kept it.
    longest = max(len(counted.histogram), len(counted.drafted_histogram))
    both = (np.pad(one, (0, longest - len(one))) for one in (counted.histogram, counted.drafted_histogram))
    kept, drafted = (np.cumsum(one[::-1])[::-1] for one in both)  # steps of 0 tokens or more, 1 or more, ...
    if np.any(kept > drafted):
        count = int(np.argmax(kept > drafted))
        rule = f"must hold the {kept[count]} steps of {key} that kept {count} tokens or more"
        raise fields.error(drafted_key, rule, int(drafted[count]))


def _draw_counts(counted: Counted, window: int, generator: np.random.Generator) -> tuple[Ints, Ints]:
    """(accepted, drafted) tokens of each round, unordered."""
    most: NDArray[np.int64] = np.full(counted.num_steps, window, np.int64)
    total = counted.num_steps * window if counted.num_drafted is None else counted.num_drafted
    if counted.histogram is None:
        drafted = spread(total, np.zeros_like(most), most, generator)
        surplus = counted.num_accepted + counted.num_steps - counted.num_emitted
        return draw_accepted(counted.num_accepted, drafted, generator, one_keeps=max(surplus, 0)), drafted
    accepted = np.repeat(np.arange(len(counted.histogram)), counted.histogram).astype(np.int64)
    if counted.drafted_histogram is not None:
        drafted = np.repeat(np.arange(len(counted.drafted_histogram)), counted.drafted_histogram).astype(np.int64)
        return accepted, pair(accepted, drafted, generator)
    return accepted, spread(total, accepted, most, generator)


_ROUNDED = 0.0006  # logs round rates to three decimals, so that equal ones may seem to rise
_PLAIN = "{:.2%} of the steps drafted nothing, as tokens, drafts and accepted tokens have it: drawn as often"
_BEYOND = "steps that drafted give {:,} tokens, the answers have {:,}: the server counted other requests, too"
_BEYOND_SHARE = 0.01  # of tokens that counters may miss: they are read while the server counts
_UNKEPT = "no step kept more than {} tokens, so that trees were drafted, or chains that none kept whole"
_EITHER = (
    "some versions of this engine count the last step of an answer only up to the answer's end, where whole is taken "
    "here: if yours does, steps gave {:.2f} tokens on average, not {:.2f}"
)
_SHORT = "drafts were {:.2f} tokens long on average, of {}: each is drawn as a whole one, and a rejection may be an end"
_RUNNING = "requests that ran, for --batch: {:,g} to {:,g} at the times of the {}, {:,.3g} on average"


# Of each request the tokens of its prompt, 0 if unknown, and of its answer; one without any is left out.
Lengths = Sequence[tuple[int, int]]


def even_lengths(fields: Fields, requests: int, output_tokens: int, prompt_tokens: int) -> Lengths:
    """`requests` that divide these tokens evenly; raises TraceFormatError."""
    if requests > MOST_REQUESTS:
        raise fields.error("requests", f"must be at most {MOST_REQUESTS}", requests)
    if max(output_tokens, prompt_tokens) > MOST * requests:
        rule = f"must be at most {MOST} of each of the {requests} requests"
        raise fields.error("tokens", rule, max(output_tokens, prompt_tokens))
    return list(zip(_even(prompt_tokens, requests), _even(output_tokens, requests), strict=True))


def lengths_of_benchmark(run: Fields) -> Lengths | None:
    """Lengths in the result of a serving benchmark: of each request, or even ones from totals; None if neither."""
    if "output_lens" in run:
        outputs = run.counts("output_lens", least=0).tolist()
        prompts = run.counts("input_lens", least=0).tolist() if "input_lens" in run else [0] * len(outputs)
        run.check_equal("total_output_tokens", (sum(outputs),), "the sum of output_lens")
        if (completed := run.count("completed", least=0, default=0)) > len(outputs):
            raise run.error("completed", f"must be at most the {len(outputs)} answers of output_lens", completed)
        by_request(run, ("output_lens",), ("input_lens",), of="answers")
        return list(zip(prompts, outputs, strict=True))
    requests = run.count("completed", least=0, default=0)
    tokens = run.known_count("total_output_tokens", least=0)
    if not requests or not tokens:
        return None
    return even_lengths(run, requests, tokens, run.count("total_input_tokens", least=0, default=0))


def hazards_of_rates(fields: Fields, key: str, rates: NDArray[np.float64]) -> tuple[float, ...]:
    """`[W]` shares of all drafts that kept each position, as shares of those that reached it."""
    if not len(rates):
        raise fields.error(key, "must hold a rate for each position", "none")
    rising = np.flatnonzero(rates[1:] > rates[:-1] + _ROUNDED)
    if len(rising):
        place = int(rising[0]) + 1
        rule = f"must not exceed the rate before it, {rates[place - 1]:g}: drafts are kept from their beginning"
        raise fields.error(f"{key}[{place}]", rule, float(rates[place]))
    return hazards_of_shares(np.minimum(rates, np.concatenate(([1.0], rates[:-1]))), rates)


def hazards_of_shares(kept: NDArray[np.float64], shares: NDArray[np.float64]) -> tuple[float, ...]:
    """`[W]` share of the drafts that kept the token before that kept each token."""
    before = np.concatenate(([1.0], shares[:-1]))
    hazards = np.divide(kept, before, out=np.zeros(len(kept)), where=before > 0)
    return tuple(hazards.tolist())


def hazards_of_mean(fields: Fields, key: str, length: float, window: int) -> tuple[float, ...]:
    """The probability, the same at all positions, with which rounds of the window emit `length` tokens on average."""
    if not 1 <= length <= window + 1:
        raise fields.error(key, f"must lie between 1 and the window and one, {window + 1} (`windows`)", length)
    return (constant_hazard(length - 1, np.array([window])),)


def drafting_share(
    ongoing: Ongoing,
    lengths: Lengths | None,
    drafts: float | None,
    accepted: float | None,
    hazards: Sequence[float],
    *,
    whole: bool,
) -> float:
    """Share of the steps after the prefill that drafted, 1 where the log does not say; noted if below 1.

    Also notes steps that give more tokens than the answers have: the end of each may cut the last one. `whole`: such a
    step counts with all its tokens, which hide as many of the plain steps.
    """
    if lengths is None or not drafts or accepted is None:
        return 1.0
    answers = np.array([tokens - 1 for _, tokens in lengths if tokens])
    plain = float(answers.sum() - accepted - drafts)
    if -plain > len(hazards) * len(answers) + _BEYOND_SHARE * answers.sum():
        ongoing.findings.remark(_BEYOND.format(round(accepted + drafts), answers.sum()))
    if plain <= 0:
        return 1.0
    share = drafts / (plain + drafts)
    if whole:
        share = _least(lambda share: share * _mean_steps(answers, _emitted(np.array(hazards), share)) >= drafts)
    note_plain(ongoing, 1.0 - share)
    return share


def note_plain(ongoing: Ongoing, share: float) -> None:
    """Note the share of the steps that drafted nothing."""
    ongoing.findings.remark(_PLAIN.format(share))


def settled_window(
    ongoing: Ongoing,
    name: str,
    fields: Fields,
    proposed: frozenset[int] | None,
    depth: int | None,
    *,
    trees: bool | None = None,
) -> int:
    """Tokens on the deepest path of a draft, by the user or else the log; a tree is noted.

    `proposed` are possible numbers of tokens proposed in a step, by the log's rates, and `depth` is that of its
    settings or counts; None: unknown. Every draft is one of `trees`, or else a chain of that depth; None: unknown.
    """
    if depth is None and proposed is not None and len(proposed) == 1:
        (depth,) = proposed
    most = depth if proposed is None else max(proposed)
    window = ongoing.drafters.window_of(name, fields, depth)
    if trees is False and depth is not None and window != depth:
        rule = f"must be the {depth} tokens of a chain, as the server's settings have it (`windows`)"
        raise fields.error("window", rule, window)
    if most is not None and window > most:
        raise fields.error("window", f"must be at most the {most} tokens that a step proposed (`windows`)", window)
    beyond = (proposed is not None and window not in proposed) or (depth is not None and window < depth)
    if trees or beyond:
        ongoing.findings.remark(TREES.format(name))
    return window


def check_depth(ongoing: Ongoing, name: str, fields: Fields, *, deepest: int, longest: int) -> None:
    """Raise where a log that counts each node of a tree does not tell how deep drafts were, or a stated depth is wrong.

    `deepest` is the most tokens that a step kept, `longest` the most that one drafted.
    """
    stated = ongoing.options.windows.get(name)
    if not deepest <= (deepest if stated is None else stated) <= longest or (stated is None and deepest < longest):
        rule = f"must be stated, `windows` {name}=K, in [{max(deepest, 1)}, {longest}]: {_UNKEPT.format(deepest)}"
        raise fields.error("window", rule, stated or f"{longest} drafted tokens")


def note_short_drafts(ongoing: Ongoing, *, drafted: float, drafts: float, window: int) -> None:
    """Note drafts shorter than the window; rates count drafts, whatever ended them."""
    if drafts > 0 and drafted < drafts * window:
        ongoing.findings.remark(_SHORT.format(drafted / drafts, window))


def note_running(ongoing: Ongoing, counts: Sequence[float], times: str) -> None:
    """Note how many requests ran at once, at several `times` of what is named; one time alone tells little."""
    if len(counts) > 1:
        ongoing.findings.remark(_RUNNING.format(min(counts), max(counts), times, fmean(counts)))


class StatedLog:
    """A log that states acceptance for all its requests together, of one drafter that is not named.

    It is one file, since more would be logs of other requests, except `several` of one server over time.
    """

    def __init__(self, files: Sequence[Path], ongoing: Ongoing, *, several: bool = False) -> None:
        if len(files) > 1 and not several:
            raise TraceFormatError(files[1], "file", "must be the only one of this format", f"{len(files)} files")
        self.path = files[-1]
        self.fields = Fields(str(self.path), {})  # of the whole log, for errors
        self.name = ongoing.drafters.name(DRAFTER, *files, prefilled=True, settled=True)
        self._ongoing = ongoing

    def requests(
        self,
        lengths: Lengths | None,
        hazards: tuple[float, ...],
        *,
        window: int,
        drafting: float = 1.0,
        either: bool = False,
    ) -> Iterator[RoundsRequest]:
        """Requests without rounds: those of the log, or where it does not list any those that the user states.

        `hazards` are probabilities of agreement by depth, among rounds that reached it; the last holds for deeper ones.
        `drafting` is the share of the steps that draft at all. `either`: the engine's version decides whether the last
        step of an answer counts whole; noted where it matters.
        """
        stated = StatedAcceptance(hazards=hazards, drafting=drafting)
        self._ongoing.drafters.state(self.name, self.fields, stated, window)
        if lengths is None:
            load = self._ongoing.options.load
            if load is None:
                rule = (
                    "must be stated, the log does not know them: `requests` 100 `output_tokens` N, the tokens of a "
                    "usual answer of yours"
                )
                raise self.fields.error("requests", rule, "nothing")
            self._ongoing.findings.mattered.add("load")
            tokens = (load.requests * load.output_tokens, load.requests * load.prompt_tokens)
            lengths = even_lengths(self.fields, load.requests, *tokens)
        empty = sum(1 for _, tokens in lengths if not tokens)
        if empty == len(lengths):
            raise self.fields.error("requests", "must hold an answer of at least one token", empty)
        self._ongoing.findings.note(EMPTY, empty)
        if either:
            self._note_ends(np.array([tokens - 1 for _, tokens in lengths if tokens]), hazards, window, drafting)
        for number, (prompt, output) in enumerate(lengths, start=1):
            if output:
                request_id, num_tokens = f"{stem(self.path)}/{number}", {self.name: output}
                yield RoundsRequest(request_id=request_id, prompt_tokens=prompt, num_tokens=num_tokens, rounds={})

    def _note_ends(self, answers: Ints, hazards: tuple[float, ...], window: int, drafting: float) -> None:
        whole = np.concatenate((hazards, np.full(window - len(hazards), hazards[-1])))
        mean = 1.0 + float(np.cumprod(whole).sum())
        steps = float(answers.sum()) / (drafting * mean + 1.0 - drafting)
        cut = hazard_of_steps(answers, steps, window, drafting)
        if cut is not None and (longer := 1.0 + float((cut ** np.arange(1, window + 1)).sum())) > 1.01 * mean:
            self._ongoing.findings.remark(_EITHER.format(longer, mean))


def _even(total: int, parts: int) -> list[int]:
    each, more = divmod(total, parts)
    return [each + (part < more) for part in range(parts)]

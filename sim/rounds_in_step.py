"""Replay in step of an imported recording, under a fixed window of one drafter or under the target alone.

Letters: N requests, R rounds of all of them.
"""

from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from ..decoding.results import DRAFT, VERIFY
from ..policies.about import observed_by
from ..policies.fixed import Chain, Plain
from ..traces.rounds.recording import RoundsRecording
from ..traces.rounds.rounds import RoundsRequest
from .hazard import Hazard
from .in_step import COLUMNS, AskedInStep, InStepReplay, Played
from .rounds_answers import Decided, RequestRounds, RoundDrafts

# Of a round: tokens drafted, accepted, of the target's own and committed; decisions modelled in the draft and in the
# verification; tokens that the drafter and the target are fed first, and those that they hold then.
ROUND = ("drafted", "accepted", "own", "emitted", "drawn", "drawn_after", "draft_new", "draft_held", "new", "held")
USUAL = 32  # most tokens that a round usually drafts
MOST_DECIDED = 1 << 21  # tokens of answers, over seeds, whose decisions are kept for other windows


def drafter_of(policy: Policy, pool: Pool) -> tuple[int, int] | None:
    """(level of the drafter, window) of a policy whose requests run in step; (-1, 0) of the target alone.

    None for any other policy.
    """
    if type(policy) not in (Chain, Plain):
        return None
    spec = policy.spec if isinstance(policy, Chain) else None
    if spec is None or not spec.windows:
        return -1, 0
    level = pool.level(spec.members[0])
    return None if len(spec.members) > 2 or pool.members[level].model_free else (level, spec.windows[0])


class RoundsInStep(InStepReplay):
    """See `InStepReplay`; `fitted` is reseeded for each seed."""

    def __init__(self, trace: RoundsRecording, pool: Pool, fitted: Hazard) -> None:
        super().__init__(pool)
        self._trace, self._fitted = trace, fitted
        self._requests = {request.request_id: request for request in trace.requests}
        self._most_decided = MOST_DECIDED // sum(max(one.num_tokens.values()) for one in trace.requests)  # seeds
        self._decided: dict[tuple[int, int], tuple[RoundDrafts, list[Decisions]]] = {}
        self._fresh: dict[tuple[str, bool], RequestRounds] = {}

    def why_looped(self, asked: AskedInStep) -> str:
        """See `InStepReplay`; also where members, or recorded seconds, differ between requests."""
        if why := super().why_looped(asked):
            return why
        cost = asked.setting.cost
        if asked.setting.strict:
            return "`strict` names the first round that was not recorded"
        if drafter_of(asked.policy, self._pool) is None or observed_by(asked.policy):
            return f"policy {asked.name} is no fixed window of one drafter"
        if any(asked.prefill_before) != asked.waits:
            return "some members wait for the prefill, and some do not"
        return f"cost {cost.name} knows recorded rounds" if cost.knows_rounds else ""

    def _play(self, asked: AskedInStep) -> Played:
        found = drafter_of(asked.policy, self._pool)
        assert found is not None
        (level, window), seed = found, asked.setting.seed
        drafts, known = self._decided.get((seed, level)) or (
            RoundDrafts(self._trace, self._fitted.reseeded(seed)),
            [Decisions() for _ in self._trace.requests],
        )
        self._decided[seed, level] = drafts, known
        while len(self._decided) > self._most_decided:
            self._decided.pop(next(iter(self._decided)))
        rows, ends, divergent = array("i"), [0], {}
        requests = list[tuple[str, str, int]]()
        name = self._pool.names[level] if window else ""
        for request, decisions in zip(self._trace.requests, known, strict=True):
            state = self._begun(request, waits=asked.waits).anew()
            emitted = _play_request(state, drafts, level - self._pool.num_free, name, window, decisions, rows)
            requests.append((request.request_id, request.tag, len(state.prompt)))
            ends.append(len(rows) // len(ROUND))
            divergent[request.request_id] = abs(state.num_tokens - emitted)
        rounds = dict(zip(ROUND, np.array(rows, np.int32).reshape(-1, len(ROUND)).T, strict=True))
        columns = _columns(rounds, level, window, self._pool.target_level)
        num_steps = np.array(ends) * (2 if window else 1)
        if asked.waits:
            prefill = {"kind": VERIFY, "level": self._pool.target_level, "own": 1, "emitted": 1, "prefill": 1}
            prompts = [num_prompt for _, _, num_prompt in requests]
            columns = {
                name: np.insert(column, num_steps[:-1], prompts if name == "new" else prefill.get(name, 0))
                for name, column in columns.items()
            }
            num_steps += np.arange(len(num_steps))
        return Played(
            requests=requests,
            ends=num_steps[1:],
            columns=columns,
            divergent=divergent,
            quality={},
            drawn=bool(columns["modelled"].any()),
        )

    def _text(self, request_id: str) -> list[int]:
        return self._begun(self._requests[request_id], waits=True).trunk

    def _begun(self, request: RoundsRequest, *, waits: bool) -> RequestRounds:
        key = request.request_id, waits
        found = self._fresh.get(key)
        if found is None:
            found = RequestRounds(request, self._trace.meta, waits=waits)
            if self._most_decided:
                self._fresh[key] = found
        return found


def _columns(
    rounds: dict[str, NDArray[np.int32]], level: int, window: int, target: int
) -> dict[str, NDArray[np.int32]]:
    """Columns of steps: for each round its draft, if any, and its verification."""
    count = len(rounds["own"])
    verify = {name: rounds[name] for name in ("accepted", "own", "emitted", "new", "held")} | {
        "kind": np.full(count, VERIFY), "level": np.full(count, target), "judged": rounds["drafted"],
        "modelled": rounds["drawn_after"],
    }  # fmt: skip
    draft = {
        "kind": np.full(count, DRAFT), "level": np.full(count, level), "asked": np.full(count, window),
        "drafted": rounds["drafted"], "modelled": rounds["drawn"], "new": rounds["draft_new"],
        "held": rounds["draft_held"],
    }  # fmt: skip
    none = np.zeros(count, np.int32)
    steps = (draft, verify) if window else (verify,)
    return {
        name: np.stack([step.get(name, none) for step in steps], axis=1).ravel().astype(np.int32) for name in COLUMNS
    }


@dataclass(slots=True, eq=False)
class Decisions:
    """Decisions on the drafts of one request, for all windows; added to."""

    runs: list[int] | None = None  # as of `RoundDrafts.runs`
    most: int = 0  # tokens of a round in `runs`
    by_start: dict[int, Decided] = field(default_factory=dict)  # where the log has any

    def runs_of(self, drafts: RoundDrafts, state: RequestRounds, drafter: int, window: int) -> list[int] | None:
        """`runs` for rounds of at least a window."""
        if self.most < window:
            self.most = max(window, USUAL)
            self.runs = drafts.runs(state, drafter, self.most)
        return self.runs

    def draft(
        self, drafts: RoundDrafts, state: RequestRounds, drafter: int, start: int, asked: int
    ) -> tuple[int, int, int]:
        """As `RoundDrafts.draft` of a round's first tokens: (drafted, kept, modelled)."""
        stops, modelled = drafts.stops(state, drafter, start, asked)
        wanted = min(asked, stops)
        found = self.by_start.get(start)
        if found is None:
            found = self.by_start[start] = drafts.decided(state, drafter, start, 0, wanted)
        elif found.reached < wanted and not found.refused:
            more = drafts.decided(state, drafter, start, found.reached, wanted - found.reached)
            found = self.by_start[start] = more._replace(drawn=found.drawn | more.drawn)
        kept, drawn = drafts.cut(state, drafter, start, 0, wanted, found)
        return wanted, kept, modelled + drawn


def _play_request(
    state: RequestRounds,
    drafts: RoundDrafts,
    drafter: int,
    name: str,
    window: int,
    decisions: Decisions,
    rows: "array[int]",
) -> int:
    """Play a request to its end, a row of `ROUND` for each round; returns the committed tokens.

    `window` is 0 of the target alone.
    """
    num_prompt, budget = len(state.prompt), len(state.trunk)
    position, cached, all_drawn = 0, 0, False
    if state.waits:
        position = 1
        if state.ending([0], 0) is not None:
            return position
    runs = None
    if window:
        state.begin(name)
        all_drawn = state.drawn
        runs = decisions.runs_of(drafts, state, drafter, window)
    ends_at = state.num_tokens
    drafted = kept = drawn = 0
    while True:
        before, held = num_prompt + position, num_prompt + position - 1 if position else 0
        if window:
            asked = min(window, budget - position)
            if runs is None:
                drafted, kept, drawn = decisions.draft(drafts, state, drafter, position, asked)
            else:  # tokens after the end of the answer are never used
                judged = min(asked, ends_at - position)
                drafted, kept = asked, min(runs[position], judged) if judged > 0 else 0
                drawn = min(kept + 1, judged) if judged > 0 else 0
        position += kept
        own = 1 if position < budget else 0
        emitted, done = kept + own, position + own == budget
        position += own
        if position >= ends_at:
            dropped = min(position - ends_at, emitted - 1)
            emitted, position, done = emitted - dropped, position - dropped, True
            own = 0 if dropped else own
        drawn_after = 0
        if all_drawn:
            drawn, drawn_after = max(drawn, drafted), min(kept + 1, drafted) + 1
        draft_new = before - cached
        rows.extend((drafted, kept, own, emitted, drawn, drawn_after, draft_new, cached, before + drafted - held, held))
        if done:
            return position
        if drafted:
            cached = before + min(drafted - 1, kept)

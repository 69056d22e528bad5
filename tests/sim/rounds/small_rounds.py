"""Imported recordings, by hand and by Hypothesis."""

import numpy as np
from hypothesis import strategies as st
from paceline.sim.rounds import RoundsTables, RoundsWorld
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.rounds import DrafterInfo, Rounds, RoundsMeta, RoundsRequest

NAMES = ("feature", "tokens")


def rounds_of(*rows, seconds=()):
    """Rounds from (start, accepted, drafted) each, and (drafting, the target's forward) seconds."""
    start, accepted, drafted = np.array(rows or np.zeros((0, 3)), np.int32).T
    draft_s, verify_s = np.array(seconds, np.float64).T if seconds else (None, None)
    return Rounds(start=start, accepted=accepted, drafted=drafted, draft_s=draft_s, verify_s=verify_s)


def one_request(num_tokens, rounds, *, request_id="r0", prompt_tokens=3, **rest):
    return RoundsRequest(
        request_id=request_id, tag="a", prompt_tokens=prompt_tokens, num_tokens=num_tokens, rounds=rounds, **rest
    )


def recording_of(*requests, drafters=(("feature", True, 4), ("tokens", False, 4))):
    infos = tuple(DrafterInfo(name=name, by_start=by_start, window=window) for name, by_start, window in drafters)
    meta = RoundsMeta(name="by hand", source="spec-bench", drafters=infos)
    return RoundsRecording(meta=meta, requests=requests)


def sequential(bits, window, *, drafted=True, stops=()):
    """The rounds of an engine that drafts `window` tokens at a time, where the text agrees as `bits` say.

    `stops` has, for positions that it names, how much the drafter drafts there.
    """
    rows = []
    start = 0
    stops = dict(stops)
    while start < len(bits):
        most = min(stops.get(start, window), window)
        asked = min(most, len(bits) - start)
        kept = next((depth for depth in range(asked) if not bits[start + depth]), asked)
        rows.append((start, kept, most if drafted else -1))
        start += kept + 1
    return rounds_of(*rows)


@st.composite
def recordings(draw, *, stopping=False):
    """One to three requests of two drafters, one of each kind, with rounds of one window, some requests without.

    With `stopping` the drafters of a known window draft less in some places.
    """
    window = draw(st.integers(1, 5))
    known_window = window if stopping else draw(st.none() | st.just(window))
    requests = []
    for index in range(draw(st.integers(1, 3))):
        lengths = {"": draw(st.integers(1, 24))}
        rounds = {}
        for name in NAMES:
            if index and draw(st.booleans()):
                continue
            lengths[name] = max(1, lengths[""] + draw(st.integers(-2, 2)))
            bits = draw(st.lists(st.booleans(), min_size=lengths[name], max_size=lengths[name]))
            at = st.integers(0, lengths[name] - 1)
            stops = draw(st.dictionaries(at, st.integers(0, window))) if stopping else {}
            rounds[name] = sequential(bits, window, drafted=stopping or draw(st.booleans()), stops=stops)
        requests.append(one_request(lengths, rounds, request_id=f"r{index}"))
    # Something to fit unknowns on, whatever the others hold.
    rounds = dict.fromkeys(NAMES, sequential([True, False] * 4, window))
    requests.append(one_request({"": 8}, rounds, request_id="both"))
    drafters = tuple((name, name == "feature", known_window) for name in NAMES)
    return recording_of(*requests, drafters=drafters)


class WatchedTables(RoundsTables):
    """Calls `watch(session, step, level, answer)` with every drafted or judged row, before the session takes it in."""

    def __init__(self, trace, watch):
        super().__init__(trace)
        self._watch = watch

    def world(self, cost, *, seed, strict, now_s=None):
        watch, plain = self._watch, super().world(cost, seed=seed, strict=strict)

        class Watched(RoundsWorld):
            def draft(self, level, items):
                return self.watched(level, items, super().draft(level, items))

            def verify(self, level, items):
                return self.watched(level, items, super().verify(level, items))

            def watched(self, level, items, results):
                for (session, step), row in zip(items, results.rows, strict=True):
                    watch(session, step, level, row)
                return results

        plain.__class__ = Watched
        return plain

"""The quality of texts: its arithmetic from columns of a log, and where it is shown."""

from dataclasses import asdict, replace
from io import StringIO

import numpy as np
import pytest
from paceline.reports import SideBySide, quality_of, summarise_run
from paceline.reports.comparison import comparison_table, quality_line, quality_table
from paceline.reports.run_table import run_table
from paceline.runs.log import QUALITY_FIELDS, TextQuality, with_quality
from rich.console import Console

from .test_side_by_side import META
from .test_summary import by_hand

# r0 emitted 6 tokens, r1 one.
FIRST = TextQuality(
    divergences=2,
    seen_tokens=5,
    scored_tokens=4,
    log_prob=-6.0,
    trunk_tokens=8,
    trunk_log_prob=-4.0,
    same_tokens=3,
    same_start=2,
    exact_start=4,
    right=0,
    trunk_right=1,
)
SECOND = TextQuality(
    divergences=0,
    seen_tokens=1,
    scored_tokens=1,
    log_prob=-1.0,
    trunk_tokens=1,
    trunk_log_prob=-1.0,
    same_tokens=1,
    same_start=1,
    exact_start=1,
    right=1,
    trunk_right=1,
)


def log_of(first=FIRST, second=SECOND):
    return with_quality(by_hand(), {"r0": first, "r1": second})


def shown(renderable, width=160):
    stream = StringIO()
    Console(file=stream, width=width).print(renderable)
    return " ".join(stream.getvalue().split())


def test_every_figure_by_hand():
    assert asdict(quality_of(log_of())) == {
        "lossy": True,
        "requests": 2,
        "tokens": 7,
        "known_share": 5 / 7,
        "num_divergences": 2,
        "divergences_per_1000": 2000 / 6,
        "text_agreement": 4 / 9,
        "prefix_agreement": 3 / 9,
        "log_prob_per_token": -7 / 5,
        "own_log_prob_per_token": -5 / 9,
        "answers_right": 1,
        "answers_own": 2,
        "answers_total": 2,
    }
    assert log_of().requests["divergent_tokens"].tolist() == [5, 0]


def test_of_one_tag():
    log = log_of()
    tags = sorted(set(log.requests["tag"].tolist()))
    parts = [quality_of(log, tag=tag) for tag in tags]
    whole = quality_of(log)
    for name in ("requests", "tokens", "num_divergences", "answers_right"):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)
    assert quality_of(log, tag="no such tag") is None


def test_what_is_unknown_of_one_request_is_unknown_of_all():
    drawn = replace(FIRST, divergences=-1, same_tokens=-1, same_start=-1)
    quality = quality_of(log_of(drawn))
    assert quality.num_divergences is quality.divergences_per_1000 is quality.text_agreement is None
    assert quality.log_prob_per_token == -7 / 5


def test_a_request_of_which_nothing_is_known_does_not_count():
    quality = quality_of(with_quality(by_hand(), {"r1": SECOND}))
    assert (quality.requests, quality.tokens, quality.answers_total) == (1, 1, 1)
    assert quality_of(by_hand()) is None
    assert {name: by_hand().requests[name].tolist() for name in QUALITY_FIELDS}["trunk_tokens"] == [-1, -1]


@pytest.mark.parametrize(
    ("meta", "lossy"),
    [({}, False), ({"lossless": False}, True), ({"lossless": True}, False), ({"lossy_steps": True}, True)],
    ids=str,
)
def test_who_is_lossy(meta, lossy):
    same = replace(SECOND, trunk_tokens=6, same_tokens=6, same_start=6, seen_tokens=6, scored_tokens=6)
    log = log_of(same)
    assert quality_of(replace(log, meta={**log.meta, **meta})).lossy is lossy


# -- tables


def compared(*logs):
    rows = tuple(replace(summarise_run(log), policy=f"policy {number}") for number, log in enumerate(logs))
    return SideBySide(meta=META, baseline=rows[0], rows=rows)


def test_columns_appear_where_a_policy_is_lossy():
    text = shown(quality_table(compared(by_hand(), log_of()).ranked()), width=220)
    for words in ("rejection rate", "20.0%", "diverg.", "333.3", "44.4%", "-1.400 (-0.556)", "1 (2) of 2"):
        assert words in text
    assert "log-lik.: of the tokens on record, at least 71.4% of a policy's; nothing is guessed" in text
    assert "same text: too high" in text  # the log by hand went back to the trunk once


def test_columns_stay_away_where_none_is():
    log = log_of(replace(SECOND, trunk_tokens=6, same_tokens=6))
    log.requests["divergent_tokens"][:] = np.zeros(2, dtype=int)
    assert quality_table(compared(by_hand(), log).ranked()) is None
    for table in (comparison_table(compared(by_hand(), log)), run_table(summarise_run(log))):
        text = shown(table)
        assert "diverg" not in text
        assert "rejec" not in text
        assert "log-lik" not in text


def test_answers_have_a_column_where_they_are_expected():
    unasked = [replace(row, right=-1, trunk_right=-1) for row in (FIRST, SECOND)]
    assert "answers" not in shown(quality_table(compared(log_of(*unasked)).ranked()))
    assert quality_of(log_of(*unasked)).answers_total is None


def test_a_run_says_it_in_a_sentence():
    summary = summarise_run(log_of())
    line = quality_line(summary.quality)
    assert line == (
        "2 texts beside the target's own: 2 divergences, 333.3 per 1,000 tokens; 44.4% of positions the same, 33.3% "
        "before the first difference; log-likelihood per token -1.400 (-0.556); answers right 1 (2) of 2"
    )
    assert f"rejection rate 20.0% {line}" in shown(run_table(summary))
    drawn = [replace(row, divergences=-1, same_tokens=-1, same_start=-1) for row in (FIRST, SECOND)]
    text = shown(run_table(summarise_run(log_of(*drawn))))
    assert "where two of them part means nothing" in text
    assert "divergences," not in text

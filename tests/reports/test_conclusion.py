"""Whatever the last line says is true of the rows."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.reports import LevelSummary, Quality, SideBySide, summarise_run
from paceline.reports.comparison import conclusion

from .test_summary import by_hand

MEMBERS = ("ngram", "draft", "slim", "target")
QUALITY = Quality(
    lossy=True,
    requests=2,
    tokens=7,
    known_share=1.0,
    num_divergences=1,
    divergences_per_1000=12.5,
    text_agreement=0.5,
    prefix_agreement=0.5,
    log_prob_per_token=-1.0,
    own_log_prob_per_token=-1.0,
    answers_right=None,
    answers_own=None,
    answers_total=None,
)


def row_of(policy, seconds, *, tokens=1000, calls=400, judged=800, accepted=500, lossy=False):
    """A run by the seconds of each member; whoever took any below the target drafted."""
    total = sum(seconds)
    levels = tuple(
        LevelSummary(
            name=name,
            forwards=1,
            duration_s=taken,
            share_of_seconds=taken / total,
            drafted=10 if taken and name != "target" else 0,
            judged=judged if name == "target" else 0,
            accepted=accepted if name == "target" else 0,
            refused=0,
            trees=0,
            own=0,
        )
        for name, taken in zip(MEMBERS, seconds, strict=True)
    )
    return replace(
        summarise_run(by_hand()),
        policy=policy,
        output_tokens=tokens,
        duration_s=total,
        output_tokens_per_s=tokens / total,
        target_calls_per_token=calls / tokens,
        draft_acceptance_rate=accepted / judged if judged else 0.0,
        levels=levels,
        quality=QUALITY if lossy else None,
    )


PLAIN = row_of("plain", (0.0, 0.0, 0.0, 10.0), calls=1000, judged=0, accepted=0)
SECONDS = st.one_of(st.just(0.0), st.floats(0.01, 10.0))


@st.composite
def comparisons(draw):
    names = draw(st.permutations(["draft:4/target", "slim:4/target", "draft:3/slim:6/target", "adaptive", "via-sd"]))
    rows, repeats = [], {}
    for name in names[: draw(st.integers(1, 5))]:
        judged = draw(st.integers(1, 3000))
        row = row_of(
            name,
            (0.0, draw(SECONDS), draw(SECONDS), draw(st.floats(0.1, 12.0))),
            calls=draw(st.integers(1, 1000)),
            judged=judged,
            accepted=draw(st.integers(0, judged)),
            lossy=name == "via-sd",
        )
        rows.append(row)
        if draw(st.booleans()):
            factors = draw(st.lists(st.floats(0.8, 1.2), min_size=1, max_size=4))
            repeats[name] = tuple(
                replace(row, output_tokens_per_s=row.output_tokens_per_s * factor) for factor in factors
            )
    return SideBySide(meta={}, baseline=draw(st.sampled_from([PLAIN, None])), rows=tuple(rows), repeats=repeats)


def bounds(comparison, row):
    interval = comparison.output_tokens_per_s_interval(row)
    return (row.output_tokens_per_s,) * 2 if interval is None else interval.bounds


def seconds_of(row, member):
    return row.levels[MEMBERS.index(member)].duration_s


def share_of(row, member):
    return row.levels[MEMBERS.index(member)].share_of_seconds


POLICY = r"([a-z:\d/-]+)"


@given(comparison=comparisons())
def test_what_it_says_is_true(comparison):
    line = conclusion(comparison)
    rows = {row.policy: row for row in comparison.ranked()}
    best = max(rows.values(), key=comparison.output_tokens_per_s)
    tied = {
        name
        for name, row in rows.items()
        if row is not best and bounds(comparison, row)[1] >= bounds(comparison, best)[0]
    }
    slower = [name for name in rows if name != best.policy and name not in tied]

    (named,) = re.match(rf"best: {POLICY}, ", line).groups()
    assert comparison.output_tokens_per_s(rows[named]) == comparison.output_tokens_per_s(best)
    said = re.search(r"; ([^;]*) cannot be told apart", line)
    assert set(re.findall(POLICY + r" \(", said[1]) if said else ()) == tied
    assert ("(lossy, 12.5" in line) == (best.policy == "via-sd")
    if best.policy == "via-sd" and len(rows) > 1:
        assert re.search(rf"best of the lossless: {POLICY},", line)[1] == list(rows)[1]

    check_reason(line, comparison, rows, best, tied, slower)


def check_reason(line, comparison, rows, best, tied, slower):
    loser = None
    if found := re.search(rf"(chains|policies) with (\w+) lose here because in the fastest of them, {POLICY} \(", line):
        kind, member, loser = found.groups()
        users = [name for name, row in rows.items() if seconds_of(row, member)]
        assert len(users) > 1
        assert set(users) <= set(slower)
        assert loser == users[0]
        assert kind == "policies" or all("/" in name for name in users)
    elif found := re.search(rf"{POLICY} \([^)]*\) loses here because (\w+) (?:takes|and the others)", line):
        loser, member = found.groups()
        assert [name for name, row in rows.items() if seconds_of(row, member)] == [loser]
    elif found := re.search(rf"more of (\w+) does not pay: in {POLICY} \(", line):
        member, loser = found.groups()
        assert share_of(rows[loser], member) > share_of(best, member)
    elif found := re.search(rf"drafting does not pay here: in {POLICY} \(", line):
        loser = found[1]
        assert not any(level.drafted for level in best.levels)
        assert any(level.drafted for level in rows[slower[0]].levels)
        assert not tied
        assert loser == slower[0]
    elif found := re.search(rf"next is {POLICY} \(", line):
        loser = found[1]
        assert loser == slower[0]
    if loser is None:
        assert " take" not in line
        assert "is called" not in line
        return
    assert loser in slower
    check_figures(line, comparison, rows[loser], best)


def check_figures(line, comparison, loser, best):
    figures = [
        (r"(\w+) takes (\d+)% of the seconds", lambda who, share: f"{share_of(loser, who):.0%}" == f"{share}%"),
        (r"is called ([\d.]+) times a token", lambda calls: f"{loser.target_calls_per_token:.3f}" == calls),
        (r", in \S+ ([\d.]+) times", lambda calls: f"{best.target_calls_per_token:.3f}" == calls),
        (r"the target keeps (\d+)%", lambda kept: f"{loser.draft_acceptance_rate:.0%}" == f"{kept}%"),
    ]
    for pattern, holds in figures:
        for found in re.finditer(pattern, line):
            assert holds(*found.groups()), (pattern, line)
    more = {
        name: seconds_of(loser, name) / loser.output_tokens - seconds_of(best, name) / best.output_tokens
        for name in MEMBERS
    }
    saved = 1 - loser.target_calls_per_token / best.target_calls_per_token
    if found := re.search(
        r"(\w+)( and the others below the target)? takes? ([\d.]+) ms a token more than in (\S+) and (.*)", line
    ):
        member, others, taken, named, bought = found.groups()
        assert more[member] == max(seconds for name, seconds in more.items() if name != "target")
        assert sum(more.values()) - more["target"] > more["target"]
        assert named == best.policy
        assert saved >= share_of(loser, member) - 0.1
        below = {name: seconds for name, seconds in more.items() if name != "target" and seconds > 0}
        assert bool(others) == (len(below) > 1)
        assert f"{1e3 * sum(below.values()):.2f}" == taken
        kept = re.match(r"saves? the target (nothing|([\d.]+) ms)", bought)
        assert kept[1] == ("nothing" if more["target"] >= 0 else f"{-1e3 * more['target']:.2f} ms")
    elif found := re.search(r"(\w+) takes (\d+)% of the seconds and (.*)", line):
        member, _, bought = found.groups()
        assert more[member] == max(seconds for name, seconds in more.items() if name != "target")
        assert sum(more.values()) - more["target"] > more["target"]
        if shown := re.match(rf"saves only (\d+)% of {POLICY}'s target calls", bought):
            assert shown[2] == best.policy
            assert abs(saved - int(shown[1]) / 100) <= 0.005 + 1e-9
            assert saved < share_of(loser, member)
        elif "no less often" in bought:
            assert saved <= 0
        else:
            assert bought.startswith("saves less than 1%")
            assert 0 < saved < 0.005
    else:
        assert more["target"] >= sum(more.values()) - more["target"]
    if "is called" in line and "times a token" in line:
        assert loser.target_calls_per_token > best.target_calls_per_token


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (
            [
                row_of("draft:3/mid:6/target", (0.0, 1.0, 0.0, 4.0), calls=200),
                row_of("slim:4/target", (0.0, 0.0, 6.0, 3.8), calls=190),
                row_of("draft:3/slim:6/target", (0.0, 0.5, 4.0, 3.5), calls=176),
            ],
            "best: draft:3/mid:6/target, 2.00x; chains with slim lose here because in the fastest of them, "
            "draft:3/slim:6/target (1.25x), slim takes 50% of the seconds and saves only 12% of draft:3/mid:6/target's "
            "target calls",
        ),
        (
            [row_of("draft:4/target", (0.0, 8.0, 0.0, 5.0), calls=500, accepted=100)],
            "best: plain, 1.00x; drafting does not pay here: in draft:4/target (0.77x), the fastest of the others, "
            "draft takes 62% of the seconds and saves only 50% of plain's target calls; the target keeps 12% of what "
            "it is given",
        ),
        (
            [row_of("draft:4/target", (0.0, 1.0, 0.0, 4.0))],
            "best: draft:4/target, 2.00x; next is plain (1.00x): the target is called 1.000 times a token, in "
            "draft:4/target 0.400 times",
        ),
        ([PLAIN], "best: plain, 1.00x"),
    ],
)
def test_in_words(rows, told):
    assert conclusion(SideBySide(meta={}, baseline=PLAIN, rows=tuple(rows))) == told


def test_two_whose_intervals_meet_cannot_be_told_apart():
    first, second = row_of("adaptive", (0.0, 1.0, 0.0, 4.0)), row_of("draft:4/target", (0.0, 1.0, 0.0, 4.1))
    repeats = {"adaptive": tuple(replace(first, output_tokens_per_s=speed) for speed in (190.0, 205.0))}
    line = conclusion(SideBySide(meta={}, baseline=PLAIN, rows=(second, first), repeats=repeats))
    assert line.startswith(
        "best: adaptive, 1.98x; draft:4/target (1.96x) cannot be told apart from it: the intervals overlap; "
        "next is plain"
    )
    line = conclusion(SideBySide(meta={}, baseline=None, rows=(first, replace(first, policy="other"))))
    assert line == "best: adaptive, 200.0 tokens/s; other (200.0 tokens/s) cannot be told apart from it: equally fast"


def test_what_cannot_be_chosen_is_not_the_best():
    rows = (row_of("oracle-chain", (0.0, 1.0, 0.0, 1.0)), row_of("draft:4/target", (0.0, 1.0, 0.0, 4.0)))
    line = conclusion(SideBySide(meta={}, baseline=PLAIN, rows=rows), ruled_out=["oracle-chain"])
    assert line.startswith("best: draft:4/target, 2.00x")
    assert "oracle" not in line


def test_no_member_is_blamed_whose_seconds_may_have_cost_nothing():
    best, loser = row_of("draft:4/target", (0.0, 1.0, 0.0, 4.0)), row_of("pipespec", (0.0, 1.0, 6.0, 4.0))
    beside = replace(loser, duration_s=7.0, output_tokens_per_s=1000 / 7.0)
    assert "slim" in conclusion(SideBySide(meta={}, rows=(best, loser), baseline=PLAIN))
    assert "slim" not in conclusion(SideBySide(meta={}, rows=(best, beside), baseline=PLAIN))

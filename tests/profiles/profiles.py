"""Profiles made up by a formula, so that what a profile says can be known beforehand."""

from datetime import UTC, datetime

from paceline.traces.profile import (
    AfterAway,
    BesideForwards,
    DecideSeconds,
    MeasuredForward,
    Profile,
    ProfiledMember,
    ProfileMeta,
    Reload,
    SmoothForward,
    UnevenRows,
)

ROWS, NEW_TOKENS, CONTEXTS = (1, 2, 4), (1, 3, 9), (0, 50, 200)
# The first takes the same for every request; the second much once, and little for each.
CHAIN = DecideSeconds.of_step(1e-5)
ADAPTIVE = DecideSeconds(batches=(1, 2, 4), seconds=(3e-5, 4e-5, 6e-5))
NO_RELOAD = Reload(new_tokens=(1,), away_s=(1.0,), longer_s=((0.0,),))


def seconds_of(rows, new_tokens, context, *, once=1e-3):
    """Bilinear in what a profile is linear in between its shapes: tokens of a row, then rows."""
    return once + rows * (1e-4 * new_tokens + 1e-6 * context)


def made_member(name, **changes):
    return ProfiledMember(
        **{
            "name": name,
            "parameters": 1000,
            "dtype": "float32",
            "forward": "fused",
            "smooth": SmoothForward(intercept_s=7.0, held_out_error=0.05),
            "uneven": UnevenRows(),
            "after_away": tuple(
                AfterAway(new_tokens=1, away_s=away_s, seconds=1e-3, spread=0.01) for away_s in (0.0, 0.001)
            ),
            "reload": NO_RELOAD,
            "drafting": BesideForwards(per_op_s=1e-3, per_row_s=1e-4, per_token_s=1e-5),
            "verifying": BesideForwards(per_op_s=2e-3, per_row_s=2e-4, per_token_s=2e-5),
            **changes,
        }
    )


def made_profile(*, names=("draft", "target"), processor="a processor", parameters=1000, **changes):
    shapes = tuple(
        MeasuredForward(name, rows, new, context, seconds_of(rows, new, context, once=1e-3 * (place + 1)), 0.01)
        for place, name in enumerate(names)
        for rows in ROWS
        for new in NEW_TOKENS
        for context in CONTEXTS
    )
    meta = ProfileMeta(
        **{
            "pool": "tiny",
            "members": tuple(made_member(name, parameters=parameters) for name in names),
            "processor": processor,
            "device": "cpu",
            "threads": 1,
            "torch": "2",
            "transformers": "5",
            "paceline": "0",
            "cache": "slots",
            "sampling": "greedy",
            "measured_at": datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
            "drift": 0.01,
            "lookup": BesideForwards(per_op_s=1e-5),
            "decide_s": {"Chain": CHAIN, "Adaptive": ADAPTIVE},
            **changes,
        }
    )
    return Profile(meta=meta, shapes=shapes)

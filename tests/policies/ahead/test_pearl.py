"""Options of policies that work ahead: each has its effect, or is refused by name."""

import pytest
from paceline.policies import make_policy
from paceline.policies.by_name import PolicySpecError
from paceline.policies.check import check_pool

POOL = check_pool()
COSTS = "costs=draft:1/mid:2/slim:4/target:6"


@pytest.mark.parametrize("name", ["pearl", "dsi"])
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("window=3,start=2", "start does nothing beside window=3, got 2"),
        ("window=3,most=5", "most does nothing beside window=3, got 5"),
        ("window=3,memory=5", "memory does nothing beside window=3, got 5"),
        (f"window=3,{COSTS}", "costs does nothing beside window=3, got 'draft:1/mid:2/slim:4/target:6'"),
        (f"{COSTS},memory=5", f"memory does nothing beside {COSTS}, got 5"),
        (f"{COSTS},start=2", f"start does nothing beside {COSTS}, got 2"),
        ("window=0", r"window must be in \[1, 1,000,000\], got 0"),
        ("most=0", r"most must be in \[1, 1,000,000\], got 0"),
        ("start=0", r"start must be in \[1, most=8\], got 0"),
        ("start=5,most=4", r"start must be in \[1, most=4\], got 5"),
        ("memory=0", "memory must be >= 1, got 0"),
    ],
)
def test_an_option_without_effect_is_refused_by_name(name, options, error):
    with pytest.raises(PolicySpecError, match=error):
        make_policy(f"{name},{options}", POOL)


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("pearl", 4),
        ("pearl,most=2", 2),
        ("dsi,start=7", 7),
        ("pearl,window=12", 12),
        (f"pearl,{COSTS}", 6),
        (f"pearl,most=3,{COSTS}", 3),
        (f"pearl,draft=ngram,start=3,{COSTS}", 3),  # a lookup costs nothing, which gives no ratio
        (f"dsi,draft=slim,{COSTS}", 2),  # 6 / 4, rounded up
    ],
)
def test_the_first_window(text, window):
    assert make_policy(text, POOL).window == window

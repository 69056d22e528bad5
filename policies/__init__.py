"""The policies: the algorithms, their parts, and the policies by name.

Standard library and numpy only; imports neither traces nor either world.
"""

from ..base.names import imported_when_asked

MODULES = {
    "About": ".about",
    "Band": "..decoding.rules",
    "CheckReport": ".check",
    "Commit": "..decoding.steps",
    "ConfidenceBelow": "..decoding.rules",
    "Deferral": "..decoding.rules",
    "Divergence": "..decoding.rules",
    "Draft": "..decoding.steps",
    "DraftTree": "..decoding.trees",
    "DynamicTree": "..decoding.trees",
    "Ensemble": "..decoding.rules",
    "EntropyAbove": "..decoding.rules",
    "Equilibrium": "..decoding.rules",
    "Exact": "..decoding.rules",
    "Facts": "..decoding.rules",
    "FixedTree": "..decoding.trees",
    "Fuzzy": "..decoding.rules",
    "GapBelow": "..decoding.rules",
    "Member": "..decoding.pool",
    "Observable": ".about",
    "Observation": "..decoding.seen",
    "Outcome": "..decoding.steps",
    "Overlap": "..decoding.steps",
    "PendingToken": "..decoding.seen",
    "Policy": "..decoding.legal_steps",
    "PolicyError": "..decoding.steps",
    "PolicySpec": ".by_name",
    "PolicySpecError": ".by_name",
    "Pool": "..decoding.pool",
    "ProductBelow": "..decoding.rules",
    "Ratio": "..decoding.rules",
    "RefusalAbove": "..decoding.rules",
    "RoundChoice": ".round_choice",
    "RoundHistory": ".round_choice",
    "Rule": "..decoding.rules",
    "Signal": "..decoding.rules",
    "Step": "..decoding.steps",
    "Stop": "..decoding.rules",
    "SurvivalBelow": "..decoding.rules",
    "Typical": "..decoding.rules",
    "Verify": "..decoding.steps",
    "Vouched": "..decoding.rules",
    "check_policy": ".check",
    "make_policy": ".by_name",
    "tree_shape": "..decoding.trees",
}

__all__ = [*MODULES]
__getattr__ = imported_when_asked(__name__, MODULES)

"""What decides: the algorithms, what they are built from, and the policies by name.

Standard library and numpy only; imports neither traces nor either world.
"""

from ..lazy_names import imported_when_asked

MODULES = {
    "About": ".about",
    "Band": "..decoding.rules.acceptance",
    "CheckReport": ".check",
    "Commit": "..decoding.contract",
    "ConfidenceBelow": "..decoding.rules.draft_stops",
    "Deferral": "..decoding.rules.cascade_deferral",
    "Divergence": "..decoding.rules.acceptance",
    "Draft": "..decoding.contract",
    "EntropyAbove": "..decoding.rules.draft_stops",
    "Equilibrium": "..decoding.rules.equilibrium",
    "Exact": "..decoding.rules.acceptance",
    "Facts": "..decoding.rules.facts",
    "Fuzzy": "..decoding.rules.acceptance",
    "GapBelow": "..decoding.rules.draft_stops",
    "Member": "..decoding.pool",
    "Observable": ".about",
    "Observation": "..decoding.observation",
    "Outcome": "..decoding.contract",
    "Overlap": "..decoding.contract",
    "PendingToken": "..decoding.observation",
    "Policy": "..decoding.policy",
    "PolicyError": "..decoding.contract",
    "PolicySpec": ".spec",
    "PolicySpecError": ".registry",
    "Pool": "..decoding.pool",
    "ProductBelow": "..decoding.rules.draft_stops",
    "Ratio": "..decoding.rules.acceptance",
    "RefusalAbove": "..decoding.rules.draft_stops",
    "Rule": "..decoding.rules.acceptance",
    "Signal": "..decoding.rules.signal",
    "Step": "..decoding.contract",
    "Stop": "..decoding.rules.draft_stops",
    "Typical": "..decoding.rules.acceptance",
    "Verify": "..decoding.contract",
    "Vouched": "..decoding.rules.acceptance",
    "check_policy": ".check",
    "make_policy": ".spec",
}

__all__ = [*MODULES]
__getattr__ = imported_when_asked(__name__, MODULES)

"""Whether policies can be built for any recording at all; one that cannot is a mistake in its name or its options."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ....policies.registry import PolicySpecError
from ....policies.spec import PolicySpec
from ....sim.recorded_pool import recorded_pool
from ....traces.forms import open_recording
from .field import default_field
from .fitted import needs_head


def check_buildable(specs: Sequence[PolicySpec], traces: Iterable[Path]) -> None:
    """Refuse a policy that was named and that no recording can be played with, before anything is played.

    One that some recordings cannot be played with is left out of their cells, and so are those of the default field and
    those that need a head which no recording could be found to fit to.

    Args:
        specs: the policies, with all their options.
        traces: folders of the recordings; without any, nothing is refused.

    Raises:
        PolicySpecError: with what the first recording says of the policy; one line.
        TraceFormatError: a recording breaks its format.
    """
    named = [spec for spec in specs if spec.label not in default_field() and not needs_head(spec)]
    if not named:
        return
    pools = [recorded_pool(open_recording(path)) for path in traces]
    for spec in named:
        refused: list[PolicySpecError] = []
        for pool in pools:
            try:
                spec.build(pool)
                break
            except PolicySpecError as error:
                refused.append(error)
        else:
            if refused:
                raise refused[0]

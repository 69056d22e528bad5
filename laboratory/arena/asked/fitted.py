"""What the arena gives to policies that must be fitted beforehand: a head, fitted to tuning recordings alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from ....policies.learned.specdec import SpecDec
from ....policies.spec import PolicySpec
from ....progress import tell
from ....studies.fitting.fit_head import fit_shared_head
from ....traces.forms import by_form, open_recording
from ....whole_files import write_whole
from .code_version import DIGITS, code_version
from .made_of import recording_version

FITTING = fit_shared_head.__module__
HEAD = "head"  # the option


def needs_head(spec: PolicySpec) -> bool:
    """Whether a policy must be given an acceptance head."""
    return spec.policy_class is SpecDec and HEAD not in spec.options


def with_heads(specs: Sequence[PolicySpec], tuning: Mapping[str, Path], work: Path) -> tuple[PolicySpec, ...]:
    """The policies, those that need a head with one that is fitted to recordings, under the names they have.

    Nothing is drawn: a head is the same for the same recordings. It is kept, and fitted anew where they, or the code
    that fits, are others. Recordings without probabilities do not count; without any other, policies stay as they are.

    Args:
        specs: as they were named.
        tuning: folders of the recordings that may be fitted to, by name.
        work: where heads are kept, in `heads`.

    Raises:
        TraceFormatError: a recording breaks its format.
    """
    if not any(map(needs_head, specs)):
        return tuple(specs)
    known = {name: path for name, path in tuning.items() if _has_probabilities(path)}
    if not known:
        return tuple(specs)
    head = str(_head(list(known.values()), work))
    tell(f"acceptance heads are fitted to {', '.join(known)}")
    return tuple(replace(spec, options={**spec.options, HEAD: head}) if needs_head(spec) else spec for spec in specs)


def given_to(spec: PolicySpec) -> tuple[tuple[str, str], ...]:
    """Options of a policy that its name does not say, by name."""
    said = PolicySpec.parse(spec.label).options
    return tuple((name, str(value)) for name, value in spec.options.items() if name not in said)


def _has_probabilities(path: Path) -> bool:
    return by_form(open_recording(path), tries=lambda _: True, rounds=lambda _: False)


def _head(paths: Sequence[Path], work: Path) -> Path:
    """The file of a head that is fitted to these recordings."""
    parts = [code_version([FITTING]), *map(recording_version, paths)]
    made_of = blake2b(" ".join(parts).encode(), digest_size=DIGITS // 2).hexdigest()
    file = work / "heads" / f"{made_of}.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, fit_shared_head(paths).head.to_json())
    return file

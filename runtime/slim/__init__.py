"""Slim verifiers: which layers of the target to leave out, searched offline, and written to the pool file.

Exports only what needs no torch, for the command line; `find_slims` is in its own module. May import the runtime's
pools, decode, prompts, timing and sampling, and policies; knows nothing of the command line.
"""

from .frontier import VERIFIED_TOKENS, Frontier, SlimFound
from .masks import slim_name
from .pool_text import add_slims, check_names

__all__ = ["VERIFIED_TOKENS", "Frontier", "SlimFound", "add_slims", "check_names", "slim_name"]

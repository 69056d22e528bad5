"""What `--forward` takes is what the runtime runs; the command line names it without loading torch."""

from typing import get_args

from paceline.cli.models import ForwardOption
from paceline.runtime.forward_choice import KINDS


def test_the_option_names_every_kind():
    kinds, _ = get_args(ForwardOption)
    assert get_args(kinds) == KINDS

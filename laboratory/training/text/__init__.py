"""Texts that the small models are trained on: four generators and two readers of the standard library.

May import the standard library only.
"""

from .dialogue import make_dialogue
from .edits import make_edit
from .item import Item
from .stdlib_text import StdlibText, read_stdlib
from .translation import make_translation
from .word_problems import make_word_problem

__all__ = [
    "Item",
    "StdlibText",
    "make_dialogue",
    "make_edit",
    "make_translation",
    "make_word_problem",
    "read_stdlib",
]

"""Text and tokens: streaming, stop strings, and drafts between models with different tokenizers.

May import the tokenizers package, never torch or transformers; knows neither models nor requests.
"""

from .alignment import Alignment
from .stops import make_ending, text_before_stop
from .streaming import TextStream

__all__ = ["Alignment", "TextStream", "make_ending", "text_before_stop"]

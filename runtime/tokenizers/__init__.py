"""Text and tokens: streaming, stop strings, and drafts between models with different tokenizers.

May import the tokenizers package, never torch or transformers; knows neither models nor requests.
"""

from .alignment import Alignment
from .stop_strings import make_ending, text_before_stop
from .text_stream import TextStream

__all__ = ["Alignment", "TextStream", "make_ending", "text_before_stop"]

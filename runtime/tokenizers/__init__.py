"""Text and tokens: loading a tokenizer, streaming, stop strings, and drafts between models with different tokenizers.

May import the tokenizers and transformers packages, never torch; knows neither models nor requests.
"""

from .alignment import Alignment
from .loading import load_member_tokenizers, load_tokenizer
from .stops import make_ending, text_before_stop
from .streaming import TextStream

__all__ = ["Alignment", "TextStream", "load_member_tokenizers", "load_tokenizer", "make_ending", "text_before_stop"]

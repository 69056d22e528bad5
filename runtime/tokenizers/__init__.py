"""Text and tokens: streaming, stop strings, and drafts between models with different tokenizers.

May import the tokenizers package, never torch or transformers; knows neither models nor requests.
"""

"""Files of other engines as they lie there: JSON by the line, over many lines or as an event stream, and plain text.

Knows nothing of formats: yields objects and lines with their places, or raises TraceFormatError.
"""

"""Published tasks as prompts whose answers are known; needs no torch."""

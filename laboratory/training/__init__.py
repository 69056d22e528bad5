"""Training of small models from generated text, the standard library and a target's answers, on a CPU."""

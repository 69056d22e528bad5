"""A server that speaks OpenAI's HTTP over the models of a pool: what `paceline serve` starts.

The simulator's scheduler says who runs, the runtime runs it. May import all but cli and studies' commands.
"""

"""A server that speaks OpenAI's HTTP over the models of a pool: what `paceline serve` starts.

The simulator's scheduler chooses what runs, the runtime runs it. May import all except cli and studies' commands.
"""

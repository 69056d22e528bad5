"""The tiny pool whose profile tests share."""

from paceline.runtime.profiling.forwards import ShapeGrid

from ...tiny_models import random_prompts, tiny_pool_of_four

POOL = tiny_pool_of_four()
PROMPTS = random_prompts(6, seed=3)
GRID = ShapeGrid(rows=(1, 3, 6), new_tokens=(1, 2, 6, 14), context_tokens=(0, 20, 60), most_tokens=84, away_s=(0.001,))

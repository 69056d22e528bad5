"""How far apart rounding alone puts the logits of two ways to compute the same."""

import torch

# Largest difference of logits that rounding explains, as a share of the largest logit.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}

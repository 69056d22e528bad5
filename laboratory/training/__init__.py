"""Training of small pools of models from generated text and the standard library, on a CPU.

May import torch, transformers and the pool; nothing outside this folder needs it.
"""

"""A shed beside the house of paceline: the arena, experiments, training of small pools, what benchmarks share."""

"""The laboratory beside paceline: the arena, experiments, training of small pools, code shared by benchmarks."""

"""What is learned in a distillation: drafters, and what submodels have beside their weights; how each begins."""

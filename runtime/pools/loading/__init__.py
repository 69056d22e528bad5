"""What a pool file names, read: weights, whole or split over processes, and tokenizers."""

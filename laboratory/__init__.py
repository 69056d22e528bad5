"""A shed beside the house: experiments, and training of small pools. It may import all but the command line."""

"""Parts of `paceline experiment sharing`: workloads whose requests share text, and chains that serve them."""

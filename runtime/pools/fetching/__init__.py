"""Models that are published elsewhere than on a hub: which there are, how they come here, and where they then lie."""

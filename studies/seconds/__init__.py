"""What operations take on this machine, and how true the simulator's seconds are."""

"""Keys and values that moved: between replicas, and between devices and hosts."""

"""What stands on nothing of ours: errors that name the argument, files, names, the terminal."""

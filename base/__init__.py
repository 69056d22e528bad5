"""What imports nothing else of the package: errors that name the argument, files, names, the terminal."""

"""The runtime inside a program of its user: `model.generate(custom_generate=paceline.generate)`."""

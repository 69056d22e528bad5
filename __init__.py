"""paceline: replay recorded token acceptance to compare chains of models, and run the same policy on real ones."""

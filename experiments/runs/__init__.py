"""A run: its directory, its ending, and how it is resumed and reproduced."""

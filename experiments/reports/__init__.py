"""Tables, figures, pages and comparisons of runs."""

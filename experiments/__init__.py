"""Experiments: from a YAML config to a run directory with its figures and numbers."""

"""Benchmarks: one module each, all measured by `driver`."""

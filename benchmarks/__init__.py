"""Ours beside the references, in one run: `python -m benchmarks`."""

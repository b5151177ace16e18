"""Embedding libraries side by side; `benchmarks/run.py` is the command."""

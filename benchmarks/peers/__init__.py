"""Competitors of the decode kernel, each behind the same small adapter (see adapter.py)."""

"""Decode attention on a CPU by other libraries, over the values of one problem of cpu_grid.py."""

"""Benchmarks of the decode kernels and of the competitors they are compared with."""

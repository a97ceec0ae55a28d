"""Benchmarks: sources of any size, interleaved timings, memory, and the full Switch-Base."""

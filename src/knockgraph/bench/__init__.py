"""Benchmarks that compare variants on the same work in one run."""

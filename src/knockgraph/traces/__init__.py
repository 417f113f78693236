"""Traces of ``torch.profiler``: reading, self time, comparison and display."""

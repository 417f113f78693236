"""Traces of ``torch.profiler``: read, summed up as self time, compared, and shown."""

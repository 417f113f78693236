"""Explaining the time: phase timers that add up to the wall clock, the three runs, comparisons and traces."""

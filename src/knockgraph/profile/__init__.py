"""Where the time goes: phase timers that add up to the wall-clock time, the three runs, comparisons and traces."""

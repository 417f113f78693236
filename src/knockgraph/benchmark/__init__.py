"""How well models predict: screens × models × splits × seeds, run, kept, and compared with intervals."""

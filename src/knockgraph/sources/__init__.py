"""Where cell graphs and screens come from: one file per source."""

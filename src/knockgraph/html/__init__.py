"""Self-contained HTML pages and the plots in them."""

"""Pictures and self-contained HTML."""

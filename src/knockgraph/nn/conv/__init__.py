"""Convolutions, each written once for any number of relations."""

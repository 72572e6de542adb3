"""Figures, each beside its baseline in the same run; see bench/README.md for the method."""

"""Finds the rows of a batch that each publisher matches: predicates, the router, and the runs it makes."""

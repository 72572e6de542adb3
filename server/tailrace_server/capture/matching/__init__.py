"""Which rows of a batch each publisher wants: predicates, the router, and the runs it finds."""

"""A made-up shop and the changes of its database, for the demo, tests and benches."""

"""One catalog as its writer knows it: columns, last images, due rows, source positions, and the commit."""

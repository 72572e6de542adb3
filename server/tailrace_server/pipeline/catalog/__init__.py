"""The writer's state of one catalog: columns, last images, due rows, source positions, and the commit."""

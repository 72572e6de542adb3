"""The output of a source: changes with their images, and the interface that every source implements."""

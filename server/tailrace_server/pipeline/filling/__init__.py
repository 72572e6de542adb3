"""Whole images: what a source left out of images, from the last image of the row."""

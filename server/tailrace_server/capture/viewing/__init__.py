"""Views in criteria: what a view's name stands for, and what of its entity type's changes is the view's."""

"""Views in criteria: the meaning of a view's name, and the changes that belong to the view."""

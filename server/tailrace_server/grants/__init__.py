"""Rights of a caller to rows and columns of tables and views, and their application to requests."""

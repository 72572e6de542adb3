"""Views and change tables of a catalog, kept in its log, so that every process that opens it knows them."""

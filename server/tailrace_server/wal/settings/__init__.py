"""Settings of a catalog that are kept in its log, so that every process that opens it knows them."""

"""tailrace: subscribe to the changes of tables that a pipeline maintains."""

"""The ingest of transactions: batches of a source's lines become whole transactions in the log."""

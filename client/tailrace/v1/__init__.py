"""Messages and stubs generated from proto/tailrace/v1 by `make proto`; never edited."""

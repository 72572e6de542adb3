"""The Debezium source: decodes Debezium's JSON messages, one in each line, to changes."""

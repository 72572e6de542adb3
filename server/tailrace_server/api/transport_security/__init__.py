"""Transport security of both listeners: the files of TLS as they change, and what clients are called."""

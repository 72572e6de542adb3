"""Transport security of both listeners: the files of TLS, certificates of clients, and trusted proxies."""

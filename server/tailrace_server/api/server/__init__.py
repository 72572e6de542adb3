"""The HTTP server of the process: the listener above all HTTP faces, its middleware, and the metrics."""

"""SQL over HTTP."""

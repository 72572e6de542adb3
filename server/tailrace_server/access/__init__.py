"""Access to the server: authentication, grants, quotas and the audit."""

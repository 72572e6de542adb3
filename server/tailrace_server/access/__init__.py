"""The doors: authentication, grants, quotas and the audit."""

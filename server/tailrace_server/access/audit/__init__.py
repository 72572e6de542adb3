"""The audit: admissions, refusals, requests, and changes of the rules."""

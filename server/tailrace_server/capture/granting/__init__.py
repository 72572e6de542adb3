"""What is granted, applied: to criteria, to captures and to schemas."""

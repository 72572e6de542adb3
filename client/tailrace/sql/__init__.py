"""SQL over a catalog's log: answers as rows or in Arrow, and polls that cover every version."""

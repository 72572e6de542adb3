"""Output on stdout: captures in their forms, the writer of lines, and summaries of logs."""

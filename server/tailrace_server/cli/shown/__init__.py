"""What stands on stdout: captures in their forms, how the lines get there, and logs at a glance."""

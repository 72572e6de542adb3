"""Shared by all commands: options, times, signals, errors, and captures as lines of output."""

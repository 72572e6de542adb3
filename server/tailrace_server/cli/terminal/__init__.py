"""Parts that all commands share: options, times, signals, errors, and captures as lines of output."""

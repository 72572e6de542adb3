"""Resources that the engine shares: settings, memory, turns of the event loop, threads, disk; and figures."""

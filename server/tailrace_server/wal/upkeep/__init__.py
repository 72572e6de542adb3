"""Work that keeps a log small and sound: compaction, retention, verification, inspection."""

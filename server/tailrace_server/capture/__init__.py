"""The capture engine: from published record batches to every subscription."""

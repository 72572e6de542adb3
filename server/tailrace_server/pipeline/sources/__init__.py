"""Sources: each decodes lines to changes, in a folder of its own; `input.source` is their interface."""

"""The faces: each turns a subscription into one protocol."""

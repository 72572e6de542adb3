"""The faces, which serve subscriptions and reads over one protocol each, and the parts that all faces share."""

"""The faces: each serves subscriptions and reads over one protocol; and the parts that all faces share."""

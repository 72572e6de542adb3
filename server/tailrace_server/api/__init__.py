"""The faces, each of which serves subscriptions and reads over one protocol, and the parts that they share."""

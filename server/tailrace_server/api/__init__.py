"""The faces, each of which turns subscriptions and reads into one protocol; here is what all faces share."""

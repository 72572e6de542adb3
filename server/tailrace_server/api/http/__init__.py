"""The HTTP listener that both HTTP faces share: protocol, names, origins, compression."""

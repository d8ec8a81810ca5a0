"""Trueup's common ground: contracts (pure) and the runtime every service is an instance of."""

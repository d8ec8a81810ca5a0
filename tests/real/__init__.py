"""The stand-ins and the adapters held to the real systems; run by `make test-real`, never by `make test`."""

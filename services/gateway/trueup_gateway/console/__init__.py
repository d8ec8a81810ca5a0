"""The operator console: pages for people over the public HTTP contract, and nothing that the contract cannot do."""

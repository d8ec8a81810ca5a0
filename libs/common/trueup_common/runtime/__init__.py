"""Runtime: the one loop and its ports. The only place where a service touches the clock, the bus and the database."""

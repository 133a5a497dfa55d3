"""One file a server dialect: bodies, reading of events, metric names. No I/O, no clock."""

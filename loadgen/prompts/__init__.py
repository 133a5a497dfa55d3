"""One file a prompt source."""

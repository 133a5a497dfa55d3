"""One file a report format; the file's name is its key."""

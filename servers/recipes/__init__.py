"""One file an engine set-up; the file's name, with dashes, is its key."""

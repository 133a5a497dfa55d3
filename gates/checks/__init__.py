"""One file a check; the file's name is its key in plans and findings."""

"""The concepts of a network as a page to look at, doubt and rename: a folder of files that opens from disk."""

"""From a network to a program: packed bits, integers, and files that other runtimes read."""

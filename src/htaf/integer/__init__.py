"""Integer programs: a network of exact steps of integers alone, and what is made of it."""

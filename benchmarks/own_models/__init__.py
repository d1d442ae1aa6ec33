"""Fifteen models that are not of this library, each trained by a loop of its own: what the shortest way of htaf brings."""

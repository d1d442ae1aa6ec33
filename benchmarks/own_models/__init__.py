"""Sixteen models that are not of this library, each trained by its own loop: what the shortest way of htaf brings."""

"""Concepts on any embedding: a scikit-learn classifier whose decisions are sums over bits of a feature matrix."""

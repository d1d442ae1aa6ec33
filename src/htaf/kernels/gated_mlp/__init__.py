"""A gated MLP whose gates are 0 or 1, for one token or a few: closed gates cost neither their row of up nor of down."""

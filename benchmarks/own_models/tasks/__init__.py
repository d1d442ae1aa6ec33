"""A file a task; `make(seed)` poses it."""

NAMES = (
    "mixer",
    "waves",
    "shapes",
    "autoencoder",
    "cartpole",
    "graph",
    "text",
    "forecast",
    "anomaly",
    "tabular",
    "resnet",
    "motifs",
    "points",
    "ratings",
    "keypoints",
    "audio",
)

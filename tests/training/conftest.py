"""htaf repairs torchvision beside a CPU-only torch: it must be imported before timm, torchvision and transformers."""

import htaf  # noqa: F401

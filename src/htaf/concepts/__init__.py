"""What the bits of an implicit concept bottleneck model mean: extracted, scored, grouped, named, flipped."""

"""Standard layouts in, arrays out: tables, images and text."""

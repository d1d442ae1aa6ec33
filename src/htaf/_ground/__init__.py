"""What every part stands on: errors, files, the console, compatibility, names."""

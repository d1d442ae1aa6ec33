"""Recipes, one training and many: the rooms that need lightning."""

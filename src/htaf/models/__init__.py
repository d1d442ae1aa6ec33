"""Networks that take their activation as an argument, one instance a site."""

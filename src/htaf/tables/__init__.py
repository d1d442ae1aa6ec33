"""Tables: estimators, what a network says about its columns, and the report."""

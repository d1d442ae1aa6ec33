"""Tables: estimators, rules and the report."""

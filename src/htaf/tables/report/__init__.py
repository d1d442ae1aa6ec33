"""The report of a finished run of a table: its figures as JSON, and a page of one file."""

"""What the users of a search feel."""

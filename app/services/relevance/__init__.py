"""What the users of a search feel: candidates in a better order, and advice."""

"""Models of the compatible protocols: their ids, and plain names for them."""

"""What a translation costs over HTTP, beside the matrix product and beside an empty request."""

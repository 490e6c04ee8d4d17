"""Files of vectors, translated beside the service."""

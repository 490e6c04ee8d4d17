"""The queue of jobs, and the workers that run them."""

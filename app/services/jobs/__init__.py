"""Jobs: submitting, running and leasing them."""

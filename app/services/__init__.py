"""Use cases that the API and the workers share. They know no HTTP."""

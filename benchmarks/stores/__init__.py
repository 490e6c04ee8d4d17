"""The same rows through every connector to a vector store."""

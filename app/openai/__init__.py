"""The routes of OpenAI's API and of reranking."""

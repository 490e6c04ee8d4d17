"""Models that run on other machines, behind the OpenAI API."""

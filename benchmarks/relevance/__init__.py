"""What users feel: relevance judged by people, of old, new and translated vectors, over HTTP."""

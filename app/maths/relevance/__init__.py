"""What users feel: ranked results, human judgements, and the fusion of old and new scores."""

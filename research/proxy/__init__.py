"""Whether the similarity of a model's space to a good model's says how good the model is."""

"""Functions from inputs to vectors. Heavy libraries are imported inside loaders."""

"""What a GPU is worth: every row of docs/results/gpu.md, on a GPU or on the CPU."""

"""Heads in ONNX files, which run in processes of their own."""

"""Heads in ONNX files, which run in separate processes."""

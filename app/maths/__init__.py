"""Pure functions on tensors, without IO, logging or global state. Fits use float64, applications
float32.
"""

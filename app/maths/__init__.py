"""Pure functions on tensors, without IO, logging or global state. Fitting uses float64; applying uses float32."""

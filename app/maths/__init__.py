"""Pure functions on tensors: no IO, no logging, no globals. Fitting is float64, applying float32."""

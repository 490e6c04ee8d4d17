"""The quality of translations: metrics, estimates, intervals, estimates and confidence."""

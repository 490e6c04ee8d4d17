"""The quality of translations: metrics, estimates, intervals, promises and confidence."""

"""How good a translation is: metrics, estimates, intervals, promises and confidence."""

"""`anchorage doctor`: checks of a deployment."""

"""Which items should be anchors."""

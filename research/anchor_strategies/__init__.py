"""Which items should be anchors, where they should come from, and how coarse relative vectors may
be.
"""

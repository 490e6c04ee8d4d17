"""How much of the gap between keeping an old index and re-embedding it 300 anchors can recover."""

"""How cost grows with vectors, anchors, dimensions and clients, beside what a
translation replaces.
"""

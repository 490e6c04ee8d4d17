"""How cost grows with vectors, anchors, dimensions and clients, compared with what a
translation replaces.
"""

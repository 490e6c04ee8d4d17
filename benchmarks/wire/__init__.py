"""What a translation costs over HTTP, compared with the matrix product and with an
empty request.
"""

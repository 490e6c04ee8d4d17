"""How well translations keep neighbours, compared with peers, and whether reports promise what is
then measured.
"""

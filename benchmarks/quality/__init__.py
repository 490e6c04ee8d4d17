"""How well translations keep neighbours, beside peers, and whether reports promise what is then
measured.
"""

"""How well translations keep neighbours, compared with peers."""

"""Kinds of stores: what the contract suite needs of each."""

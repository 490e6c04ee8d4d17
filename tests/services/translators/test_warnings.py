"""Warnings about whole answers, from the anchors alone."""

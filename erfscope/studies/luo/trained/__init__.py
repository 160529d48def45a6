"""Nets that are trained, and what they are trained on."""

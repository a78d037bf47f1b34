"""Declarative training and inference on any GPU, from Python."""

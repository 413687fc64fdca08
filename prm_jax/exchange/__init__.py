"""Checkpoint folders from Hugging Face folders, and back."""

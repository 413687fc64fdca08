"""Worlds that answer an agent's turns, and how rollouts run in them."""

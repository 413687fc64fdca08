"""Search at test time: a policy writes steps and a reward model chooses."""

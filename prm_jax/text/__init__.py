"""What a solution is as text and tokens: templates, cuts into steps, the encoder."""

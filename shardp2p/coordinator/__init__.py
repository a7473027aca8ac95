"""Drive one generation: generation (pure), driver. Knows nothing of the stage. Start at generation.py."""

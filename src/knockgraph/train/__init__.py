"""Training, evaluation and prediction: from a config to a run directory."""

"""Small synthetic data sets, for recipes to train on and tasks to ask about."""

"""Evidence that speculation changed nothing, on a user's own model, drafter and settings."""

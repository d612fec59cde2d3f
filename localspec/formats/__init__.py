"""Reading what models are stored in: weights, vocabularies and chat templates."""

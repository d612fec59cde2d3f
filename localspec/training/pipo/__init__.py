"""The training of PIPO: a model learns to read and write pairs of tokens as it would write single ones."""

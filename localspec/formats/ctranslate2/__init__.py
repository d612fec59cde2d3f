"""CTranslate2's models: the file model.bin, and Whisper's tensors in it."""

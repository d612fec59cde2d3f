"""The OpenVINO graph of a decoder."""

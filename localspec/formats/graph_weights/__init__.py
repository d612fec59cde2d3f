"""The weights of a decoder that is stored as an OpenVINO graph, read for a decoder of another library."""

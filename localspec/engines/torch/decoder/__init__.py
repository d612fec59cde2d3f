"""A decoder of our own in plain torch, for the families that become OpenVINO graphs."""

"""State kept between runs: probe results, tuned settings, prompt cache, past answers, conversations."""
